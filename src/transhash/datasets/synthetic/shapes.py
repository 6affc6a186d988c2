"""Shapes in a box from -1 to 1 (y points down), from which both styles draw.

An object is described once, as pieces, so the two domains differ in style, not in content.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Outline = NDArray[np.float64]  # (n, 2)


class Piece(NamedTuple):
    """A filled outline (width 0) or a stroke. A tone ending in - or + is darker or lighter."""

    points: Outline
    tone: str
    width: float = 0.0


class Drawing(NamedTuple):
    """The pieces of an object, back to front, and its color in captions."""

    parts: list[Piece]
    color: str


def outline(*corners: tuple[float, float]) -> Outline:
    return np.array(corners, dtype=np.float64)


def box(left: float, top: float, right: float, bottom: float) -> Outline:
    return outline((left, top), (right, top), (right, bottom), (left, bottom))


def arc(
    x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360, n: int = 26
) -> Outline:
    """Return points on an ellipse from start to stop degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, stop, n, endpoint=abs(stop - start) < 360))
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


def smooth(corners: Sequence[tuple[float, float]], closed: bool = True, rounds: int = 3) -> Outline:
    """Round the corners by Chaikin's corner cutting."""
    points = np.array(corners, dtype=np.float64)
    for _ in range(rounds):
        after = np.roll(points, -1, axis=0)
        cut = np.stack([0.75 * points + 0.25 * after, 0.25 * points + 0.75 * after], axis=1)
        cut = cut.reshape(-1, 2)
        points = cut if closed else np.concatenate([points[:1], cut[:-2], points[-1:]])
    return points


def cloud(x: float, y: float, rx: float, ry: float, bumps: int, depth: float = 0.13) -> Outline:
    """Return an ellipse with a scalloped rim, for foliage, smoke and clouds."""
    angles = np.linspace(0, 2 * math.pi, bumps * 7, endpoint=False)
    reach = 1 - depth + depth * 2 * np.abs(np.sin(bumps * angles / 2))
    return np.stack([x + rx * reach * np.cos(angles), y + ry * reach * np.sin(angles)], axis=1)


def spikes(x: float, y: float, outer: float, inner: float, n: int, turn: float = 0) -> Outline:
    """Return a star with n points."""
    angles = np.radians(turn - 90) + np.arange(2 * n) * math.pi / n
    reach = np.where(np.arange(2 * n) % 2 == 0, outer, inner)
    return np.stack([x + reach * np.cos(angles), y + reach * np.sin(angles)], axis=1)


def rotate(points: Outline, degrees: float, x: float = 0, y: float = 0) -> Outline:
    """Rotate points clockwise about (x, y)."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    center = np.array([x, y])
    rotated: Outline = (points - center) @ np.array([[c, s], [-s, c]]) + center
    return rotated


def transform(
    parts: list[Piece],
    x: float,
    y: float,
    scale: float,
    angle: float = 0,
    flip: bool = False,
    stretch: float = 1,
) -> list[Piece]:
    """Mirror, stretch, scale and rotate pieces, and move them to pixel (x, y)."""
    size = np.array([-scale * stretch if flip else scale * stretch, scale])
    center = np.array([x, y])
    return [
        Piece(rotate(part.points * size, angle) + center, part.tone, part.width * scale)
        for part in parts
    ]
