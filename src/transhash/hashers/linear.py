"""The base of linear methods: codes sgn(x W - t) for both modalities, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from transhash.data.training_set import Features
from transhash.errors import DataError
from transhash.hashers.base import Array, Hasher, require_vectors
from transhash.hashers.projection import Matrix, project_linear

if TYPE_CHECKING:
    from torch import nn


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
