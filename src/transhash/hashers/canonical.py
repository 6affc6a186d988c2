"""Canonical analysis of a relation that unlabelled items may take part in, leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation
from transhash.hashers.linear import whitening

Matrix = npt.NDArray[np.float64]

MAX_RANK = 64
RANK_TOLERANCE = 0.03  # directions whose left-out correlation is below this share carry nothing


class Extended:
    """S over auxiliary and target items: P S Q' with P = [I; match_x], Q = [I; match_y].

    A target item's relations are those of the auxiliary items it is matched with, in proportion.
    """

    def __init__(
        self, relation: Relation, match_x: Matrix | None = None, match_y: Matrix | None = None
    ) -> None:
        self.relation, self.match_x, self.match_y = relation, match_x, match_y

    def times(self, texts: Matrix) -> Matrix:  # (m + m̂, k) -> (n + n̂, k)
        m = self.relation.shape[1]
        own = texts[:m] if self.match_y is None else texts[:m] + self.match_y.T @ texts[m:]
        rows = self.relation.times(own)
        return rows if self.match_x is None else np.concatenate([rows, self.match_x @ rows])

    def transposed_times(self, images: Matrix) -> Matrix:
        n = self.relation.shape[0]
        own = images[:n] if self.match_x is None else images[:n] + self.match_x.T @ images[n:]
        rows = self.relation.transposed_times(own)
        return rows if self.match_y is None else np.concatenate([rows, self.match_y @ rows])


@dataclass(frozen=True)
class Axes:
    """Canonical directions, and what coordinates of left-out items need."""

    x: Matrix  # (dx, k)
    y: Matrix  # (dy, k)
    strength: Matrix  # (k,) canonical correlations
    coordinates: tuple[Matrix, Matrix]
    leverage: tuple[Matrix, Matrix]  # (n, 1) each
    partners: tuple[Matrix, Matrix]  # mean coordinates of each item's related items

    @property
    def rank(self) -> int:
        return len(self.strength)

    def leave_one_out(self) -> tuple[Matrix, Matrix]:
        """Coordinates each item would have had, had it been left out.

        The axes are a ridge regression of partner / strength on the features, so the classical
        closed form (z - h t) / (1 - h) holds, h being the leverage.
        """
        parts = []
        for z, lever, partner in zip(self.coordinates, self.leverage, self.partners, strict=True):
            parts.append((z - lever * partner / self.strength) / (1 - lever))
        return parts[0], parts[1]

    def cut(self, rank: int) -> Axes:
        def first(pair: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
            return pair[0][:, :rank], pair[1][:, :rank]

        return Axes(
            self.x[:, :rank],
            self.y[:, :rank],
            self.strength[:rank],
            first(self.coordinates),
            self.leverage,
            first(self.partners),
        )


def find_axes(x: Matrix, y: Matrix, relation: Extended, ridge: float, rank: int | None) -> Axes:
    """Regularised canonical analysis of centred x and y; `rank` None finds out how many count."""
    of_x = relation.times(np.ones((len(y), 1)))
    of_y = relation.transposed_times(np.ones((len(x), 1)))
    pairs = float(of_x.sum())
    root_x = whitening((x * of_x).T @ x / pairs, ridge)
    root_y = whitening((y * of_y).T @ y / pairs, ridge)
    cross = x.T @ relation.times(y) / pairs
    u, s, vt = np.linalg.svd(root_x @ cross @ root_y, full_matrices=False)
    k = min(MAX_RANK if rank is None else rank, len(s))
    signs = np.where(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])] < 0, -1.0, 1.0)[:k]
    axes_x, axes_y = root_x @ (u[:, :k] * signs), root_y @ (vt[:k].T * signs)
    z_x, z_y = x @ axes_x, y @ axes_y
    white_x, white_y = x @ root_x, y @ root_y
    axes = Axes(
        axes_x,
        axes_y,
        np.maximum(s[:k], 1e-8),
        (z_x, z_y),
        (
            np.minimum(of_x / pairs * (white_x**2).sum(axis=1, keepdims=True), 0.9),
            np.minimum(of_y / pairs * (white_y**2).sum(axis=1, keepdims=True), 0.9),
        ),
        (
            relation.times(z_y) / np.maximum(of_x, 1e-9),
            relation.transposed_times(z_x) / np.maximum(of_y, 1e-9),
        ),
    )
    if rank is not None:
        return axes
    return axes.cut(useful_rank(left_out_correlations(axes, relation, of_x, of_y)))


def left_out_correlations(axes: Axes, relation: Extended, of_x: Matrix, of_y: Matrix) -> Matrix:
    """Correlation of related items along each direction, measured on left-out coordinates."""
    z_x, z_y = axes.leave_one_out()
    cross = (z_x * relation.times(z_y)).sum(axis=0)
    sizes = (of_x * z_x**2).sum(axis=0) * (of_y * z_y**2).sum(axis=0)
    return np.asarray(cross / np.sqrt(np.maximum(sizes, 1e-30)))


def useful_rank(correlations: Matrix) -> int:
    """The leading run of directions that hold up when left out; later ones are noise."""
    weak = np.flatnonzero(correlations < RANK_TOLERANCE * max(float(correlations[0]), 1e-9))
    return max(1, int(weak[0]) if len(weak) else len(correlations))
