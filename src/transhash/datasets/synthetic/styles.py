"""The two drawing styles: bright posters with flat colors, and wax crayon on rough paper.

All differences (paper, grain, palette, line) are the same for every object: a shift of style, which
alignment can undo, rather than noise in single images.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from transhash.datasets.raw import packaged_list
from transhash.datasets.synthetic.shapes import (
    Drawing,
    Outline,
    Piece,
    arc,
    box,
    outline,
    smooth,
    transform,
)

SIZE = 160  # width and height in pixels
CANVAS = 2 * SIZE  # drawn twice as large, then halved for smooth edges

RGB = tuple[int, int, int]
_PALETTES = packaged_list("synthetic/palettes.json")
_POSTER_COLORS: dict[str, RGB] = {name: tuple(c) for name, c in _PALETTES["poster"].items()}
_CRAYON_COLORS: dict[str, RGB] = {name: tuple(c) for name, c in _PALETTES["crayon"].items()}
_PAPERS: list[RGB] = [tuple(color) for color in _PALETTES["papers"]]
OUTLINED_FRACTION = 0.4  # of posters have black outlines
AIRBORNE = ("sun", "star", "bird")


def tint(tone: str, palette: dict[str, RGB], rng: Random, jitter: int) -> RGB:
    """Return a tone's color, darker for -, lighter for +, with some random variation."""
    base = palette[tone.rstrip("+-")]
    if tone.endswith("-"):
        base = (base[0] * 7 // 10, base[1] * 7 // 10, base[2] * 7 // 10)
    elif tone.endswith("+"):
        base = tuple(c + (255 - c) * 45 // 100 for c in base)  # type: ignore[assignment]
    r, g, b = (max(0, min(255, c + rng.randint(-jitter, jitter))) for c in base)
    return r, g, b


def draw_poster(rng: Random, setting: str, drawings: list[tuple[str, Drawing]]) -> Image.Image:
    """Draw a scene with one to three objects, the first one largest."""
    description = _PALETTES["settings"][setting]
    # Colors of the upper sky, the lower sky and the ground.
    above, below, ground = map(tuple, rng.choice(description["colors"]))
    image = _gradient(above, below)
    pen = ImageDraw.Draw(image)
    horizon = CANVAS * (description["horizon"] + rng.uniform(-0.03, 0.03))
    _backdrop(rng, pen, setting, horizon, ground)
    edge = rng.choice((2, 3, 4)) if rng.random() < OUTLINED_FRACTION else 0
    slots = {1: [rng.uniform(0.4, 0.6)], 2: [0.29, 0.73], 3: [0.5, 0.2, 0.81]}[len(drawings)]
    if len(drawings) == 2 and rng.random() < 0.5:
        slots.reverse()
    reach = {1: (0.3, 0.4), 2: (0.22, 0.27), 3: (0.17, 0.21)}[len(drawings)]
    for k, (slot, (name, drawing)) in enumerate(zip(slots, drawings, strict=True)):
        scale = CANVAS * rng.uniform(*reach) * (0.9 if k else 1.0)
        x = CANVAS * (slot + rng.uniform(-0.03, 0.03))
        y = _height(rng, setting, name, scale, horizon)
        angle = rng.uniform(-7, 7) if name in ("umbrella", "star", "fish", "sun") else 0
        if setting in ("meadow", "street", "snow", "table") and name not in AIRBORNE:
            shadow = arc(x, y + scale * 0.93, scale * 0.95, scale * 0.12)
            pen.polygon(shadow.ravel().tolist(), fill=tuple(c * 82 // 100 for c in ground))
        _paint(pen, transform(drawing.parts, x, y, scale, angle, rng.random() < 0.5), rng, edge)
    return image.resize((SIZE, SIZE), Image.Resampling.BOX)


def _height(rng: Random, setting: str, name: str, scale: float, horizon: float) -> float:
    if setting == "sea" and name == "fish":
        return horizon + (CANVAS - horizon) * 0.58
    if setting == "sea" and name == "boat":
        return horizon - scale * 0.62
    if setting in ("plain", "sky", "deep"):
        return CANVAS * rng.uniform(0.44, 0.55)
    if name in AIRBORNE and (name != "bird" or rng.random() < 0.4):
        return max(scale * 1.05, CANVAS * rng.uniform(0.28, 0.38))
    return min(horizon - scale * 0.93 + CANVAS * rng.uniform(0.09, 0.19), CANVAS - scale)


def _gradient(above: RGB, below: RGB) -> Image.Image:
    ramp = np.linspace(0, 1, CANVAS)[:, None]
    rows = np.array(above) * (1 - ramp) + np.array(below) * ramp  # (CANVAS, 3)
    return Image.fromarray(np.repeat(rows[:, None].astype(np.uint8), CANVAS, axis=1))


def _paint(pen: ImageDraw.ImageDraw, parts: list[Piece], rng: Random, edge: int) -> None:
    inks: dict[str, RGB] = {}  # one color per tone and object
    for part in parts:
        ink = inks.setdefault(part.tone, tint(part.tone, _POSTER_COLORS, rng, 10))
        flat = part.points.ravel().tolist()
        if part.width:
            pen.line(flat, fill=ink, width=max(2, round(part.width)), joint="curve")
        else:
            pen.polygon(flat, fill=ink)
            if edge:
                pen.line(
                    [*flat, *flat[:4]], fill=_POSTER_COLORS["black"], width=edge, joint="curve"
                )


def _fill(pen: ImageDraw.ImageDraw, points: Outline, ink: RGB) -> None:
    pen.polygon((points * CANVAS).ravel().tolist(), fill=ink)


def _mix(a: RGB, b: RGB, share: float) -> RGB:
    r, g, b_ = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return r, g, b_


def _clouds(rng: Random, pen: ImageDraw.ImageDraw, ink: RGB, n: int, low: float) -> None:
    for _ in range(n):
        x, y, w = rng.random(), rng.uniform(0.06, low), rng.uniform(0.08, 0.16)
        for shift, lift, share in ((-0.6, 0.2, 0.6), (0.6, 0.15, 0.7), (0, 0, 1)):
            _fill(pen, arc(x + w * shift, y + w * lift * 0.5, w * share, w * share * 0.42), ink)


def _backdrop(
    rng: Random, pen: ImageDraw.ImageDraw, setting: str, horizon: float, ground: RGB
) -> None:
    white: RGB = (255, 255, 255)
    top = horizon / CANVAS
    if setting in ("meadow", "snow", "night"):
        far = _mix(ground, (120, 150, 200), 0.35)
        for x in (rng.uniform(0, 0.3), rng.uniform(0.6, 1)):
            _fill(pen, arc(x, top + 0.06, rng.uniform(0.3, 0.5), rng.uniform(0.12, 0.22)), far)
    if setting in ("meadow", "sea", "snow", "street"):
        _clouds(rng, pen, white, rng.randint(0, 2), 0.28)
    if setting == "sky":
        _clouds(rng, pen, ground, rng.randint(3, 5), 0.95)
    if setting not in ("sky", "plain"):
        _fill(pen, box(0, top, 1, 1), ground)
    if setting == "meadow":
        for _ in range(rng.randint(5, 12)):
            x, y = rng.random(), rng.uniform(top + 0.03, 0.98)
            blade = outline((x - 0.012, y), (x, y - 0.04), (x + 0.012, y))
            _fill(pen, blade, _mix(ground, (20, 90, 40), 0.4))
    elif setting == "street":
        for i in range(4):
            x = 0.28 * i + rng.uniform(0, 0.03)
            dash = outline((x, 0.9), (x + 0.14, 0.9), (x + 0.12, 0.925), (x - 0.02, 0.925))
            _fill(pen, dash, white)
        _fill(pen, box(0, top - 0.02, 1, top + 0.015), _mix(ground, white, 0.5))
        if rng.random() < 0.4:
            for _ in range(24):  # rain
                x, y = rng.random(), rng.random()
                streak = (outline((x, y), (x - 0.012, y + 0.05)) * CANVAS).ravel().tolist()
                pen.line(streak, fill=(226, 238, 248), width=2)
    elif setting == "snow":
        for _ in range(26):
            r = rng.uniform(0.004, 0.011)
            _fill(pen, arc(rng.random(), rng.random() * top, r, r, n=10), white)
    elif setting == "night":
        moon = (rng.choice((0.14, 0.86)), 0.15)
        if rng.random() < 0.5:
            _fill(pen, arc(*moon, 0.07, 0.07), (250, 240, 200))
        for _ in range(22):
            r = rng.uniform(0.003, 0.006)
            _fill(pen, arc(rng.random(), rng.random() * top, r, r, n=8), (236, 236, 214))
    elif setting in ("sea", "deep"):
        for _ in range(rng.randint(5, 9)):
            x, y = rng.random(), rng.uniform(top + 0.05, 0.97)
            crest = smooth([(x, y), (x + 0.04, y - 0.02), (x + 0.08, y)], closed=False, rounds=2)
            if setting == "sea":
                pen.line((crest * CANVAS).ravel().tolist(), fill=_mix(ground, white, 0.35), width=4)
            else:
                x, w = rng.random(), rng.uniform(0.02, 0.04)  # weed
                frond = [(x - w, 1), (x - w / 2, 0.85), (x, 0.7), (x + w, 0.86), (x + w / 2, 1)]
                _fill(pen, smooth([(a, b + 0.03) for a, b in frond]), (40, 150, 100))
    elif setting == "table":
        if rng.random() < 0.6:  # a window
            x = rng.choice((0.05, 0.66))
            _fill(pen, box(x, 0.06, x + 0.28, 0.4), white)
            for dx in (0.02, 0.15):
                _fill(pen, box(x + dx, 0.08, x + dx + 0.11, 0.38), (168, 214, 244))
    elif setting == "plain":
        motif = rng.choice(("disc", "dots", "rays", "none"))
        if motif == "disc":
            _fill(pen, arc(0.5, 0.5, 0.42, 0.42, n=60), ground)
        elif motif == "dots":
            for i in range(7):
                for j in range(7):
                    x, y = (i + 0.5 * (j % 2)) / 6.5, j / 6
                    _fill(pen, arc(x, y, 0.016, 0.016, n=12), ground)
        elif motif == "rays":
            turn = rng.uniform(0, 30)
            for i in range(12):
                tips = arc(0.5, 0.5, 1, 1, turn + 30 * i, turn + 30 * i + 15, 2)
                _fill(pen, np.concatenate([[(0.5, 0.5)], tips]), ground)


BLUR_PIXELS = 0.7
INK: RGB = (56, 46, 50)


@cache
def _grain(k: int) -> Image.Image:
    """Return the grain of the paper; dark parts take less wax."""
    noise = np.random.default_rng(k).normal(size=(CANVAS * 2, CANVAS * 2))
    tooth = Image.fromarray((128 + 42 * noise).clip(0, 255).astype(np.uint8))
    return tooth.filter(ImageFilter.GaussianBlur(1.1)).point(
        lambda v: max(0, min(255, round((v - 128) * 7 + 212)))
    )


@cache
def _hatch(k: int) -> Image.Image:
    """Return a field of slanted crayon strokes for filling shapes."""
    rng = Random(k)
    side = CANVAS * 2
    field = Image.new("L", (side * 2, side * 2), 110)
    pen = ImageDraw.Draw(field)
    y = -10.0
    while y < side * 2:
        y += rng.uniform(5, 8)
        path = [(x, y + rng.gauss(0, 1.3)) for x in range(0, side * 2 + 1, 24)]
        pen.line(path, fill=rng.randint(190, 255), width=rng.randint(3, 5))
    field = field.rotate((25, 40, 55, 125, 140, 155)[k % 6], Image.Resampling.BILINEAR)
    return field.crop((side // 2, side // 2, side // 2 + side, side // 2 + side))


def _random_crop(rng: Random, field: Image.Image, size: tuple[int, int]) -> Image.Image:
    x, y = (rng.randrange(f - s + 1) for f, s in zip(field.size, size, strict=True))
    return field.crop((x, y, x + size[0], y + size[1]))


def _wobble(rng: Random, points: Outline, closed: bool, amount: float) -> Outline:
    """Return dense points along a line, shifted by low-frequency noise."""
    ring = np.concatenate([points, points[:1]]) if closed else points
    steps = np.hypot(*np.diff(ring, axis=0).T)
    along = np.concatenate([[0], np.cumsum(steps)])
    n = max(6, int(along[-1] / 9))
    at = np.linspace(0, along[-1], n)
    dense = np.stack([np.interp(at, along, ring[:, i]) for i in (0, 1)], axis=1)
    knots = max(3, n // 4)
    push = np.array([rng.gauss(0, amount) for _ in range(2 * knots)]).reshape(knots, 2)
    spread = np.linspace(0, knots - 1, n)
    dense += np.stack([np.interp(spread, np.arange(knots), push[:, i]) for i in (0, 1)], axis=1)
    return dense


def draw_crayon(rng: Random, drawing: Drawing) -> Image.Image:
    """Draw one object close up, tilted and slightly stretched."""
    paper = tint("paper", {"paper": rng.choice(_PAPERS)}, rng, 3)
    image = Image.new("RGB", (CANVAS, CANVAS), paper)
    grain = _random_crop(rng, _grain(rng.randrange(3)), (CANVAS, CANVAS))
    if rng.random() < 0.6:
        _scribbles(rng, image, grain)
    scale = CANVAS * rng.uniform(0.33, 0.44)
    x, y = (CANVAS * rng.uniform(0.44, 0.56) for _ in range(2))
    angle, stretch = rng.uniform(-12, 12), rng.uniform(0.88, 1.12)
    parts = transform(drawing.parts, x, y, scale, angle, rng.random() < 0.5, stretch)
    hatch = rng.randrange(6)
    inks: dict[str, RGB] = {}
    for part in parts:
        ink = inks.setdefault(part.tone, tint(part.tone, _CRAYON_COLORS, rng, 9))
        _draw_piece(
            rng, image, part, ink, paper, grain, _hatch((hatch + rng.choice((0, 0, 1))) % 6)
        )
    image = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    light = grain.resize((SIZE, SIZE), Image.Resampling.BOX).point(lambda v: 230 + v * 25 // 255)
    image = ImageChops.multiply(image, Image.merge("RGB", (light, light, light)))
    return image.filter(ImageFilter.GaussianBlur(BLUR_PIXELS))


def _scribbles(rng: Random, image: Image.Image, grain: Image.Image) -> None:
    """Draw a few horizontal strokes as ground."""
    mask = Image.new("L", image.size)
    pen = ImageDraw.Draw(mask)
    y = CANVAS * rng.uniform(0.84, 0.92)
    for i in range(rng.randint(3, 6)):
        low = y + 7 * i
        line = np.array([(rng.uniform(0, 60), low), (CANVAS - rng.uniform(0, 60), low)])
        pen.line(_wobble(rng, line, False, 2.5).ravel().tolist(), fill=200, width=4)
    tone = rng.choice(("green", "brown", "blue", "grey", "yellow"))
    image.paste(tint(tone, _CRAYON_COLORS, rng, 9), mask=ImageChops.multiply(mask, grain))


def _draw_piece(
    rng: Random,
    image: Image.Image,
    part: Piece,
    ink: RGB,
    paper: RGB,
    grain: Image.Image,
    hatch: Image.Image,
) -> None:
    """Draw a stroke, or a hatched fill with a doubled outline."""
    rim = _wobble(rng, part.points, not part.width, 2.2)
    pad = 8 + round(part.width)
    left, top = (max(0, int(v) - pad) for v in rim.min(axis=0))
    right, bottom = (min(CANVAS, int(v) + pad) for v in rim.max(axis=0))
    if right <= left or bottom <= top:
        return
    size, corner = (right - left, bottom - top), (left, top)
    tooth = grain.crop((left, top, right, bottom))
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    flat = (rim - corner).ravel().tolist()
    if part.width:
        pen.line(flat, fill=235, width=max(4, round(part.width)), joint="curve")
        image.paste(ink, corner, ImageChops.multiply(mask, tooth))
        return
    pen.polygon(flat, fill=215)
    image.paste(paper, corner, mask)  # hide most of the pieces below
    strokes = ImageChops.multiply(mask, _random_crop(rng, hatch, size))
    image.paste(ink, corner, ImageChops.multiply(strokes, tooth))
    mask.paste(0, (0, 0, *size))
    pen.line([*flat, *flat[:2]], fill=220, width=4, joint="curve")
    again = (_wobble(rng, part.points, True, 2.8) - corner).ravel().tolist()
    pen.line([*again, *again[:2]], fill=150, width=3, joint="curve")
    image.paste(INK, corner, ImageChops.multiply(mask, tooth))
