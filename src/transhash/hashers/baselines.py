"""Real-valued baselines that a learned method has to beat: kNN, ridge regression, a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.linalg

from transhash.data.relation import LabelRelation
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import FitOptions, Scorer, Setting, require_vectors
from transhash.hashers.projection import Matrix, check_width, chunks
from transhash.hashers.settings import Positive, PositiveInt

_Floats = npt.NDArray[np.float32]
_Times = Callable[[Features], Matrix]  # S or S' times a matrix
_CHUNK_QUERIES = 1024  # compared with all auxiliary items at a time
_CHUNK_ROWS = 4096  # converted to float64 at a time
_CHUNK_COLUMNS = 256


@dataclass
class NearestNeighbors(Scorer):
    """Transitive nearest neighbors: an item is compared with the partners of similar items.

        score(i, t) = ½ mean over j in N(t) of mean over s_aj = 1 of cos(x_i, x_a)
                    + ½ mean over a in N(i) of mean over s_aj = 1 of cos(y_t, y_j)

    N(t) are the k auxiliary texts nearest to text t by cosine, N(i) the k auxiliary images nearest
    to image i, among items with any partner; ties are broken arbitrarily. Features are centered by
    their auxiliary mean: without, what all items share makes some of them near to everything (MAP
    .34 / .31 instead of .54 / .54 on coco-tinyimagenet-qa). An item without features (a text of
    unknown words) has no neighbors and scores 0.
    """

    name: ClassVar[str] = "kNN"

    n_neighbors: PositiveInt = 10  # k
    center_target: bool = False  # scored items are centered by the mean of the target items

    @property
    def uses_target(self) -> bool:
        return self.center_target

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        images = require_vectors(training.images, "images")
        texts = require_vectors(training.texts, "texts")
        self.mean_x_ = images.mean(axis=0, dtype=np.float64)
        self.mean_y_ = texts.mean(axis=0, dtype=np.float64)
        x, y = normalize_centered(images, self.mean_x_), normalize_centered(texts, self.mean_y_)
        # The mean of cosines with unit vectors is the product with their mean, so one vector per
        # item is enough.
        relation = training.relation
        self.centers_ = _score_centers(self.center_target, training, self.mean_x_, self.mean_y_)
        self.images_, self.texts_of_image_ = _with_mean_partners(x, y, relation.times)
        self.texts_, self.images_of_text_ = _with_mean_partners(y, x, relation.transposed_times)

    def score(self, images: Features, texts: Features) -> _Floats:
        if not hasattr(self, "images_"):
            raise self.not_fitted_error()
        center_x, center_y = self.centers_
        x = normalize_centered(check_width(images, len(center_x), "images"), center_x)
        y = normalize_centered(check_width(texts, len(center_y), "texts"), center_y)
        by_text = x @ self.mean_partner(y, self.texts_, self.images_of_text_).T
        by_image = self.mean_partner(x, self.images_, self.texts_of_image_) @ y.T
        return np.asarray((by_text + by_image) / 2)

    def mean_partner(self, queries: _Floats, items: _Floats, partners: _Floats) -> _Floats:
        """Return the mean partner of the nearest items, a vector of the other modality."""
        out = np.zeros((len(queries), partners.shape[1]), dtype=np.float32)
        k = min(self.n_neighbors, len(items))
        for start in range(0, len(queries), _CHUNK_QUERIES):
            chunk = queries[start : start + _CHUNK_QUERIES]
            nearest = np.argpartition(-(chunk @ items.T), k - 1, axis=1)[:, :k]
            for neighbors in nearest.T:
                out[start : start + _CHUNK_QUERIES] += partners[neighbors] / k
        out[~queries.any(axis=1)] = 0
        return out

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return [{"n_neighbors": k} for k in (20, 5, 30, 50, 3, 100, 1, 200)]


def _score_centers(
    center_target: bool, training: TrainingSet, mean_x: Matrix, mean_y: Matrix
) -> tuple[Matrix, Matrix]:
    """Return the centers of the images and texts that are scored."""
    target_x, target_y = training.target_images, training.target_texts
    return (
        mean_x if target_x is None or not center_target else target_x.mean(0, dtype=np.float64),
        mean_y if target_y is None or not center_target else target_y.mean(0, dtype=np.float64),
    )


def _with_mean_partners(items: _Floats, others: _Floats, times: _Times) -> tuple[_Floats, _Floats]:
    """Return the items that have partners, and the mean partner of each."""
    counts = times(np.ones((len(others), 1)))
    has_partner = counts[:, 0] > 0
    means = np.empty((int(has_partner.sum()), others.shape[1]), np.float32)
    for start in range(0, others.shape[1], _CHUNK_COLUMNS):
        columns = slice(start, start + _CHUNK_COLUMNS)
        means[:, columns] = times(others[:, columns])[has_partner] / counts[has_partner]
    return items[has_partner], means


def normalize_centered(features: Features, mean: Matrix) -> _Floats:
    """Return unit vectors of the differences from the mean; rows of zeros stay zero."""
    out = np.empty(features.shape, np.float32)
    for start in range(0, len(features), _CHUNK_ROWS):
        rows = features[start : start + _CHUNK_ROWS]
        centered = (rows - mean) * rows.any(axis=1, keepdims=True)
        out[start : start + _CHUNK_ROWS] = unit_rows(centered)
    return out


def unit_rows(features: Features) -> _Floats:
    """Return each row divided by its norm; rows of zeros stay zero."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(norms > 0, norms, 1), dtype=np.float32)


@dataclass
class RidgeRegression(Scorer):
    """Predicts the mean related image of a text and the mean related text of an image.

        A = argmin sum_j |x̄_j - A'y_j|² + ridge·v_y |A|²    x̄_j: mean of x_a over s_aj = 1
        B = argmin sum_a |ȳ_a - B'x_a|² + ridge·v_x |B|²    ȳ_a: mean of y_j over s_aj = 1
        score(i, t) = ½ cos(x_i, A'y_t) + ½ cos(B'x_i, y_t)

    All features are centered by the auxiliary mean; v is the mean over features of the sum of
    squares, so that `ridge` does not depend on the feature scale or the number of items.
    """

    name: ClassVar[str] = "ridge"

    ridge: Positive = 1.0
    center_target: bool = False  # scored items are centered by the mean of the target items

    @property
    def uses_target(self) -> bool:
        return self.center_target

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        x, y = require_vectors(training.images, "images"), require_vectors(training.texts, "texts")
        self.mean_x_ = x.mean(axis=0, dtype=np.float64)
        self.mean_y_ = y.mean(axis=0, dtype=np.float64)
        self.centers_ = _score_centers(self.center_target, training, self.mean_x_, self.mean_y_)
        relation, images, texts = training.relation, (x, self.mean_x_), (y, self.mean_y_)
        self.to_text_ = self._regress(images, texts, relation.times)  # B, (dx, dy)
        self.to_image_ = self._regress(texts, images, relation.transposed_times)  # A, (dy, dx)

    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        if not hasattr(self, "to_text_"):
            raise self.not_fitted_error()
        center_x, center_y = self.centers_
        x = check_width(images, len(center_x), "images") - center_x
        y = check_width(texts, len(center_y), "texts") - center_y
        by_text = unit_rows(x) @ unit_rows(y @ self.to_image_).T
        by_image = unit_rows(x @ self.to_text_) @ unit_rows(y).T
        return np.asarray((by_text + by_image) / 2)

    def _regress(
        self, items: tuple[Features, Matrix], others: tuple[Features, Matrix], times: _Times
    ) -> Matrix:
        """Return the weights that predict the mean partner of each item that has one.

        Solves the normal equations in chunks, so that 100,000 pairs fit into memory.
        """
        (features, mean), (partners, partner_mean) = items, others
        counts = times(np.ones((len(partners), 1)))
        gram, squares = np.zeros((len(mean), len(mean))), 0.0
        for rows, part in chunks(features, mean):
            squares += float((part**2).sum())
            paired = part[counts[rows, 0] > 0]
            gram += paired.T @ paired
        cross = np.zeros((len(mean), len(partner_mean)))
        for start in range(0, len(partner_mean), _CHUNK_COLUMNS):
            columns = slice(start, start + _CHUNK_COLUMNS)
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


@dataclass
class RidgeClassifier(Scorer):
    """Predicts the classes of each modality by ridge regression on one-hot targets.

        A = argmin sum_i |l_i - A'x_i|² + ridge·v_x |A|²    l_i: row of labels; B the same for texts
        score(i, t) = cos(A'x_i, B't)

    Features and labels are centered by their auxiliary mean; v is the mean over features of the
    sum of squares. Needs class labels: pairs have no classes to predict.
    """

    name: ClassVar[str] = "ridge-classifier"

    ridge: Positive = 1.0
    center_target: bool = False  # scored items are centered by the mean of the target items

    @property
    def uses_target(self) -> bool:
        return self.center_target

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        x, y = require_vectors(training.images, "images"), require_vectors(training.texts, "texts")
        if not isinstance(training.relation, LabelRelation):
            raise DataError(
                f"{self.name} needs class labels, and the relation has none. Use ridge, or a "
                "benchmark with labels."
            )
        self.mean_x_ = x.mean(axis=0, dtype=np.float64)
        self.mean_y_ = y.mean(axis=0, dtype=np.float64)
        self.centers_ = _score_centers(self.center_target, training, self.mean_x_, self.mean_y_)
        relation = training.relation
        self.image_weights_ = self._classify(x, self.mean_x_, relation.image_labels)  # A
        self.text_weights_ = self._classify(y, self.mean_y_, relation.text_labels)  # B

    def score(self, images: Features, texts: Features) -> npt.NDArray[np.float32]:
        if not hasattr(self, "image_weights_"):
            raise self.not_fitted_error()
        center_x, center_y = self.centers_
        x = check_width(images, len(center_x), "images") - center_x
        y = check_width(texts, len(center_y), "texts") - center_y
        return unit_rows(x @ self.image_weights_) @ unit_rows(y @ self.text_weights_).T

    def _classify(self, features: Features, mean: Matrix, labels: npt.NDArray[np.bool_]) -> Matrix:
        targets = labels - labels.mean(axis=0)
        gram, squares = np.zeros((len(mean), len(mean))), 0.0
        cross = np.zeros((len(mean), targets.shape[1]))
        for rows, part in chunks(features, mean):
            squares += float((part**2).sum())
            gram += part.T @ part
            cross += part.T @ targets[rows]
        gram.flat[:: len(gram) + 1] += max(self.ridge * squares / len(mean), 1e-12)
        return np.asarray(scipy.linalg.solve(gram, cross, assume_a="pos"))

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        return RidgeRegression.candidates()
