"""The twelve objects of the synthetic data set as drawings, one function each."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import numpy as np

from transhash.datasets.synthetic.shapes import (
    Drawing,
    Piece,
    arc,
    box,
    cloud,
    outline,
    rotate,
    smooth,
    spikes,
)

PAINTS = ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink")


def different_color(rng: Random, color: str) -> str:
    return rng.choice([paint for paint in PAINTS if paint != color])


def house(rng: Random) -> Drawing:
    color = rng.choice((*PAINTS, "white"))
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
    parts.append(Piece(box(-w, top, w, 0.9), color))
    if rng.random() < 0.6:  # a gable
        corners = outline((-w - 0.16, top + 0.05), (0, peak), (w + 0.16, top + 0.05))
    else:
        corners = outline(
            (-w - 0.16, top + 0.05), (-w * 0.6, peak), (w * 0.6, peak), (w + 0.16, top + 0.05)
        )
    parts.append(Piece(corners, roof))
    door = rng.choice((-0.4, 0.0, 0.4)) * w
    tall = rng.uniform(0.42, 0.55)
    paint = different_color(rng, color) + "-"
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
    return Drawing(parts, color)


def boat(rng: Random) -> Drawing:
    color = rng.choice((*PAINTS, "white"))
    deck = rng.uniform(0.3, 0.42)
    parts = []
    if rng.random() < 0.7:  # under sail
        sail = rng.choice(("white", "white", "cream", different_color(rng, color)))
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
            parts.append(Piece(jib, different_color(rng, color)))
        if rng.random() < 0.6:
            flag = outline((mast, head - 0.02), (mast + 0.24, head + 0.07), (mast, head + 0.16))
            parts.append(Piece(flag, "red"))
    else:  # under steam
        parts.append(Piece(box(-0.5, -0.08, 0.45, deck), "white"))
        parts.append(Piece(box(-0.38, -0.4, 0.2, -0.08), "cream"))
        parts.append(Piece(box(-0.2, -0.82, 0.02, -0.4), different_color(rng, color)))
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
    parts.append(Piece(hull, color))
    parts.append(Piece(outline((-0.84, deck + 0.14), (0.82, deck + 0.11)), color + "+", 0.06))
    if rng.random() < 0.8:
        crests = [(-1.05 + 0.3 * i, 0.85 + 0.09 * (i % 2)) for i in range(8)]
        wave = smooth(crests, closed=False)
        parts.append(Piece(wave, "blue", 0.07))
    return Drawing(parts, color)


def car(rng: Random) -> Drawing:
    color = rng.choice(PAINTS)
    kind = rng.choice(("saloon", "beetle", "van"))
    floor = 0.5
    parts = []
    if kind == "saloon":
        cabin = [(-0.6, 0.05), (-0.42, -0.38), (-0.3, -0.42), (0.22, -0.42), (0.34, -0.38)]
        parts.append(Piece(smooth([*cabin, (0.62, 0.05)], rounds=1), color))
        hood = [(-0.98, 0.05), (-0.9, 0), (0.7, 0), (0.94, 0.08), (1, 0.2), (1, floor)]
        parts.append(Piece(smooth([*hood, (-1, floor)], rounds=1), color))
        panes = [[(-0.48, 0), (-0.34, -0.32), (-0.06, -0.32), (-0.06, 0)]]
        panes.append([(0.04, 0), (0.04, -0.32), (0.22, -0.32), (0.46, 0)])
    elif kind == "beetle":
        shell = arc(-0.05, 0.45, 0.85, 0.95, 180, 360, 22).tolist()
        parts.append(Piece(outline(*shell, (0.98, 0.45), (0.98, floor), (-0.98, floor)), color))
        parts.append(Piece(arc(0.68, 0.45, 0.32, 0.32, 180, 360, 12), color))
        panes = [[(-0.55, 0), (-0.4, -0.22), (-0.1, -0.36), (-0.1, 0)]]
        panes.append([(0, 0), (0, -0.36), (0.3, -0.22), (0.46, 0)])
    else:
        side = [(-1, -0.48), (0.5, -0.5), (0.78, -0.05), (0.98, 0.05), (1, floor), (-1, floor)]
        parts.append(Piece(smooth(side, rounds=1), color))
        panes = [[(-0.82, 0), (-0.82, -0.3), (-0.48, -0.3), (-0.48, 0)]]
        panes.append([(-0.36, 0), (-0.36, -0.3), (0.0, -0.3), (0.0, 0)])
        panes.append([(0.12, 0), (0.12, -0.32), (0.4, -0.32), (0.58, 0)])
    parts += [Piece(outline(*pane), "blue+") for pane in panes]
    if rng.random() < 0.6:
        parts.append(Piece(outline((-0.95, 0.25), (0.95, 0.25)), color + "-", 0.05))
    parts.append(Piece(arc(0.92, 0.2, 0.07, 0.08, n=12), "yellow+"))
    parts.append(Piece(box(-1, 0.12, -0.9, 0.26), "red-"))
    r = rng.uniform(0.22, 0.28)
    for x in (-0.55, 0.56):
        parts.append(Piece(arc(x, floor + 0.03, r, r), "black"))
        parts.append(Piece(arc(x, floor + 0.03, r * 0.5, r * 0.5, n=16), "grey+"))
    if rng.random() < 0.25:
        parts.append(Piece(box(-0.35, -0.62, 0.25, -0.5), "brown"))
    return Drawing(parts, color)


def cup(rng: Random) -> Drawing:
    color = rng.choice((*PAINTS, "white"))
    top, bottom = rng.uniform(0.5, 0.62), rng.uniform(0.32, 0.55)
    tall = rng.uniform(0.3, 0.5)
    parts = []
    if rng.random() < 0.6:
        parts.append(Piece(arc(0, 0.72, 0.9, 0.15), different_color(rng, color) + "+"))
        parts.append(Piece(arc(0, 0.7, 0.5, 0.07), "grey"))
    handle = arc(top - 0.02, 0.72 - tall * 0.95, 0.34, tall * 0.55, -95, 95, 16)
    parts.append(Piece(handle, color + "-", 0.11))
    rim = 0.68 - 2 * tall
    wall = [(-top, rim), (-top + 0.03, 0.3), (-bottom, 0.72), (bottom, 0.72), (top - 0.03, 0.3)]
    body = smooth([*wall[1:], (top, rim), wall[0]], rounds=2)
    parts.append(Piece(body, color))
    motif = rng.random()
    if motif < 0.3:
        band = box(-top * 0.93, rim + tall * 0.9, top * 0.93, rim + tall * 1.15)
        parts.append(Piece(band, different_color(rng, color)))
    elif motif < 0.6:
        paint = different_color(rng, color) + "+"
        for x in (-0.3, 0.0, 0.3):
            parts.append(Piece(arc(x, rim + tall * (0.95 + abs(x)), 0.07, 0.07, n=12), paint))
    elif motif < 0.75:
        y = rim + tall
        heart = [(0, y - 0.1), (0.16, y - 0.24), (0.28, y - 0.02), (0, y + 0.26)]
        heart += [(-0.28, y - 0.02), (-0.16, y - 0.24)]
        parts.append(Piece(smooth(heart), "red" if color != "red" else "white"))
    parts.append(Piece(arc(0, rim, top, 0.13), color + "+"))
    parts.append(Piece(arc(0, rim + 0.02, top * 0.86, 0.09), "brown-"))
    if rng.random() < 0.75:
        for x in (-0.22, 0.06, 0.32)[: rng.randint(2, 3)]:
            path = [(x + 0.07 * (-1) ** i, rim - 0.12 - 0.12 * i) for i in range(5)]
            parts.append(Piece(smooth(path, closed=False, rounds=2), "white-", 0.05))
    return Drawing(parts, color)


def umbrella(rng: Random) -> Drawing:
    color = rng.choice(PAINTS)
    second = rng.choice((different_color(rng, color), color + "-", "white"))
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
        parts.append(Piece(panel, color if i % 2 == 0 else second))
    parts.append(Piece(dome, color + "-", 0.04))
    if rng.random() < 0.35:
        for _ in range(7):
            x, y = rng.uniform(-1, 1), rng.uniform(0.15, 0.9)
            if abs(x) > 0.2:
                parts.append(Piece(outline((x, y), (x - 0.04, y + 0.16)), "blue", 0.05))
    return Drawing(parts, color)


def star(rng: Random) -> Drawing:
    color = rng.choice(("yellow", "yellow", "orange", "white", "pink", "teal", "red"))
    n = rng.choice((5, 5, 5, 5, 6))
    inner = rng.uniform(0.4, 0.5) if n == 5 else 0.52
    points = spikes(0, 0, 1, inner, n)
    parts = []
    if rng.random() < 0.25:  # a shooting star trails three streaks
        for i in (-1, 0, 1):
            streak = outline((-0.45, 0.3 + 0.3 * i), (-1.35 + 0.2 * abs(i), 0.75 + 0.36 * i))
            parts.append(Piece(streak, color + "+", 0.09))
    parts.append(Piece(points, color + "-"))
    style = rng.random()
    if style < 0.45:
        parts.append(Piece(points * 0.78, color))
    else:  # facets: one half of every arm lies in shade
        for i in range(0, 2 * n, 2):
            facet = [(0.0, 0.0), tuple(points[i]), tuple(points[(i + 1) % (2 * n)])]
            parts.append(Piece(outline(*facet), color + "+"))
    if style < 0.2:
        parts += [Piece(arc(x, -0.08, 0.06, 0.08, n=12), "black") for x in (-0.17, 0.17)]
        parts.append(Piece(arc(0, 0.04, 0.18, 0.16, 20, 160, 9), "black", 0.05))
    return Drawing(parts, color)


def tree(rng: Random) -> Drawing:
    color = rng.choice(("green", "green", "green", "teal", "orange", "pink"))
    bark = rng.choice(("brown", "brown-"))
    t = rng.uniform(0.09, 0.15)
    if rng.random() < 0.4:  # a fir
        parts = [Piece(outline((-t, 0.4), (t, 0.4), (t * 1.2, 1), (-t * 1.2, 1)), bark)]
        tiers = rng.choice((3, 4))
        for i in range(tiers):
            w = rng.uniform(0.6, 0.75) * (1 - i / (tiers + 1))
            low = 0.6 - i * 1.15 / tiers
            tier = outline((-w, low), (0, low - 0.75), (w, low), (0, low + 0.07))
            parts.append(Piece(tier, color if i % 2 == 0 else color + "-"))
        return Drawing(parts, color)
    trunk = [(-t, -0.2), (t, -0.2), (t, 0.7), (t * 2.2, 1), (-t * 2.2, 1), (-t, 0.7)]
    parts = [Piece(outline(*trunk), bark)]
    parts.append(Piece(outline((0, 0.35), (0.3, 0.02)), bark, 0.08))
    w, h = rng.uniform(0.6, 0.85), rng.uniform(0.55, 0.7)
    parts.append(Piece(cloud(0, -0.33, w, h, rng.randint(7, 10)), color))
    if rng.random() < 0.5:  # light on one side
        parts.append(Piece(cloud(-0.2, -0.5, w * 0.5, h * 0.42, 6), color + "+"))
    if rng.random() < 0.4:
        fruit = rng.choice(("red", "yellow", "orange" if color != "orange" else "red"))
        for _ in range(rng.randint(4, 7)):
            angle, reach = rng.uniform(0, 2 * math.pi), rng.uniform(0.25, 0.75)
            x, y = reach * w * math.cos(angle), -0.33 + reach * h * math.sin(angle)
            parts.append(Piece(arc(x, y, 0.075, 0.075, n=12), fruit))
    return Drawing(parts, color)


def flower(rng: Random) -> Drawing:
    color = rng.choice(("red", "orange", "yellow", "blue", "purple", "pink", "white"))
    bend = rng.uniform(-0.2, 0.2)
    head = -0.38
    stem = smooth([(0, head), (bend, 0.1), (bend / 2, 0.6), (0, 1)], closed=False)
    parts = [Piece(stem, "green-", 0.08)]
    for side in rng.choice(((-1, 1), (1,), (-1, 1))):
        y = rng.uniform(0.45, 0.7)
        leaf = [(bend / 2, y), (side * 0.22, y - 0.3), (side * 0.62, y - 0.34), (side * 0.4, y)]
        parts.append(Piece(smooth(leaf), "green"))
    if rng.random() < 0.3:  # a tulip
        w = rng.uniform(0.36, 0.46)
        bowl = [(-w, -0.85), (-w * 0.5, -0.6), (0, -0.95), (w * 0.5, -0.6), (w, -0.85)]
        bowl += [(w * 1.1, -0.35), (w * 0.5, -0.08), (-w * 0.5, -0.08), (-w * 1.1, -0.35)]
        parts.append(Piece(smooth(bowl, rounds=1), color))
        petal = [(0, -0.95), (w * 0.6, -0.5), (0, -0.08), (-w * 0.6, -0.5)]
        parts.append(Piece(smooth(petal, rounds=2), color + "+"))
        return Drawing(parts, color)
    n = rng.randint(5, 10)
    wide = 0.95 / n + rng.uniform(0.02, 0.06)
    turn = rng.uniform(0, 360)
    for i in range(n):
        blade = arc(0.36, head, 0.25, wide, n=16)
        shade = color if i % 2 == 0 or rng.random() < 0.5 else color + "+"
        parts.append(Piece(rotate(blade, turn + 360 * i / n, 0, head), shade))
    middle = rng.choice(("yellow", "brown", "orange")) if color != "yellow" else "brown"
    r = rng.uniform(0.16, 0.22)
    parts.append(Piece(arc(0, head, r, r, n=20), middle))
    parts.append(Piece(arc(0, head, r * 0.5, r * 0.5, n=12), middle + "-"))
    return Drawing(parts, color)


def sun(rng: Random) -> Drawing:
    color = rng.choice(("yellow", "yellow", "orange", "red"))
    r = rng.uniform(0.46, 0.58)
    parts = []
    style = rng.choice(("spikes", "bars", "lines", "rings"))
    n = rng.randint(9, 15)
    turn = rng.uniform(0, 40)
    if style == "spikes":
        rim = "yellow" if color == "orange" else "orange"
        parts.append(Piece(spikes(0, 0, 1, r * 1.05, n, turn), rim))
    elif style == "bars":
        for i in range(n):
            angle = turn + 360 * i / n
            far = 1 if i % 2 == 0 else 0.86
            ray = outline((r + 0.08, -0.09), (far, 0), (r + 0.08, 0.09))
            parts.append(Piece(rotate(ray, angle), color))
    elif style == "lines":
        for i in range(n):
            far = 1 if i % 2 == 0 else 0.84
            ray = outline((r + 0.1, 0), (far, 0))
            parts.append(Piece(rotate(ray, turn + 360 * i / n), color, 0.09))
    else:
        parts.append(Piece(cloud(0, 0, 0.92, 0.92, n, 0.1), color + "+"))
    parts.append(Piece(arc(0, 0, r, r, n=36), color))
    if rng.random() < 0.55:
        for x in (-0.18, 0.18):
            parts.append(Piece(arc(x, -0.08, 0.05, 0.07, n=12), "black"))
            parts.append(Piece(arc(x * 1.6, 0.1, 0.07, 0.05, n=12), "pink"))
        parts.append(Piece(arc(0, 0.05, 0.2, 0.18, 20, 160, 10), "black", 0.05))
    else:
        parts.append(Piece(arc(0, 0, r * 0.72, r * 0.72, n=28), color + "+"))
    return Drawing(parts, color)


def fish(rng: Random) -> Drawing:
    color = rng.choice(PAINTS)
    second = different_color(rng, color)
    h = rng.uniform(0.34, 0.56)
    parts = []
    spread = rng.uniform(0.32, 0.48)
    tail = [(-0.42, 0), (-0.98, -spread), (-0.85, 0), (-0.98, spread)]
    parts.append(Piece(outline(*tail), second))
    fin = smooth([(-0.25, -h * 0.7), (-0.12, -h - 0.26), (0.4, -h - 0.1), (0.4, -h * 0.7)])
    parts.append(Piece(fin, second))
    parts.append(Piece(smooth([(-0.1, h * 0.7), (-0.15, h + 0.2), (0.25, h * 0.8)]), second))
    body = [(-0.6, 0), (-0.2, -h * 1.05), (0.4, -h * 1.2), (0.95, -h * 0.25)]
    body += [(0.95, h * 0.25), (0.4, h * 1.2), (-0.2, h * 1.05)]
    parts.append(Piece(smooth(body), color))
    marking = rng.random()
    if marking < 0.45:
        for x in (-0.22, 0.02, 0.26)[: rng.randint(2, 3)]:
            reach = h * (0.78 - 0.5 * abs(x - 0.1))
            stripe = smooth([(x, -reach), (x + 0.1, 0), (x, reach)], closed=False, rounds=2)
            parts.append(Piece(stripe, second + "+", 0.09))
    elif marking < 0.8:  # scales
        for x in (-0.2, 0.02, 0.24):
            for y in (-0.4 * h, 0, 0.4 * h):
                parts.append(Piece(arc(x, y, 0.08, 0.09, -80, 80, 7), color + "-", 0.04))
    parts.append(Piece(arc(0.3, 0, 0.14, h * 0.62, -65, 65, 9), color + "-", 0.05))
    parts.append(Piece(arc(0.64, -h * 0.25, 0.1, 0.1, n=16), "white"))
    parts.append(Piece(arc(0.66, -h * 0.25, 0.05, 0.05, n=12), "black"))
    if rng.random() < 0.5:
        for i in range(rng.randint(2, 3)):
            r = 0.05 + 0.02 * i
            bubble = arc(0.98 + 0.06 * (-1) ** i, -0.3 - 0.22 * i, r, r, n=14)
            parts.append(Piece(bubble, "blue+"))
    return Drawing(parts, color)


def bird(rng: Random) -> Drawing:
    color = rng.choice((*PAINTS, "brown"))
    breast = rng.choice((color + "+", "cream", "orange+"))
    beak = rng.choice(("orange", "yellow")) if color not in ("orange", "yellow") else "red"
    flying = rng.random() < 0.35
    parts = []
    if not flying:
        for x in (-0.08, 0.12):
            parts.append(Piece(outline((x, 0.4), (x, 0.8), (x + 0.13, 0.8)), "orange-", 0.05))
        if rng.random() < 0.5:  # on a twig
            twig = smooth([(-0.9, 0.9), (-0.2, 0.82), (0.4, 0.86), (0.95, 0.78)], closed=False)
            parts.append(Piece(twig, "brown", 0.09))
            leaf = smooth([(-0.6, 0.86), (-0.75, 0.66), (-0.5, 0.66)])
            parts.append(Piece(leaf, "green"))
    lift = rng.uniform(-0.15, 0.25)
    tail = [(-0.4, 0.02), (-1, -0.12 + lift), (-1, 0.12 + lift), (-0.4, 0.3)]
    parts.append(Piece(outline(*tail), color + "-"))
    if flying:
        far = outline((-0.1, -0.1), (0.06, -0.7), (0.3, -1.05), (0.36, -0.6), (0.25, -0.1))
        parts.append(Piece(far, color + "-"))
    plump = rng.uniform(0.36, 0.5)
    body = [(-0.65, 0.1), (-0.3, -0.2), (0.2, -0.4), (0.6, -0.2)]
    body += [(0.6, plump * 0.6), (0.15, plump + 0.12), (-0.35, plump)]
    parts.append(Piece(smooth(body), color))
    front = [(0.1, plump), (0.5, plump * 0.5), (0.5, -0.05), (0.15, 0.15)]
    parts.append(Piece(smooth(front), breast))
    r = rng.uniform(0.25, 0.31)
    head = (0.5, -0.38)
    open_beak = rng.random() < 0.3
    parts.append(Piece(outline((0.7, -0.48), (1.02, -0.4 - 0.05 * open_beak), (0.7, -0.34)), beak))
    if open_beak:
        parts.append(Piece(outline((0.68, -0.36), (0.96, -0.24), (0.66, -0.26)), beak + "-"))
    parts.append(Piece(arc(*head, r, r), color))
    if rng.random() < 0.3:
        crest = [(0.35, -0.6), (0.25, -0.9), (0.45, -0.72), (0.48, -0.95), (0.6, -0.6)]
        parts.append(Piece(outline(*crest), color + "-"))
    parts.append(Piece(arc(0.58, -0.43, 0.065, 0.065, n=14), "white"))
    parts.append(Piece(arc(0.59, -0.43, 0.035, 0.035, n=10), "black"))
    shade = rng.choice((color + "-", different_color(rng, color)))
    if flying:
        near = [(0.25, 0.05), (0.1, -0.55), (-0.4, -1.1), (-0.38, -0.85), (-0.58, -0.82)]
        near += [(-0.5, -0.6), (-0.66, -0.5), (-0.5, -0.35), (-0.58, -0.2), (-0.3, 0.1)]
        parts.append(Piece(outline(*near), shade))
    else:
        wing = [(0.25, -0.1), (0.15, 0.3), (-0.35, 0.3), (-0.8, 0.12), (-0.3, -0.08)]
        parts.append(Piece(smooth(wing), shade))
        for x in (-0.3, -0.1, 0.1):  # feathers
            parts.append(Piece(arc(x, 0.05, 0.1, 0.13, 20, 160, 7), color, 0.04))
    return Drawing(parts, color)


def cat(rng: Random) -> Drawing:
    color = rng.choice(("orange", "grey", "black", "brown", "white", "cream"))
    inner = "pink"
    dark = "grey-" if color == "black" else color + "-"
    ink = "grey+" if color == "black" else "black"
    big = rng.random() < 0.35  # only the face, else the sitting cat
    parts = []
    hx, hy, s = 0.0, 0.05, 1.35
    if not big:
        side = rng.choice((-1, 1))
        tail = [(side * 0.3, 0.82), (side * 0.85, 0.9), (side * 0.95, 0.4), (side * 0.7, 0.1)]
        parts.append(Piece(smooth(tail, closed=False), dark, 0.15))
        w = rng.uniform(0.42, 0.55)
        body = [(-0.3, -0.1), (0.3, -0.1), (w, 0.5), (w + 0.08, 0.95), (-w - 0.08, 0.95), (-w, 0.5)]
        parts.append(Piece(smooth(body, rounds=2), color))
        bib = "white" if color == "black" else color + "+"
        parts.append(Piece(arc(0, 0.42, 0.2, 0.3, n=20), bib))
        for x in (-0.17, 0.17):
            parts.append(Piece(arc(x, 0.88, 0.15, 0.1, n=16), color + "+"))
        hx, hy, s = rng.uniform(-0.08, 0.08), -0.4, 0.82
    face = []
    point = rng.uniform(0.68, 0.85)
    for side in (-1, 1):
        ear = [(side * 0.56, -0.15), (side * 0.54, -point), (side * 0.12, -0.42)]
        face.append(Piece(outline(*ear), color))
        ear = [(side * 0.49, -0.25), (side * 0.48, -point + 0.15), (side * 0.23, -0.42)]
        face.append(Piece(outline(*ear), inner))
    face.append(Piece(arc(0, 0, 0.62, rng.uniform(0.48, 0.54), n=32), color))
    if rng.random() < 0.6:  # a tabby's stripes
        for x in (-0.14, 0.0, 0.14):
            face.append(Piece(outline((x, -0.47), (x * 0.8, -0.26)), dark, 0.06))
    eye = rng.choice(("green", "yellow", "blue"))
    for side in (-1, 1):
        face.append(Piece(arc(side * 0.25, -0.06, 0.11, 0.12, n=18), eye))
        face.append(Piece(arc(side * 0.25, -0.06, 0.04, 0.1, n=12), "black"))
        for y in (0.12, 0.2, 0.28):
            hair = outline((side * 0.28, 0.17 + (y - 0.2) * 0.3), (side * 0.85, y))
            face.append(Piece(hair, ink, 0.025))
    face.append(Piece(outline((-0.07, 0.1), (0.07, 0.1), (0, 0.18)), inner + "-"))
    for side in (-1, 1):
        face.append(Piece(arc(side * 0.09, 0.2, 0.09, 0.09, 10, 170, 7), ink, 0.035))
    parts += [Piece(p.points * s + (hx, hy), p.tone, p.width * s) for p in face]
    return Drawing(parts, color)
