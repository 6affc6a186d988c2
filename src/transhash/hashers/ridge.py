"""ridge: each modality's features predicted from the other's, compared by cosine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import Ridge

from transhash.data.training import Features, TrainingSet
from transhash.hashers.base import Scorer, Setting, check_width
from transhash.hashers.canonical import Matrix, vectors
from transhash.hashers.knn import unit_rows
from transhash.hashers.settings import Positive
from transhash.progress import Track, silent


@dataclass
class RidgeRegression(Scorer):
    """Texts are sent to the mean image that is related to them, images to the mean text.

        A = argmin sum_j |x̄_j - A'y_j|² + ridge·v_y |A|²    x̄_j: mean of x_a over s_aj = 1
        B = argmin sum_a |ȳ_a - B'x_a|² + ridge·v_x |B|²    ȳ_a: mean of y_j over s_aj = 1
        score(i, t) = ½ cos(x_i, A'y_t) + ½ cos(B'x_i, y_t)

    All features are taken from the auxiliary mean; v is the mean over features of the sum of
    squares, so that `ridge` means the same at every scale and number of items.
    """

    name: ClassVar[str] = "ridge"

    ridge: Positive = 1.0

    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = silent
    ) -> Self:
        x = vectors(training.images, "images").astype(np.float64)
        y = vectors(training.texts, "texts").astype(np.float64)
        self.mean_x_, self.mean_y_ = x.mean(axis=0), y.mean(axis=0)
        x -= self.mean_x_
        y -= self.mean_y_
        relation = training.relation
        of_image = relation.times(np.ones((len(y), 1)))
        of_text = relation.transposed_times(np.ones((len(x), 1)))
        self.to_text_ = self._regression(x, relation.times(y), of_image)  # B, (dx, dy)
        self.to_image_ = self._regression(y, relation.transposed_times(x), of_text)  # A, (dy, dx)
        return self

    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        if not hasattr(self, "to_text_"):
            raise self.unfitted()
        x = check_width(images, len(self.mean_x_), "images") - self.mean_x_
        y = check_width(texts, len(self.mean_y_), "texts") - self.mean_y_
        by_text = unit_rows(x) @ unit_rows(y @ self.to_image_).T
        by_image = unit_rows(x @ self.to_text_) @ unit_rows(y).T
        return np.asarray((by_text + by_image) / 2)

    def _regression(self, features: Matrix, sums: Matrix, counts: Matrix) -> Matrix:
        """The weights that predict the mean partner of each item that has one."""
        own = counts[:, 0] > 0
        penalty = self.ridge * float((features**2).sum(axis=0).mean())
        model = Ridge(alpha=max(penalty, 1e-12), fit_intercept=False, solver="cholesky")
        return np.asarray(model.fit(features[own], sums[own] / counts[own]).coef_.T)

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [{"ridge": ridge} for ridge in (0.3, 3.0, 0.1, 10.0, 0.03, 30.0, 0.01, 100.0)]
