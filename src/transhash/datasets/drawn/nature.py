"""Six things that grow, live or shine: tree, flower, sun, fish, bird, cat."""

from __future__ import annotations

import math
from random import Random

from transhash.datasets.drawn.shapes import (
    Drawing,
    Piece,
    arc,
    cloud,
    outline,
    smooth,
    spikes,
    turned,
)
from transhash.datasets.drawn.things import PAINTS, other


def tree(rng: Random) -> Drawing:
    colour = rng.choice(("green", "green", "green", "teal", "orange", "pink"))
    bark = rng.choice(("brown", "brown-"))
    t = rng.uniform(0.09, 0.15)
    if rng.random() < 0.4:  # a fir
        parts = [Piece(outline((-t, 0.4), (t, 0.4), (t * 1.2, 1), (-t * 1.2, 1)), bark)]
        tiers = rng.choice((3, 4))
        for i in range(tiers):
            w = rng.uniform(0.6, 0.75) * (1 - i / (tiers + 1))
            low = 0.6 - i * 1.15 / tiers
            tier = outline((-w, low), (0, low - 0.75), (w, low), (0, low + 0.07))
            parts.append(Piece(tier, colour if i % 2 == 0 else colour + "-"))
        return Drawing(parts, colour)
    trunk = [(-t, -0.2), (t, -0.2), (t, 0.7), (t * 2.2, 1), (-t * 2.2, 1), (-t, 0.7)]
    parts = [Piece(outline(*trunk), bark)]
    parts.append(Piece(outline((0, 0.35), (0.3, 0.02)), bark, 0.08))
    w, h = rng.uniform(0.6, 0.85), rng.uniform(0.55, 0.7)
    parts.append(Piece(cloud(0, -0.33, w, h, rng.randint(7, 10)), colour))
    if rng.random() < 0.5:  # light on one side
        parts.append(Piece(cloud(-0.2, -0.5, w * 0.5, h * 0.42, 6), colour + "+"))
    if rng.random() < 0.4:
        fruit = rng.choice(("red", "yellow", "orange" if colour != "orange" else "red"))
        for _ in range(rng.randint(4, 7)):
            angle, reach = rng.uniform(0, 2 * math.pi), rng.uniform(0.25, 0.75)
            x, y = reach * w * math.cos(angle), -0.33 + reach * h * math.sin(angle)
            parts.append(Piece(arc(x, y, 0.075, 0.075, n=12), fruit))
    return Drawing(parts, colour)


def flower(rng: Random) -> Drawing:
    colour = rng.choice(("red", "orange", "yellow", "blue", "purple", "pink", "white"))
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
        parts.append(Piece(smooth(bowl, rounds=1), colour))
        petal = [(0, -0.95), (w * 0.6, -0.5), (0, -0.08), (-w * 0.6, -0.5)]
        parts.append(Piece(smooth(petal, rounds=2), colour + "+"))
        return Drawing(parts, colour)
    n = rng.randint(5, 10)
    wide = 0.95 / n + rng.uniform(0.02, 0.06)
    turn = rng.uniform(0, 360)
    for i in range(n):
        blade = arc(0.36, head, 0.25, wide, n=16)
        shade = colour if i % 2 == 0 or rng.random() < 0.5 else colour + "+"
        parts.append(Piece(turned(blade, turn + 360 * i / n, 0, head), shade))
    middle = rng.choice(("yellow", "brown", "orange")) if colour != "yellow" else "brown"
    r = rng.uniform(0.16, 0.22)
    parts.append(Piece(arc(0, head, r, r, n=20), middle))
    parts.append(Piece(arc(0, head, r * 0.5, r * 0.5, n=12), middle + "-"))
    return Drawing(parts, colour)


def sun(rng: Random) -> Drawing:
    colour = rng.choice(("yellow", "yellow", "orange", "red"))
    r = rng.uniform(0.46, 0.58)
    parts = []
    style = rng.choice(("spikes", "bars", "lines", "rings"))
    n = rng.randint(9, 15)
    turn = rng.uniform(0, 40)
    if style == "spikes":
        rim = "yellow" if colour == "orange" else "orange"
        parts.append(Piece(spikes(0, 0, 1, r * 1.05, n, turn), rim))
    elif style == "bars":
        for i in range(n):
            angle = turn + 360 * i / n
            far = 1 if i % 2 == 0 else 0.86
            ray = outline((r + 0.08, -0.09), (far, 0), (r + 0.08, 0.09))
            parts.append(Piece(turned(ray, angle), colour))
    elif style == "lines":
        for i in range(n):
            far = 1 if i % 2 == 0 else 0.84
            ray = outline((r + 0.1, 0), (far, 0))
            parts.append(Piece(turned(ray, turn + 360 * i / n), colour, 0.09))
    else:
        parts.append(Piece(cloud(0, 0, 0.92, 0.92, n, 0.1), colour + "+"))
    parts.append(Piece(arc(0, 0, r, r, n=36), colour))
    if rng.random() < 0.55:
        for x in (-0.18, 0.18):
            parts.append(Piece(arc(x, -0.08, 0.05, 0.07, n=12), "black"))
            parts.append(Piece(arc(x * 1.6, 0.1, 0.07, 0.05, n=12), "pink"))
        parts.append(Piece(arc(0, 0.05, 0.2, 0.18, 20, 160, 10), "black", 0.05))
    else:
        parts.append(Piece(arc(0, 0, r * 0.72, r * 0.72, n=28), colour + "+"))
    return Drawing(parts, colour)


def fish(rng: Random) -> Drawing:
    colour = rng.choice(PAINTS)
    second = other(rng, colour)
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
    parts.append(Piece(smooth(body), colour))
    marking = rng.random()
    if marking < 0.45:
        for x in (-0.22, 0.02, 0.26)[: rng.randint(2, 3)]:
            reach = h * (0.78 - 0.5 * abs(x - 0.1))
            stripe = smooth([(x, -reach), (x + 0.1, 0), (x, reach)], closed=False, rounds=2)
            parts.append(Piece(stripe, second + "+", 0.09))
    elif marking < 0.8:  # scales
        for x in (-0.2, 0.02, 0.24):
            for y in (-0.4 * h, 0, 0.4 * h):
                parts.append(Piece(arc(x, y, 0.08, 0.09, -80, 80, 7), colour + "-", 0.04))
    parts.append(Piece(arc(0.3, 0, 0.14, h * 0.62, -65, 65, 9), colour + "-", 0.05))
    parts.append(Piece(arc(0.64, -h * 0.25, 0.1, 0.1, n=16), "white"))
    parts.append(Piece(arc(0.66, -h * 0.25, 0.05, 0.05, n=12), "black"))
    if rng.random() < 0.5:
        for i in range(rng.randint(2, 3)):
            r = 0.05 + 0.02 * i
            bubble = arc(0.98 + 0.06 * (-1) ** i, -0.3 - 0.22 * i, r, r, n=14)
            parts.append(Piece(bubble, "blue+"))
    return Drawing(parts, colour)


def bird(rng: Random) -> Drawing:
    colour = rng.choice((*PAINTS, "brown"))
    breast = rng.choice((colour + "+", "cream", "orange+"))
    beak = rng.choice(("orange", "yellow")) if colour not in ("orange", "yellow") else "red"
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
    parts.append(Piece(outline(*tail), colour + "-"))
    if flying:
        far = outline((-0.1, -0.1), (0.06, -0.7), (0.3, -1.05), (0.36, -0.6), (0.25, -0.1))
        parts.append(Piece(far, colour + "-"))
    plump = rng.uniform(0.36, 0.5)
    body = [(-0.65, 0.1), (-0.3, -0.2), (0.2, -0.4), (0.6, -0.2)]
    body += [(0.6, plump * 0.6), (0.15, plump + 0.12), (-0.35, plump)]
    parts.append(Piece(smooth(body), colour))
    front = [(0.1, plump), (0.5, plump * 0.5), (0.5, -0.05), (0.15, 0.15)]
    parts.append(Piece(smooth(front), breast))
    r = rng.uniform(0.25, 0.31)
    head = (0.5, -0.38)
    open_beak = rng.random() < 0.3
    parts.append(Piece(outline((0.7, -0.48), (1.02, -0.4 - 0.05 * open_beak), (0.7, -0.34)), beak))
    if open_beak:
        parts.append(Piece(outline((0.68, -0.36), (0.96, -0.24), (0.66, -0.26)), beak + "-"))
    parts.append(Piece(arc(*head, r, r), colour))
    if rng.random() < 0.3:
        crest = [(0.35, -0.6), (0.25, -0.9), (0.45, -0.72), (0.48, -0.95), (0.6, -0.6)]
        parts.append(Piece(outline(*crest), colour + "-"))
    parts.append(Piece(arc(0.58, -0.43, 0.065, 0.065, n=14), "white"))
    parts.append(Piece(arc(0.59, -0.43, 0.035, 0.035, n=10), "black"))
    shade = rng.choice((colour + "-", other(rng, colour)))
    if flying:
        near = [(0.25, 0.05), (0.1, -0.55), (-0.4, -1.1), (-0.38, -0.85), (-0.58, -0.82)]
        near += [(-0.5, -0.6), (-0.66, -0.5), (-0.5, -0.35), (-0.58, -0.2), (-0.3, 0.1)]
        parts.append(Piece(outline(*near), shade))
    else:
        wing = [(0.25, -0.1), (0.15, 0.3), (-0.35, 0.3), (-0.8, 0.12), (-0.3, -0.08)]
        parts.append(Piece(smooth(wing), shade))
        for x in (-0.3, -0.1, 0.1):  # feathers
            parts.append(Piece(arc(x, 0.05, 0.1, 0.13, 20, 160, 7), colour, 0.04))
    return Drawing(parts, colour)


def cat(rng: Random) -> Drawing:
    colour = rng.choice(("orange", "grey", "black", "brown", "white", "cream"))
    inner = "pink"
    dark = "grey-" if colour == "black" else colour + "-"
    ink = "grey+" if colour == "black" else "black"
    big = rng.random() < 0.35  # the face alone, or the whole animal sitting
    parts = []
    hx, hy, s = 0.0, 0.05, 1.35
    if not big:
        side = rng.choice((-1, 1))
        tail = [(side * 0.3, 0.82), (side * 0.85, 0.9), (side * 0.95, 0.4), (side * 0.7, 0.1)]
        parts.append(Piece(smooth(tail, closed=False), dark, 0.15))
        w = rng.uniform(0.42, 0.55)
        body = [(-0.3, -0.1), (0.3, -0.1), (w, 0.5), (w + 0.08, 0.95), (-w - 0.08, 0.95), (-w, 0.5)]
        parts.append(Piece(smooth(body, rounds=2), colour))
        bib = "white" if colour == "black" else colour + "+"
        parts.append(Piece(arc(0, 0.42, 0.2, 0.3, n=20), bib))
        for x in (-0.17, 0.17):
            parts.append(Piece(arc(x, 0.88, 0.15, 0.1, n=16), colour + "+"))
        hx, hy, s = rng.uniform(-0.08, 0.08), -0.4, 0.82
    face = []
    point = rng.uniform(0.68, 0.85)
    for side in (-1, 1):
        ear = [(side * 0.56, -0.15), (side * 0.54, -point), (side * 0.12, -0.42)]
        face.append(Piece(outline(*ear), colour))
        ear = [(side * 0.49, -0.25), (side * 0.48, -point + 0.15), (side * 0.23, -0.42)]
        face.append(Piece(outline(*ear), inner))
    face.append(Piece(arc(0, 0, 0.62, rng.uniform(0.48, 0.54), n=32), colour))
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
    return Drawing(parts, colour)
