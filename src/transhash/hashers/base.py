"""The contract of every method: settings are fields, `fit` learns; codes, or scores of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import MAX_BITS, Codes, check_bits
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError, NotFittedError
from transhash.hashers.methods import HASHER_FORMAT
from transhash.hashers.settings import Seed, check_settings
from transhash.progress import Track, no_progress
from transhash.storage import file_digest, read_tensors, write_json, write_tensors

if TYPE_CHECKING:
    from torch import nn

Array = npt.NDArray[Any]
Setting = dict[str, Any]


@dataclass
class Learner(ABC):
    """Learns from S what belongs together. Fields are settings, checked by their annotations."""

    seed: Seed = field(default=0, kw_only=True)

    name: ClassVar[str]

    @abstractmethod
    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = no_progress
    ) -> Self:
        """Learn from `training`; methods that can resume keep checkpoints in `folder`."""

    @classmethod
    @abstractmethod
    def candidates(cls) -> Iterable[Setting]:
        """Settings that `tune` may try on held-out auxiliary data, most promising first."""

    @property
    def uses_target(self) -> bool:
        """Whether `fit` looks at unlabelled target items; if not, nothing before it may either."""
        return False

    def settings(self) -> Setting:
        return asdict(self)

    def get_params(self, deep: bool = True) -> Setting:
        """The settings, as scikit-learn's `clone` and searches ask for them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def set_params(self, **settings: Any) -> Self:
        """Other settings, checked as the constructor checks them; all or none are taken."""
        self.__dict__.update(replace(self, **settings).get_params())
        return self

    def __post_init__(self) -> None:
        check_settings(self)

    def not_fitted_error(self) -> NotFittedError:
        return NotFittedError(f"{self.name} has not learned anything yet; call fit() or load()")


@dataclass
class Scorer(Learner):
    """A number for every pair, without codes: a baseline, measured beside hashers but not saved."""

    @abstractmethod
    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        """(images, texts), larger = more related; only the order in rows and columns counts."""


@dataclass
class Hasher(Learner):
    """Two functions, image -> code and text -> code, learned from S."""

    bits: int = 32  # b

    @abstractmethod
    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        """(n, bits) real values whose signs are the codes."""

    @abstractmethod
    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        """(n, bits) real values whose signs are the codes."""

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """What project_images and project_texts compute, as networks for other runtimes."""
        raise DataError(f"{self.name} has no form that other runtimes could compute")

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Everything learned, as named arrays; raises NotFittedError before `fit`."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> Self:
        """The inverse of `state`."""

    def encode_images(self, images: Features) -> Codes:
        """The signs of the projections, packed."""
        return Codes.from_projections(self.project_images(images))

    def encode_texts(self, texts: Features) -> Codes:
        """The signs of the projections, packed."""
        return Codes.from_projections(self.project_texts(texts))

    def project_auxiliary(self, images: Features, texts: Features) -> tuple[Array, Array]:
        """Projections of *auxiliary* items; differs from project_* where domains are told apart."""
        return self.project_images(images), self.project_texts(texts)

    def save_state(self, folder: Path) -> None:
        state = self.state()
        if name := _not_finite(state):
            raise DataError(
                f"{self.name} learned numbers that are not finite ({name}), so nothing is "
                "saved; the training diverged: use a smaller learning_rate or other features"
            )
        write_tensors(folder / "hasher.safetensors", state)

    def load_state(self, folder: Path) -> Self:
        path = folder / "hasher.safetensors"
        state = read_tensors(path)
        if name := _not_finite(state):
            raise DataError(f"{path} holds numbers that are not finite ({name}); fit it anew")
        return self.restore(state)

    def save(self, folder: str | Path) -> None:
        """The hasher alone, for features computed elsewhere; `transhash.load` reads it back."""
        folder = Path(folder)
        self.save_state(folder)
        files = {"hasher.safetensors": file_digest(folder / "hasher.safetensors")}
        config = {"method": self.name, "settings": self.settings(), "files": files}
        write_json(folder / "config.json", {"format": HASHER_FORMAT, "version": 1, **config})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if self.bits > MAX_BITS:
            raise DataError(f"codes have up to {MAX_BITS:,} bits, got {self.bits:,}")


def _not_finite(state: Mapping[str, Array]) -> str | None:
    """The name of the first array that holds NaN or infinity."""
    return next((name for name, array in state.items() if not np.isfinite(array).all()), None)


def check_width(features: Features, width: int, what: str) -> Features:
    """`features` if they are vectors as long as those learned from."""
    if features.shape[1:] != (width,):
        raise DataError(
            f"{what} have shape {features.shape[1:]} each, but the method learned from vectors of "
            f"{width}; use the same features for both"
        )
    return features
