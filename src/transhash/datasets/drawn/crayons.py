"""The second hand: wax crayon on rough paper, wobbling outlines, hatched fill, an old palette.

Everything that differs from the posters is the same for every thing: paper, grain, palette,
line. It is a shift of style, which alignment can undo, rather than noise in single pictures.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from transhash.datasets.drawn.posters import FINE, RGB, SIZE, tint
from transhash.datasets.drawn.shapes import Drawing, Outline, Piece, placed

_PALETTE: dict[str, RGB] = {
    "red": (196, 54, 48),
    "orange": (220, 116, 44),
    "yellow": (226, 172, 44),
    "green": (84, 130, 56),
    "teal": (48, 132, 132),
    "blue": (46, 86, 156),
    "purple": (112, 66, 132),
    "pink": (212, 110, 128),
    "brown": (124, 78, 48),
    "white": (244, 238, 224),
    "cream": (230, 208, 164),
    "grey": (132, 128, 126),
    "black": (48, 42, 46),
}
PAPERS: tuple[RGB, ...] = ((244, 232, 206), (240, 224, 192), (234, 220, 194), (246, 238, 220))
BLUR = 0.7  # pixels
INK: RGB = (56, 46, 50)


@cache
def _grain(k: int) -> Image.Image:
    """Tooth of the paper: where it is low the wax skips."""
    noise = np.random.default_rng(k).normal(size=(FINE * 2, FINE * 2))
    tooth = Image.fromarray((128 + 42 * noise).clip(0, 255).astype(np.uint8))
    return tooth.filter(ImageFilter.GaussianBlur(1.1)).point(
        lambda v: max(0, min(255, round((v - 128) * 7 + 212)))
    )


@cache
def _hatch(k: int) -> Image.Image:
    """A field of slanted crayon strokes to fill shapes from."""
    rng = Random(k)
    side = FINE * 2
    field = Image.new("L", (side * 2, side * 2), 110)
    pen = ImageDraw.Draw(field)
    y = -10.0
    while y < side * 2:
        y += rng.uniform(5, 8)
        path = [(x, y + rng.gauss(0, 1.3)) for x in range(0, side * 2 + 1, 24)]
        pen.line(path, fill=rng.randint(190, 255), width=rng.randint(3, 5))
    field = field.rotate((25, 40, 55, 125, 140, 155)[k % 6], Image.Resampling.BILINEAR)
    return field.crop((side // 2, side // 2, side // 2 + side, side // 2 + side))


def _window(rng: Random, field: Image.Image, size: tuple[int, int]) -> Image.Image:
    x, y = (rng.randrange(f - s + 1) for f, s in zip(field.size, size, strict=True))
    return field.crop((x, y, x + size[0], y + size[1]))


def _wobbled(rng: Random, points: Outline, closed: bool, amount: float) -> Outline:
    """The line as an unsure hand follows it: dense points, pushed about by slow noise."""
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


def crayon(rng: Random, drawing: Drawing) -> Image.Image:
    """The thing alone on its sheet, close, tilted, squeezed a little."""
    paper = tint("paper", {"paper": rng.choice(PAPERS)}, rng, 3)
    image = Image.new("RGB", (FINE, FINE), paper)
    grain = _window(rng, _grain(rng.randrange(3)), (FINE, FINE))
    if rng.random() < 0.6:
        _scribbles(rng, image, grain)
    scale = FINE * rng.uniform(0.33, 0.44)
    x, y = (FINE * rng.uniform(0.44, 0.56) for _ in range(2))
    angle, stretch = rng.uniform(-12, 12), rng.uniform(0.88, 1.12)
    parts = placed(drawing.parts, x, y, scale, angle, rng.random() < 0.5, stretch)
    hatch = rng.randrange(6)
    inks: dict[str, RGB] = {}
    for part in parts:
        ink = inks.setdefault(part.tone, tint(part.tone, _PALETTE, rng, 9))
        _rub(rng, image, part, ink, paper, grain, _hatch((hatch + rng.choice((0, 0, 1))) % 6))
    image = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    light = grain.resize((SIZE, SIZE), Image.Resampling.BOX).point(lambda v: 230 + v * 25 // 255)
    image = ImageChops.multiply(image, Image.merge("RGB", (light, light, light)))
    return image.filter(ImageFilter.GaussianBlur(BLUR))


def _scribbles(rng: Random, image: Image.Image, grain: Image.Image) -> None:
    """Idle strokes: the ground, a few dashes."""
    mask = Image.new("L", image.size)
    pen = ImageDraw.Draw(mask)
    y = FINE * rng.uniform(0.84, 0.92)
    for i in range(rng.randint(3, 6)):
        low = y + 7 * i
        line = np.array([(rng.uniform(0, 60), low), (FINE - rng.uniform(0, 60), low)])
        pen.line(_wobbled(rng, line, False, 2.5).ravel().tolist(), fill=200, width=4)
    tone = rng.choice(("green", "brown", "blue", "grey", "yellow"))
    image.paste(tint(tone, _PALETTE, rng, 9), mask=ImageChops.multiply(mask, grain))


def _rub(
    rng: Random,
    image: Image.Image,
    part: Piece,
    ink: RGB,
    paper: RGB,
    grain: Image.Image,
    hatch: Image.Image,
) -> None:
    """One part: a hatched fill with a doubled outline, or a stroke, on the grain of the paper."""
    rim = _wobbled(rng, part.points, not part.width, 2.2)
    pad = 8 + round(part.width)
    left, top = (max(0, int(v) - pad) for v in rim.min(axis=0))
    right, bottom = (min(FINE, int(v) + pad) for v in rim.max(axis=0))
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
    image.paste(paper, corner, mask)  # wax on wax hides most of what lies under it
    strokes = ImageChops.multiply(mask, _window(rng, hatch, size))
    image.paste(ink, corner, ImageChops.multiply(strokes, tooth))
    mask.paste(0, (0, 0, *size))
    pen.line([*flat, *flat[:2]], fill=220, width=4, joint="curve")
    again = (_wobbled(rng, part.points, True, 2.8) - corner).ravel().tolist()
    pen.line([*again, *again[:2]], fill=150, width=3, joint="curve")
    image.paste(INK, corner, ImageChops.multiply(mask, tooth))
