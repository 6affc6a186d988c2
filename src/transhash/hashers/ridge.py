"""ridge: each modality's features predicted from the other's, compared by cosine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from transhash.data.training import Features, TrainingSet
from transhash.hashers.base import Scorer, Setting, check_width
from transhash.hashers.canonical import Matrix, chunks, vectors
from transhash.hashers.knn import unit_rows
from transhash.hashers.settings import Positive
from transhash.progress import Track, silent

_COLUMNS = 256  # of the partners, at a time


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
        x, y = vectors(training.images, "images"), vectors(training.texts, "texts")
        self.mean_x_ = x.mean(axis=0, dtype=np.float64)
        self.mean_y_ = y.mean(axis=0, dtype=np.float64)
        relation, images, texts = training.relation, (x, self.mean_x_), (y, self.mean_y_)
        self.to_text_ = self._regression(images, texts, relation.times)  # B, (dx, dy)
        self.to_image_ = self._regression(texts, images, relation.transposed_times)  # A, (dy, dx)
        return self

    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        if not hasattr(self, "to_text_"):
            raise self.unfitted()
        x = check_width(images, len(self.mean_x_), "images") - self.mean_x_
        y = check_width(texts, len(self.mean_y_), "texts") - self.mean_y_
        by_text = unit_rows(x) @ unit_rows(y @ self.to_image_).T
        by_image = unit_rows(x @ self.to_text_) @ unit_rows(y).T
        return np.asarray((by_text + by_image) / 2)

    def _regression(
        self,
        own: tuple[Features, Matrix],
        others: tuple[Features, Matrix],
        times: Callable[[Matrix], Matrix],
    ) -> Matrix:
        """The weights that predict the mean partner of each item that has one.

        By the normal equations, a few rows and columns at a time: of 100,000 pairs nothing else
        fits.
        """
        (features, mean), (partners, partner_mean) = own, others
        counts = times(np.ones((len(partners), 1)))
        gram, squares = np.zeros((len(mean), len(mean))), 0.0
        for rows, part in chunks(features, mean):
            squares += float((part**2).sum())
            paired = part[counts[rows, 0] > 0]
            gram += paired.T @ paired
        cross = np.zeros((len(mean), len(partner_mean)))
        for start in range(0, len(partner_mean), _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            sums = times(partners[:, columns] - partner_mean[columns])
            sums /= np.maximum(counts, 1e-9)
            for rows, part in chunks(features, mean):
                cross[:, columns] += part.T @ sums[rows]
        penalty = self.ridge * squares / len(mean)
        gram.flat[:: len(gram) + 1] += max(penalty, 1e-12)
        return np.asarray(scipy.linalg.solve(gram, cross, assume_a="pos"))

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [{"ridge": ridge} for ridge in (0.3, 3.0, 0.1, 10.0, 0.03, 30.0, 0.01, 100.0)]
