"""The fixed first layer of THN's towers, which carries both modalities and both domains over.

`plain` passes features on, centred and with one global scale (the paper's input).
`canonical` projects them on the canonical directions of S. Unlabelled target items take part: each
is matched softly with auxiliary items of its own modality, inherits their relations, and the
directions are found anew from both domains, each centred by its own mean. Only S is needed, no
classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from transhash.data.training import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array
from transhash.hashers.canonical import Extended, find_axes

Matrix = npt.NDArray[np.float64]
Float = npt.NDArray[np.float32]


@dataclass(frozen=True)
class View:
    """One modality's affine map; auxiliary and target items have centres of their own."""

    axes: Matrix | None  # (d, k); None passes features on
    centre: Matrix  # of auxiliary items
    target_centre: Matrix
    size: float = 1.0  # divides

    def apply(self, features: Features, target: bool = True) -> Float:
        if features.shape[1:] != self.centre.shape:
            raise DataError(
                f"features have shape {features.shape[1:]} each, the method learned from "
                f"{self.centre.shape}; use the same features for both"
            )
        shifted = features.astype(np.float64) - (self.target_centre if target else self.centre)
        moved = shifted if self.axes is None else shifted @ self.axes
        return np.asarray(moved / self.size, dtype=np.float32)


@dataclass(frozen=True)
class Inputs:
    """What the towers are trained on."""

    images: Array
    texts: Array
    target_images: Array | None = None
    target_texts: Array | None = None
    image_weight: Float | None = None  # how much target mass an auxiliary item is matched with
    text_weight: Float | None = None
    calibration: tuple[float, float] | None = None  # P(s = 1) = sigmoid(a cos(x, y) + c)


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
            state[f"bridge.{name}.size"] = np.array([view.size])
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
                float(state[f"bridge.{name}.size"][0]),
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


@dataclass(frozen=True)
class Canonical:
    """How the canonical layer is found."""

    ridge: float
    rank: int | None
    rounds: int
    temperature: float
    centring: float
    seed: int

    limit: ClassVar[int] = 10_000  # items of a kind that are analysed; the others are projected
    # Trials and code lengths share data and layer; the last few are kept, with what they are of.
    _kept: ClassVar[list[tuple[Canonical, bool, TrainingSet, tuple[Bridge, Inputs]]]] = []

    def build(self, training: TrainingSet, use_target: bool) -> tuple[Bridge, Inputs]:
        for settings, used, data, result in self._kept:
            if settings == self and used == use_target and data is training:
                return result
        result = self._build(training, use_target)
        self._kept[:] = [(self, use_target, training, result), *self._kept[:2]]
        return result

    def _build(self, training: TrainingSet, use_target: bool) -> tuple[Bridge, Inputs]:
        rng = np.random.default_rng([self.seed, 0xCA])
        rows, columns = (
            np.sort(rng.permutation(n)[: self.limit])
            for n in (len(training.images), len(training.texts))
        )
        whole = len(rows) == len(training.images) and len(columns) == len(training.texts)
        relation = training.relation if whole else training.relation.subset(rows, columns)
        x, y = (
            part.astype(np.float64) for part in (training.images[rows], training.texts[columns])
        )
        centre_x = _centre(x, relation.times(np.ones((len(y), 1))))
        centre_y = _centre(y, relation.transposed_times(np.ones((len(x), 1))))
        x -= centre_x
        y -= centre_y
        axes = find_axes(x, y, Extended(relation), self.ridge, self.rank)
        target_x, target_y = centre_x, centre_y
        match_x = match_y = None
        given_x, given_y = training.target_images, training.target_texts
        if use_target and given_x is not None and given_y is not None:
            t_x, t_y = given_x.astype(np.float64), given_y.astype(np.float64)
            target_x, target_y = t_x.mean(axis=0), t_y.mean(axis=0)
            near_x, near_y = x @ axes.x, y @ axes.y
            far_x, far_y = (t_x - target_x) @ axes.x, (t_y - target_y) @ axes.y
            for _ in range(self.rounds):
                match_x = _match(far_x, near_x, self.temperature)
                match_y = _match(far_y, near_y, self.temperature)
                # Half way between "both domains have one mean" and "what is matched has one
                # mean": the first is wrong when class shares differ, the second trusts matches.
                target_x = t_x.mean(axis=0) - self.centring * (match_x @ x).mean(axis=0)
                target_y = t_y.mean(axis=0) - self.centring * (match_y @ y).mean(axis=0)
                axes = find_axes(
                    np.concatenate([x, t_x - target_x]),
                    np.concatenate([y, t_y - target_y]),
                    Extended(relation, match_x, match_y),
                    self.ridge,
                    axes.rank,
                )
                near_x, far_x = np.split(axes.coordinates[0], [len(x)])
                near_y, far_y = np.split(axes.coordinates[1], [len(y)])
        bridge = Bridge(View(axes.x, centre_x, target_x), View(axes.y, centre_y, target_y))
        z_x = bridge.image.apply(training.images, target=False)  # type: ignore[union-attr]
        z_y = bridge.text.apply(training.texts, target=False)
        out_x, out_y = axes.leave_one_out()
        z_x[rows], z_y[columns] = out_x[: len(rows)], out_y[: len(columns)]
        inputs = Inputs(
            z_x,
            z_y,
            None if match_x is None else out_x[len(rows) :].astype(np.float32),
            None if match_y is None else out_y[len(columns) :].astype(np.float32),
            None if match_x is None else _mass(match_x, rows, len(z_x)),
            None if match_y is None else _mass(match_y, columns, len(z_y)),
        )
        return bridge, inputs


def _centre(features: Matrix, count: Matrix) -> Matrix:
    """The mean over related pairs: an item counts as often as it is related."""
    return np.asarray((count.T @ features / count.sum()).ravel())


def _match(target: Matrix, own: Matrix, temperature: float) -> Matrix:
    """Each target item's soft assignment to auxiliary items, by cosine; rows sum to 1."""
    a = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), 1e-9)
    b = own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-9)
    logits = a @ b.T / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _mass(match: Matrix, rows: npt.NDArray[np.int64], n: int) -> Float:
    """Weights of auxiliary items in MMD: half even, half by the target mass matched with them.

    With other class shares in the target, even weights would ask for the wrong distribution.
    """
    weight = np.ones(n, dtype=np.float32)
    weight[rows] = 0.5 + 0.5 * match.mean(axis=0) * len(rows)
    return weight


def _plain_view(features: Features) -> View:
    centre = features.mean(axis=0, dtype=np.float64)
    size = max(float((features - centre).std()), 1e-9)
    return View(None, centre, centre, size)
