"""Shapes in a box from -1 to 1 (y points down), named by colour, drawn later by either hand.

A thing is described once, as parts; the poster and the crayon then draw the same parts in
their own ways. So the two domains differ in style, not in what they show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Outline = NDArray[np.float64]  # (n, 2)


class Piece(NamedTuple):
    """One filled outline (width 0) or one stroke; a tone ending in - or + is darker or lighter."""

    points: Outline
    tone: str
    width: float = 0.0


class Drawing(NamedTuple):
    """The parts of one thing, back to front, and the colour a caption would name."""

    parts: list[Piece]
    colour: str


def outline(*corners: tuple[float, float]) -> Outline:
    """The polygon through the corners."""
    return np.array(corners, dtype=np.float64)


def box(left: float, top: float, right: float, bottom: float) -> Outline:
    return outline((left, top), (right, top), (right, bottom), (left, bottom))


def arc(
    x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360, n: int = 26
) -> Outline:
    """Points on an ellipse from start to stop degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, stop, n, endpoint=abs(stop - start) < 360))
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


def smooth(corners: Sequence[tuple[float, float]], closed: bool = True, rounds: int = 3) -> Outline:
    """The corners rounded off by Chaikin's corner cutting."""
    points = np.array(corners, dtype=np.float64)
    for _ in range(rounds):
        after = np.roll(points, -1, axis=0)
        cut = np.stack([0.75 * points + 0.25 * after, 0.25 * points + 0.75 * after], axis=1)
        cut = cut.reshape(-1, 2)
        points = cut if closed else np.concatenate([points[:1], cut[:-2], points[-1:]])
    return points


def cloud(x: float, y: float, rx: float, ry: float, bumps: int, depth: float = 0.13) -> Outline:
    """An ellipse with a scalloped rim: foliage, smoke, clouds."""
    angles = np.linspace(0, 2 * math.pi, bumps * 7, endpoint=False)
    reach = 1 - depth + depth * 2 * np.abs(np.sin(bumps * angles / 2))
    return np.stack([x + rx * reach * np.cos(angles), y + ry * reach * np.sin(angles)], axis=1)


def spikes(x: float, y: float, outer: float, inner: float, n: int, turn: float = 0) -> Outline:
    """A star with n points."""
    angles = np.radians(turn - 90) + np.arange(2 * n) * math.pi / n
    reach = np.where(np.arange(2 * n) % 2 == 0, outer, inner)
    return np.stack([x + reach * np.cos(angles), y + reach * np.sin(angles)], axis=1)


def turned(points: Outline, degrees: float, x: float = 0, y: float = 0) -> Outline:
    """The points turned clockwise about (x, y)."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    centre = np.array([x, y])
    spun: Outline = (points - centre) @ np.array([[c, s], [-s, c]]) + centre
    return spun


def placed(
    parts: list[Piece],
    x: float,
    y: float,
    scale: float,
    angle: float = 0,
    flip: bool = False,
    stretch: float = 1,
) -> list[Piece]:
    """The parts moved to pixel (x, y), scaled, turned, perhaps mirrored or squeezed sideways."""
    size = np.array([-scale * stretch if flip else scale * stretch, scale])
    centre = np.array([x, y])
    return [
        Piece(turned(part.points * size, angle) + centre, part.tone, part.width * scale)
        for part in parts
    ]
