"""The coordinates in which THN's towers begin.

`plain` passes features on, centred and with one global scale (the paper's input).
`canonical` projects them on the leading canonical directions of S, and lets the unlabelled target
items take part: each target item is matched softly with auxiliary items of its own modality,
inherits their relations, and the directions are found anew from both domains. Each domain is
centred by its own mean. Only S is needed, no classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transhash.data.relation import Relation
from transhash.data.training import Features, TrainingSet
from transhash.hashers.base import Array

Matrix = npt.NDArray[np.float64]
Float = npt.NDArray[np.float32]


@dataclass(frozen=True)
class View:
    """One modality's affine map; auxiliary and target items have centres of their own."""

    axes: Matrix | None  # (d, k); None passes features on
    centre: Matrix  # of auxiliary items
    target_centre: Matrix
    size: float  # divides, so that coordinates have unit mean square

    def apply(self, features: Features, target: bool = True) -> Float:
        shifted = features.astype(np.float64) - (self.target_centre if target else self.centre)
        moved = shifted if self.axes is None else shifted @ self.axes
        return np.asarray(moved / self.size, dtype=np.float32)


@dataclass(frozen=True)
class Soft:
    """Relations that target items inherited, in [0, 1]."""

    target_image_to_text: Float  # (target images, texts)
    image_to_target_text: Float  # (images, target texts)
    target_to_target: Float  # (target images, target texts)


@dataclass(frozen=True)
class Inputs:
    """What the towers are trained on."""

    images: Array
    texts: Array
    target_images: Array | None = None
    target_texts: Array | None = None
    soft: Soft | None = None


@dataclass(frozen=True)
class Bridge:
    image: View | None  # None: pixels
    text: View

    def state(self) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, view in (("image", self.image), ("text", self.text)):
            if view is None:
                continue
            state[f"bridge.{name}.centre"] = view.centre
            state[f"bridge.{name}.target_centre"] = view.target_centre
            state[f"bridge.{name}.size"] = np.array(view.size)
            if view.axes is not None:
                state[f"bridge.{name}.axes"] = view.axes
        return state

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> Bridge:
        def view(name: str) -> View | None:
            if f"bridge.{name}.centre" not in state:
                return None
            return View(
                state.get(f"bridge.{name}.axes"),
                state[f"bridge.{name}.centre"],
                state[f"bridge.{name}.target_centre"],
                float(state[f"bridge.{name}.size"]),
            )

        text = view("text")
        assert text is not None  # texts are never pixels
        return cls(view("image"), text)


def plain(training: TrainingSet, use_target: bool) -> tuple[Bridge, Inputs]:
    """Features as they are but for one centre and one global scale; pixels untouched."""
    image = None if training.images.ndim > 2 else _plain_view(training.images)
    text = _plain_view(training.texts)
    t_x = training.target_images if use_target else None
    t_y = training.target_texts if use_target else None
    return Bridge(image, text), Inputs(
        training.images if image is None else image.apply(training.images),
        text.apply(training.texts),
        t_x if t_x is None or image is None else image.apply(t_x),
        None if t_y is None else text.apply(t_y),
    )


def canonical(
    training: TrainingSet,
    use_target: bool,
    *,
    ridge: float,
    rank: int | None,
    rounds: int,
    temperature: float,
) -> tuple[Bridge, Inputs]:
    """Canonical coordinates of the auxiliary relation, refined with unlabelled target items.

    Training coordinates are leave-one-out: those of an item that took part in finding the axes
    are too good, and towers trained on them would trust coordinates more than they deserve.
    """
    x, y = training.images.astype(np.float64), training.texts.astype(np.float64)
    relation = training.relation
    of_x = relation.times(np.ones((len(y), 1)))  # related texts of each image
    of_y = relation.transposed_times(np.ones((len(x), 1)))
    centre_x = (of_x.T @ x / of_x.sum()).ravel()
    centre_y = (of_y.T @ y / of_y.sum()).ravel()
    x -= centre_x
    y -= centre_y
    given_x, given_y = training.target_images, training.target_texts
    if not use_target or given_x is None or given_y is None:
        axes = _axes(x, y, _Extended(relation), ridge, rank)
        z_x, z_y = axes.leave_one_out()
        return _finish(axes, (centre_x, centre_x), (centre_y, centre_y), z_x, z_y)
    target_x, target_y = given_x.mean(axis=0), given_y.mean(axis=0)
    t_x = given_x.astype(np.float64) - target_x
    t_y = given_y.astype(np.float64) - target_y
    axes = _axes(x, y, _Extended(relation), ridge, rank)
    extended = _Extended(relation)
    all_x, all_y = np.concatenate([x, t_x]), np.concatenate([y, t_y])
    for _ in range(rounds):
        match_x = _match(t_x @ axes.x, x @ axes.x, temperature)
        match_y = _match(t_y @ axes.y, y @ axes.y, temperature)
        extended = _Extended(relation, match_x, match_y)
        axes = _axes(all_x, all_y, extended, ridge, rank)
    z_x, z_y = axes.leave_one_out()
    n, m = len(x), len(y)
    return _finish(
        axes, (centre_x, target_x), (centre_y, target_y), z_x[:n], z_y[:m], z_x[n:], z_y[m:],
        extended.soft(),
    )  # fmt: skip


class _Extended:
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

    def soft(self) -> Soft | None:
        if self.match_x is None or self.match_y is None:
            return None
        columns = self.relation.times(self.match_y.T)  # (n, m̂)
        return Soft(
            self.relation.transposed_times(self.match_x.T).T.astype(np.float32),
            columns.astype(np.float32),
            (self.match_x @ columns).astype(np.float32),
        )


@dataclass(frozen=True)
class _Axes:
    """Canonical directions and what leave-one-out coordinates need."""

    x: Matrix  # (dx, k)
    y: Matrix  # (dy, k)
    strength: Matrix  # (k,) canonical correlations
    coordinates: tuple[Matrix, Matrix]
    leverage: tuple[Matrix, Matrix]  # (n, 1) each
    partners: tuple[Matrix, Matrix]  # mean coordinates of each item's related items

    def leave_one_out(self) -> tuple[Matrix, Matrix]:
        """Coordinates an item would have had, had it been left out; closed form of ridge."""
        parts = []
        for z, lever, partner in zip(self.coordinates, self.leverage, self.partners, strict=True):
            lever = np.minimum(lever, 0.99)
            parts.append((z - lever * partner / self.strength) / (1 - lever))
        return parts[0], parts[1]


def _axes(x: Matrix, y: Matrix, relation: _Extended, ridge: float, rank: int | None) -> _Axes:
    """Regularised canonical analysis of centred x and y under a (soft) relation."""
    of_x = relation.times(np.ones((len(y), 1)))
    of_y = relation.transposed_times(np.ones((len(x), 1)))
    pairs = float(of_x.sum())
    root_x, inverse_x = _roots((x * of_x).T @ x / pairs, ridge)
    root_y, inverse_y = _roots((y * of_y).T @ y / pairs, ridge)
    cross = x.T @ relation.times(y) / pairs
    u, s, vt = np.linalg.svd(root_x @ cross @ root_y, full_matrices=False)
    k = useful_rank(s) if rank is None else min(rank, len(s))
    signs = np.where(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])] < 0, -1.0, 1.0)[:k]
    axes_x, axes_y = root_x @ (u[:, :k] * signs), root_y @ (vt[:k].T * signs)
    z_x, z_y = x @ axes_x, y @ axes_y
    return _Axes(
        axes_x,
        axes_y,
        s[:k],
        (z_x, z_y),
        (
            of_x / pairs * ((x @ inverse_x) * x).sum(axis=1, keepdims=True),
            of_y / pairs * ((y @ inverse_y) * y).sum(axis=1, keepdims=True),
        ),
        (
            relation.times(z_y) / np.maximum(of_x, 1e-9),
            relation.transposed_times(z_x) / np.maximum(of_y, 1e-9),
        ),
    )


def useful_rank(strengths: Matrix) -> int:
    """How many canonical directions carry the relation: up to the largest drop in strength."""
    if len(strengths) < 2:
        return 1
    top = strengths[: max(2, int((strengths > 0.02 * strengths[0]).sum()))]
    ratios = top[1:] / np.maximum(top[:-1], 1e-12)
    return max(2, int(np.argmin(ratios)) + 1)


def _roots(covariance: Matrix, ridge: float) -> tuple[Matrix, Matrix]:
    """(C + ridge λmax I)^-1/2 and ^-1."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0) + ridge * max(float(values[-1]), 1e-12)
    return (vectors / np.sqrt(values)) @ vectors.T, (vectors / values) @ vectors.T


def _match(target: Matrix, own: Matrix, temperature: float) -> Matrix:
    """Each target item's soft assignment to auxiliary items, by cosine; rows sum to 1."""
    a = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), 1e-9)
    b = own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-9)
    logits = a @ b.T / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _finish(
    axes: _Axes,
    centres_x: tuple[Matrix, Matrix],
    centres_y: tuple[Matrix, Matrix],
    z_x: Matrix,
    z_y: Matrix,
    t_x: Matrix | None = None,
    t_y: Matrix | None = None,
    soft: Soft | None = None,
) -> tuple[Bridge, Inputs]:
    size_x, size_y = (max(float(np.sqrt((z**2).mean())), 1e-9) for z in (z_x, z_y))
    bridge = Bridge(View(axes.x, *centres_x, size_x), View(axes.y, *centres_y, size_y))
    return bridge, Inputs(
        (z_x / size_x).astype(np.float32),
        (z_y / size_y).astype(np.float32),
        None if t_x is None else (t_x / size_x).astype(np.float32),
        None if t_y is None else (t_y / size_y).astype(np.float32),
        soft,
    )


def _plain_view(features: Features) -> View:
    centre = features.mean(axis=0, dtype=np.float64)
    size = max(float((features - centre).std()), 1e-9)
    return View(None, centre, centre, size)
