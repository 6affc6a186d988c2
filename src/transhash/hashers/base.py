"""The contract of every method: settings are fields, `fit` learns, results are codes or scores.

`LinearHasher` is the base of linear methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import MAX_BITS, Codes, check_bits
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError, NotFittedError, check_type
from transhash.hashers.methods import HASHER_FORMAT, MODEL_VERSION
from transhash.hashers.projection import Matrix, project_linear
from transhash.hashers.settings import Seed, check_settings
from transhash.progress import Track, no_progress, report_to
from transhash.storage import file_digest, read_tensors, write_json, write_tensors

if TYPE_CHECKING:
    from torch import nn

    from transhash.hashers.world import World


Array = npt.NDArray[Any]
Setting = dict[str, Any]


@dataclass(frozen=True)
class FitOptions:
    """How to fit, apart from the settings of the method."""

    folder: Path | None = None  # for checkpoints and metrics of methods that write them
    track: Track = no_progress
    world: World | None = None  # the processes that train together; None: a single one


@dataclass
class Learner(ABC):
    """Learns from the relation S which items belong together. Fields are settings."""

    seed: Seed = field(default=0, kw_only=True)

    name: ClassVar[str]

    def fit(
        self,
        training: TrainingSet,
        *,
        folder: Path | None = None,
        track: Track = no_progress,
        world: World | None = None,
    ) -> Self:
        """Learn from `training`; methods that can resume write checkpoints to `folder`."""
        check_type(training, AuxiliarySet, "The training set", "a transhash.TrainingSet")
        if world is not None:
            self.check_world(world)
        with report_to(track):
            self._fit(training, FitOptions(folder, track, world))
        return self

    @abstractmethod
    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        """Learn from `training`."""

    def check_world(self, world: World) -> None:
        """Raise a DataError if the method cannot train in these processes."""
        if world.size > 1:
            raise DataError(f"{self.name} runs in one process. Start it without torchrun.")

    @classmethod
    @abstractmethod
    def candidates(cls) -> Iterable[Setting]:
        """Return settings for `tune` to try on held-out auxiliary data, most promising first."""

    @property
    def uses_target(self) -> bool:
        """Whether `fit` uses unlabeled target items; if not, no step before it may either."""
        return False

    def settings(self) -> Setting:
        return asdict(self)

    def get_params(self, deep: bool = True) -> Setting:
        """Return the settings, for scikit-learn's `clone` and searches."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def set_params(self, **settings: Any) -> Self:
        """Change settings, all or none; values are checked as in the constructor."""
        self.__dict__.update(replace(self, **settings).get_params())
        return self

    def __post_init__(self) -> None:
        check_settings(self)

    def not_fitted_error(self) -> NotFittedError:
        return NotFittedError(f"{self.name} is not fitted. Call fit() or load() first.")


@dataclass
class Scorer(Learner):
    """Scores pairs without codes: a baseline that is compared with hashers but not saved."""

    @abstractmethod
    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        """Return (images, texts) scores, larger = more related; only their order matters."""


@dataclass
class Hasher(Learner):
    """Two functions, image -> code and text -> code, learned from S."""

    bits: int = 32  # b

    # Whether training passed the projections through tanh, so that they have the scale for it.
    trained_with_tanh: ClassVar[bool] = False

    @property
    def relation_bits(self) -> int:
        """The number of leading bits that the relation determines; others order a class."""
        return self.bits

    @abstractmethod
    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        """Return the (n, bits) real values whose signs are the codes."""

    @abstractmethod
    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        """Return the (n, bits) real values whose signs are the codes."""

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """Return project_images and project_texts as torch modules, to export."""
        raise DataError(f"{self.name} cannot be exported. Use another method.")

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return everything learned as named arrays; raise NotFittedError before `fit`."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set everything learned from the result of `state`."""

    def encode_images(self, images: Features) -> Codes:
        return Codes.from_projections(self.project_images(images))

    def encode_texts(self, texts: Features) -> Codes:
        return Codes.from_projections(self.project_texts(texts))

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        """Project auxiliary items; transductive methods center the two domains differently."""
        return self.project_images(images), self.project_texts(texts)

    def save_state(self, folder: Path) -> None:
        state = self.state()
        if name := _first_not_finite(state):
            raise DataError(
                f"{self.name} learned values that are not finite ({name}), so nothing was saved. "
                "Use a smaller learning_rate or other features."
            )
        write_tensors(folder / "hasher.safetensors", state)

    def load_state(self, folder: Path) -> Self:
        path = folder / "hasher.safetensors"
        state = read_tensors(path)
        if name := _first_not_finite(state):
            raise DataError(f"{path} has values that are not finite ({name}). Refit the model.")
        return self.restore(state)

    def save(self, folder: str | Path) -> None:
        """Save the hasher without features; `transhash.load` reads it back."""
        folder = Path(folder)
        self.save_state(folder)
        files = {"hasher.safetensors": file_digest(folder / "hasher.safetensors")}
        head = {"format": HASHER_FORMAT, "version": MODEL_VERSION}
        config = {"method": self.name, "settings": self.settings(), "files": files}
        write_json(folder / "config.json", {**head, **config})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if self.bits > MAX_BITS:
            raise DataError(f"Codes have at most {MAX_BITS:,} bits, got {self.bits:,}. Use fewer.")


def _first_not_finite(state: Mapping[str, Array]) -> str | None:
    """Return the name of the first array that has NaN or infinity."""
    return next((name for name, array in state.items() if not np.isfinite(array).all()), None)


def require_vectors(features: Features, modality: str) -> Features:
    """Return `features` if they are vectors; linear methods cannot use pixels."""
    check_type(features, np.ndarray, f"The {modality}", "an array of features")
    if features.ndim != 2:
        raise DataError(
            f"Linear methods need {modality} as feature vectors (n, d), got shape "
            f"{features.shape}. Extract features first."
        )
    return features


@dataclass
class LinearHasher(Hasher):
    """Codes sgn(x Wx - tx) and sgn(y Wy - ty); `learned` names the arrays that are saved."""

    learned: ClassVar[tuple[str, ...]] = ("weights_x", "offset_x", "weights_y", "offset_y")

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        self._check_fitted()
        return project_linear(
            require_vectors(images, "images"), self.weights_x_, self.offset_x_, "images"
        )

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        self._check_fitted()
        return project_linear(
            require_vectors(texts, "texts"), self.weights_y_, self.offset_y_, "texts"
        )

    def modules(self) -> tuple[nn.Module, nn.Module]:
        self._check_fitted()
        from transhash.hashers.modules import Affine

        image = Affine(self.weights_x_, offset=self.offset_x_)
        return image, Affine(self.weights_y_, offset=self.offset_y_)

    def state(self) -> dict[str, Array]:
        self._check_fitted()
        return {name: getattr(self, f"{name}_") for name in self.learned}

    def restore(self, state: Mapping[str, Array]) -> Self:
        missing = sorted(set(self.learned) - set(state))
        if missing:
            raise DataError(f"The saved {self.name} lacks {', '.join(missing)}. Refit the model.")
        bits = state["weights_x"].shape[1]
        if bits != self.bits:
            raise DataError(f"The saved {self.name} has {bits} bits, not {self.bits}. Refit it.")
        for name in self.learned:
            setattr(self, f"{name}_", np.asarray(state[name], dtype=np.float64))
        return self

    def _set_weights(
        self, weights_x: Matrix, offset_x: Matrix, weights_y: Matrix, offset_y: Matrix
    ) -> None:
        self.weights_x_: Matrix = weights_x  # (dx, bits)
        self.offset_x_: Matrix = offset_x  # (bits,)
        self.weights_y_: Matrix = weights_y
        self.offset_y_: Matrix = offset_y

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_x_"):
            raise self.not_fitted_error()
