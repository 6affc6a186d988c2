"""kNN: transitive nearest neighbours, the fifteen lines that a learned method has to beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from transhash.data.training_set import Features, TrainingSet
from transhash.hashers.base import Scorer, Setting, check_width
from transhash.hashers.canonical import Matrix, chunks, require_vectors
from transhash.hashers.settings import Positive, PositiveInt
from transhash.progress import Track, no_progress

_Floats = npt.NDArray[np.float32]
_ROWS = 1024  # queries compared with all auxiliary items at a time
_PART, _COLUMNS = 4096, 256  # rows and columns in float64 at a time


@dataclass
class NearestNeighbors(Scorer):
    """An item is where the partners of its nearest auxiliary items are.

        score(i, t) = ½ mean over j in N(t) of mean over s_aj = 1 of cos(x_i, x_a)
                    + ½ mean over a in N(i) of mean over s_aj = 1 of cos(y_t, y_j)

    N(t) are the k auxiliary texts nearest to text t by cosine, N(i) the k auxiliary images nearest
    to image i, among those that are related to anything; of equally near ones any. Features are
    taken from their auxiliary mean: cosines with what all items share make some of them near to
    everything (MAP .34 / .31 instead of .54 / .54 on coco-tinyimagenet-qa). An item without
    features (a text of unknown words) has no neighbours and brings 0.
    """

    name: ClassVar[str] = "kNN"

    n_neighbors: PositiveInt = 10  # k

    def fit(
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = no_progress
    ) -> Self:
        images, texts = (
            require_vectors(training.images, "images"),
            require_vectors(training.texts, "texts"),
        )
        self.mean_x_ = images.mean(axis=0, dtype=np.float64)
        self.mean_y_ = texts.mean(axis=0, dtype=np.float64)
        x, y = normalize_centered(images, self.mean_x_), normalize_centered(texts, self.mean_y_)
        relation = training.relation
        of_image = relation.times(np.ones((len(y), 1)))  # how many texts are related to each
        of_text = relation.transposed_times(np.ones((len(x), 1)))
        own_x, own_y = of_image[:, 0] > 0, of_text[:, 0] > 0
        # A mean of cosines is the cosine with the mean of unit vectors: one vector an item is kept.
        self.images_, self.texts_of_image_ = x[own_x], _means(relation.times, y, of_image)
        self.texts_, self.images_of_text_ = y[own_y], _means(relation.transposed_times, x, of_text)
        return self

    def score(self, images: Features, texts: Features) -> _Floats:
        if not hasattr(self, "images_"):
            raise self.not_fitted_error()
        x = normalize_centered(check_width(images, len(self.mean_x_), "images"), self.mean_x_)
        y = normalize_centered(check_width(texts, len(self.mean_y_), "texts"), self.mean_y_)
        by_text = x @ self.mean_partner(y, self.texts_, self.images_of_text_).T
        by_image = self.mean_partner(x, self.images_, self.texts_of_image_) @ y.T
        return np.asarray((by_text + by_image) / 2)

    def mean_partner(self, queries: _Floats, own: _Floats, sample_partners: _Floats) -> _Floats:
        """Into the other modality: the mean of the nearest items' partners."""
        out = np.zeros((len(queries), sample_partners.shape[1]), dtype=np.float32)
        k = min(self.n_neighbors, len(own))
        for start in range(0, len(queries), _ROWS):
            rows = queries[start : start + _ROWS]
            nearest = np.argpartition(-(rows @ own.T), k - 1, axis=1)[:, :k]
            for one in nearest.T:
                out[start : start + _ROWS] += sample_partners[one] / k
        out[~queries.any(axis=1)] = 0
        return out

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [{"n_neighbors": k} for k in (20, 5, 30, 50, 3, 100, 1, 200)]


def _means(
    times: Callable[[_Floats], npt.NDArray[np.float64]],
    sample_partners: _Floats,
    counts: npt.NDArray[np.float64],
) -> _Floats:
    """The mean partner of each item that has one."""
    own = counts[:, 0] > 0
    found = np.empty((int(own.sum()), sample_partners.shape[1]), np.float32)
    for start in range(0, sample_partners.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        found[:, columns] = times(sample_partners[:, columns])[own] / counts[own]
    return found


def normalize_centered(features: Features, mean: npt.NDArray[np.float64]) -> _Floats:
    """Unit vectors from the mean; rows of zeros, which say nothing, stay zeros."""
    found = np.empty(features.shape, np.float32)
    for start in range(0, len(features), _PART):  # no whole copy in float64
        some = features[start : start + _PART]
        found[start : start + _PART] = unit_rows((some - mean) * some.any(axis=1, keepdims=True))
    return found


def unit_rows(features: Features) -> _Floats:
    """Each row divided by its length; rows of zeros stay."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1), dtype=np.float32)


# ridge: each modality's features predicted from the other's, compared by cosine.

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
        self, training: TrainingSet, *, folder: Path | None = None, track: Track = no_progress
    ) -> Self:
        x, y = require_vectors(training.images, "images"), require_vectors(training.texts, "texts")
        self.mean_x_ = x.mean(axis=0, dtype=np.float64)
        self.mean_y_ = y.mean(axis=0, dtype=np.float64)
        relation, images, texts = training.relation, (x, self.mean_x_), (y, self.mean_y_)
        self.to_text_ = self._regression(images, texts, relation.times)  # B, (dx, dy)
        self.to_image_ = self._regression(texts, images, relation.transposed_times)  # A, (dy, dx)
        return self

    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        if not hasattr(self, "to_text_"):
            raise self.not_fitted_error()
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
        (features, mean), (sample_partners, partner_mean) = own, others
        counts = times(np.ones((len(sample_partners), 1)))
        gram, squares = np.zeros((len(mean), len(mean))), 0.0
        for rows, part in chunks(features, mean):
            squares += float((part**2).sum())
            paired = part[counts[rows, 0] > 0]
            gram += paired.T @ paired
        cross = np.zeros((len(mean), len(partner_mean)))
        for start in range(0, len(partner_mean), _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            sums = times(sample_partners[:, columns] - partner_mean[columns])
            sums /= np.maximum(counts, 1e-9)
            for rows, part in chunks(features, mean):
                cross[:, columns] += part.T @ sums[rows]
        penalty = self.ridge * squares / len(mean)
        gram.flat[:: len(gram) + 1] += max(penalty, 1e-12)
        return np.asarray(scipy.linalg.solve(gram, cross, assume_a="pos"))

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [{"ridge": ridge} for ridge in (0.3, 3.0, 0.1, 10.0, 0.03, 30.0, 0.01, 100.0)]
