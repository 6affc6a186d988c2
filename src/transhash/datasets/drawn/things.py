"""Six still things: house, boat, car, cup, umbrella, star."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np

from transhash.datasets.drawn.shapes import (
    Drawing,
    Piece,
    arc,
    box,
    cloud,
    outline,
    smooth,
    spikes,
)

PAINTS = ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink")


def other(rng: Random, colour: str) -> str:
    """A paint that is not this one."""
    return rng.choice([paint for paint in PAINTS if paint != colour])


def house(rng: Random) -> Drawing:
    colour = rng.choice((*PAINTS, "white"))
    roof = rng.choice(("red-", "brown", "blue-", "purple-", "grey-"))
    w = rng.uniform(0.55, 0.85)
    top = rng.uniform(-0.3, 0.1)
    peak = top - rng.uniform(0.5, 0.75)
    parts = []
    side = rng.choice((-1, 1)) * w * 0.55
    if rng.random() < 0.75:
        parts.append(Piece(box(side - 0.1, peak + 0.02, side + 0.1, top), "brown-"))
        if rng.random() < 0.5:
            for i in range(3):
                puff = cloud(side + 0.1 * i, peak - 0.08 - 0.14 * i, 0.07 + 0.03 * i, 0.07, 5)
                parts.append(Piece(puff, "white-"))
    parts.append(Piece(box(-w, top, w, 0.9), colour))
    if rng.random() < 0.6:  # a gable
        corners = outline((-w - 0.16, top + 0.05), (0, peak), (w + 0.16, top + 0.05))
    else:
        corners = outline(
            (-w - 0.16, top + 0.05), (-w * 0.6, peak), (w * 0.6, peak), (w + 0.16, top + 0.05)
        )
    parts.append(Piece(corners, roof))
    door = rng.choice((-0.4, 0.0, 0.4)) * w
    tall = rng.uniform(0.42, 0.55)
    paint = other(rng, colour) + "-"
    if rng.random() < 0.5:
        parts.append(Piece(box(door - 0.15, 0.9 - tall, door + 0.15, 0.9), paint))
    else:
        arch = arc(door, 0.9 - tall + 0.12, 0.15, 0.15, 180, 360, 10).tolist()
        parts.append(Piece(outline(*arch, (door + 0.15, 0.9), (door - 0.15, 0.9)), paint))
    parts.append(Piece(arc(door + 0.09, 0.72, 0.025, 0.025, n=8), "yellow"))
    rows = [top + 0.28] if top > -0.12 else [top + 0.25, 0.5]
    for y in rows:
        for x in (-0.62 * w, 0.0, 0.62 * w):
            clear = abs(x - door) > 0.3 or y + 0.16 < 0.9 - tall
            if clear and (x != 0.0 or w > 0.7):
                parts.append(Piece(box(x - 0.12, y - 0.12, x + 0.12, y + 0.12), "yellow+"))
                parts.append(Piece(outline((x, y - 0.12), (x, y + 0.12)), "brown-", 0.03))
                parts.append(Piece(outline((x - 0.12, y), (x + 0.12, y)), "brown-", 0.03))
    if rng.random() < 0.3:
        parts.append(Piece(arc(0, (top + peak) / 2 + 0.08, 0.1, 0.1, n=14), "yellow+"))
    return Drawing(parts, colour)


def boat(rng: Random) -> Drawing:
    colour = rng.choice((*PAINTS, "white"))
    deck = rng.uniform(0.3, 0.42)
    parts = []
    if rng.random() < 0.7:  # under sail
        sail = rng.choice(("white", "white", "cream", other(rng, colour)))
        mast = rng.uniform(-0.15, 0.1)
        head = rng.uniform(-1, -0.85)
        parts.append(Piece(outline((mast, head), (mast, deck)), "brown-", 0.06))
        main = smooth(
            [
                (mast + 0.05, head + 0.05),
                (mast + 0.06, head + 0.06),
                (mast + 0.5, -0.25),
                (mast + 0.72, 0.18),
                (mast + 0.7, 0.2),
                (mast + 0.05, 0.2),
            ],
            rounds=2,
        )
        parts.append(Piece(main, sail))
        if rng.random() < 0.75:
            jib = outline((mast - 0.05, head + 0.2), (mast - 0.05, 0.2), (-0.75, 0.2))
            parts.append(Piece(jib, other(rng, colour)))
        if rng.random() < 0.6:
            flag = outline((mast, head - 0.02), (mast + 0.24, head + 0.07), (mast, head + 0.16))
            parts.append(Piece(flag, "red"))
    else:  # under steam
        parts.append(Piece(box(-0.5, -0.08, 0.45, deck), "white"))
        parts.append(Piece(box(-0.38, -0.4, 0.2, -0.08), "cream"))
        parts.append(Piece(box(-0.2, -0.82, 0.02, -0.4), other(rng, colour)))
        parts.append(Piece(box(-0.2, -0.7, 0.02, -0.6), "black"))
        for i in range(3):
            puff = cloud(0.05 + 0.2 * i, -0.9 - 0.05 * i, 0.12 + 0.02 * i, 0.1, 6)
            parts.append(Piece(puff, "grey+"))
        for x in (-0.35, -0.05, 0.25):
            parts.append(Piece(arc(x, 0.1, 0.07, 0.07, n=12), "blue"))
    bow = rng.uniform(0.85, 1)
    hull = smooth(
        [(-0.92, deck), (bow, deck - 0.06), (0.66, 0.8), (0.3, 0.84), (-0.5, 0.84), (-0.76, 0.7)],
        rounds=2,
    )
    parts.append(Piece(hull, colour))
    parts.append(Piece(outline((-0.84, deck + 0.14), (0.82, deck + 0.11)), colour + "+", 0.06))
    if rng.random() < 0.8:
        crests = [(-1.05 + 0.3 * i, 0.85 + 0.09 * (i % 2)) for i in range(8)]
        wave = smooth(crests, closed=False)
        parts.append(Piece(wave, "blue", 0.07))
    return Drawing(parts, colour)


def car(rng: Random) -> Drawing:
    colour = rng.choice(PAINTS)
    kind = rng.choice(("saloon", "beetle", "van"))
    floor = 0.5
    parts = []
    if kind == "saloon":
        cabin = [(-0.6, 0.05), (-0.42, -0.38), (-0.3, -0.42), (0.22, -0.42), (0.34, -0.38)]
        parts.append(Piece(smooth([*cabin, (0.62, 0.05)], rounds=1), colour))
        hood = [(-0.98, 0.05), (-0.9, 0), (0.7, 0), (0.94, 0.08), (1, 0.2), (1, floor)]
        parts.append(Piece(smooth([*hood, (-1, floor)], rounds=1), colour))
        panes = [[(-0.48, 0), (-0.34, -0.32), (-0.06, -0.32), (-0.06, 0)]]
        panes.append([(0.04, 0), (0.04, -0.32), (0.22, -0.32), (0.46, 0)])
    elif kind == "beetle":
        shell = arc(-0.05, 0.45, 0.85, 0.95, 180, 360, 22).tolist()
        parts.append(Piece(outline(*shell, (0.98, 0.45), (0.98, floor), (-0.98, floor)), colour))
        parts.append(Piece(arc(0.68, 0.45, 0.32, 0.32, 180, 360, 12), colour))
        panes = [[(-0.55, 0), (-0.4, -0.22), (-0.1, -0.36), (-0.1, 0)]]
        panes.append([(0, 0), (0, -0.36), (0.3, -0.22), (0.46, 0)])
    else:
        side = [(-1, -0.48), (0.5, -0.5), (0.78, -0.05), (0.98, 0.05), (1, floor), (-1, floor)]
        parts.append(Piece(smooth(side, rounds=1), colour))
        panes = [[(-0.82, 0), (-0.82, -0.3), (-0.48, -0.3), (-0.48, 0)]]
        panes.append([(-0.36, 0), (-0.36, -0.3), (0.0, -0.3), (0.0, 0)])
        panes.append([(0.12, 0), (0.12, -0.32), (0.4, -0.32), (0.58, 0)])
    parts += [Piece(outline(*pane), "blue+") for pane in panes]
    if rng.random() < 0.6:
        parts.append(Piece(outline((-0.95, 0.25), (0.95, 0.25)), colour + "-", 0.05))
    parts.append(Piece(arc(0.92, 0.2, 0.07, 0.08, n=12), "yellow+"))
    parts.append(Piece(box(-1, 0.12, -0.9, 0.26), "red-"))
    r = rng.uniform(0.22, 0.28)
    for x in (-0.55, 0.56):
        parts.append(Piece(arc(x, floor + 0.03, r, r), "black"))
        parts.append(Piece(arc(x, floor + 0.03, r * 0.5, r * 0.5, n=16), "grey+"))
    if rng.random() < 0.25:
        parts.append(Piece(box(-0.35, -0.62, 0.25, -0.5), "brown"))
    return Drawing(parts, colour)


def cup(rng: Random) -> Drawing:
    colour = rng.choice((*PAINTS, "white"))
    top, bottom = rng.uniform(0.5, 0.62), rng.uniform(0.32, 0.55)
    tall = rng.uniform(0.3, 0.5)
    parts = []
    if rng.random() < 0.6:
        parts.append(Piece(arc(0, 0.72, 0.9, 0.15), other(rng, colour) + "+"))
        parts.append(Piece(arc(0, 0.7, 0.5, 0.07), "grey"))
    handle = arc(top - 0.02, 0.72 - tall * 0.95, 0.34, tall * 0.55, -95, 95, 16)
    parts.append(Piece(handle, colour + "-", 0.11))
    rim = 0.68 - 2 * tall
    wall = [(-top, rim), (-top + 0.03, 0.3), (-bottom, 0.72), (bottom, 0.72), (top - 0.03, 0.3)]
    body = smooth([*wall[1:], (top, rim), wall[0]], rounds=2)
    parts.append(Piece(body, colour))
    motif = rng.random()
    if motif < 0.3:
        band = box(-top * 0.93, rim + tall * 0.9, top * 0.93, rim + tall * 1.15)
        parts.append(Piece(band, other(rng, colour)))
    elif motif < 0.6:
        paint = other(rng, colour) + "+"
        for x in (-0.3, 0.0, 0.3):
            parts.append(Piece(arc(x, rim + tall * (0.95 + abs(x)), 0.07, 0.07, n=12), paint))
    elif motif < 0.75:
        y = rim + tall
        heart = [(0, y - 0.1), (0.16, y - 0.24), (0.28, y - 0.02), (0, y + 0.26)]
        heart += [(-0.28, y - 0.02), (-0.16, y - 0.24)]
        parts.append(Piece(smooth(heart), "red" if colour != "red" else "white"))
    parts.append(Piece(arc(0, rim, top, 0.13), colour + "+"))
    parts.append(Piece(arc(0, rim + 0.02, top * 0.86, 0.09), "brown-"))
    if rng.random() < 0.75:
        for x in (-0.22, 0.06, 0.32)[: rng.randint(2, 3)]:
            path = [(x + 0.07 * (-1) ** i, rim - 0.12 - 0.12 * i) for i in range(5)]
            parts.append(Piece(smooth(path, closed=False, rounds=2), "white-", 0.05))
    return Drawing(parts, colour)


def umbrella(rng: Random) -> Drawing:
    colour = rng.choice(PAINTS)
    second = rng.choice((other(rng, colour), colour + "-", "white"))
    n = rng.choice((4, 5, 6))
    rim, high = rng.uniform(-0.1, 0.02), rng.uniform(0.75, 0.95)
    edge = [0.95 * (2 * i / n - 1) for i in range(n + 1)]
    parts = [Piece(outline((0, rim - high - 0.14), (0, 0.75)), "brown-", 0.07)]
    parts.append(Piece(arc(0.15, 0.75, 0.15, 0.18, 180, 10, 12), "brown-", 0.08))
    dome = arc(0, rim, 0.95, high, 180, 360, 33)
    for i, (near, far) in enumerate(pairwise(edge)):
        rib = arc(0, rim, max(abs(near), 0.01), high, 180 if near < 0 else 360, 270, 10)
        back = arc(0, rim, max(abs(far), 0.01), high, 270, 180 if far < 0 else 360, 10)
        scallop = arc((near + far) / 2, rim, 0.95 / n, 0.1, 0, -180, 8)
        panel = np.concatenate([rib, back, scallop])
        parts.append(Piece(panel, colour if i % 2 == 0 else second))
    parts.append(Piece(dome, colour + "-", 0.04))
    if rng.random() < 0.35:
        for _ in range(7):
            x, y = rng.uniform(-1, 1), rng.uniform(0.15, 0.9)
            if abs(x) > 0.2:
                parts.append(Piece(outline((x, y), (x - 0.04, y + 0.16)), "blue", 0.05))
    return Drawing(parts, colour)


def star(rng: Random) -> Drawing:
    colour = rng.choice(("yellow", "yellow", "orange", "white", "pink", "teal", "red"))
    n = rng.choice((5, 5, 5, 5, 6))
    inner = rng.uniform(0.4, 0.5) if n == 5 else 0.52
    points = spikes(0, 0, 1, inner, n)
    parts = []
    if rng.random() < 0.25:  # a shooting star trails three streaks
        for i in (-1, 0, 1):
            streak = outline((-0.45, 0.3 + 0.3 * i), (-1.35 + 0.2 * abs(i), 0.75 + 0.36 * i))
            parts.append(Piece(streak, colour + "+", 0.09))
    parts.append(Piece(points, colour + "-"))
    style = rng.random()
    if style < 0.45:
        parts.append(Piece(points * 0.78, colour))
    else:  # facets: one half of every arm lies in shade
        for i in range(0, 2 * n, 2):
            facet = [(0.0, 0.0), tuple(points[i]), tuple(points[(i + 1) % (2 * n)])]
            parts.append(Piece(outline(*facet), colour + "+"))
    if style < 0.2:
        parts += [Piece(arc(x, -0.08, 0.06, 0.08, n=12), "black") for x in (-0.17, 0.17)]
        parts.append(Piece(arc(0, 0.04, 0.18, 0.16, 20, 160, 9), "black", 0.05))
    return Drawing(parts, colour)
