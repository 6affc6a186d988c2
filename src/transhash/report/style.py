"""How figures look: one colour a method, names beside lines, no boxes. matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.hashers import KNOWN

# Light and dark: the page swaps them, files are written in the light ones.
FOREGROUND, FAINT, BACKGROUND = (
    ("#1f2328", "#e8eaed"),
    ("#d4d8dd", "#3a4048"),
    ("#fffffe", "#15181d"),
)
_STRANGE = ("#7f7f7f", "#9f9f9f")  # a method that this version does not know
_METHODS = {method.name: method for method in KNOWN}

STYLE = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": FOREGROUND[0],
    "axes.edgecolor": FAINT[0],
    "axes.labelcolor": FOREGROUND[0],
    "xtick.color": FOREGROUND[0],
    "ytick.color": FOREGROUND[0],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT[0],
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "svg.fonttype": "none",  # text stays text: it can be selected and takes the page's font
    "svg.hashsalt": "transhash",  # the same rows give the same file
}

Curve = npt.NDArray[np.float64]  # (n, 2): x, y


def pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise DataError(
            "figures need matplotlib, which is not installed: pip install 'transhash[plots]'"
        ) from None
    return pyplot


@contextmanager
def drawing() -> Iterator[None]:
    """Figures made and written inside look alike."""
    with pyplot().rc_context(STYLE):
        yield


def panels(columns: int, height: float = 3.6, rows: int = 1, **options: Any) -> Any:
    """Axes without boxes on a transparent ground."""
    figure, axes = pyplot().subplots(
        rows,
        columns,
        figsize=(9.6, height * rows),
        layout="constrained",
        squeeze=False,
        **options,
    )
    figure.patch.set_alpha(0)
    for one in axes.flat:
        one.patch.set_alpha(0)
    return figure, axes


def colour_of(method: str) -> str:
    """The same on frozen and on fine-tuned features, whose teacher stands behind an @."""
    learner = method.partition("@")[0]
    return _METHODS[learner].colour[0] if learner in _METHODS else _STRANGE[0]


def css_colour(method: str) -> str:
    """The variable of the page that holds it."""
    learner = method.partition("@")[0]
    return f"var(--{learner.lower() if learner in _METHODS else 'strange'})"


def css_variables() -> dict[str, tuple[str, str]]:
    """Every colour of page and figures, by the name it has on the page."""
    methods = {name.lower(): method.colour for name, method in _METHODS.items()}
    ground = {"ink": FOREGROUND, "faint": FAINT, "paper": BACKGROUND}
    return {**ground, **methods, "strange": _STRANGE}


def line_of(method: str) -> dict[str, Any]:
    """Ours is bold, what is made of it dashed, what has no codes dotted, fine-tuned both."""
    known = _METHODS.get(method.partition("@")[0])
    role = known.role if known else "rival"
    return {
        "color": colour_of(method),
        "marker": known.marker if known else ".",
        "markersize": 4.5,
        "linewidth": 2.6 if role == "ours" else 1.5,
        "linestyle": "-."
        if "@" in method
        else {"variant": "--", "part": "--", "literal": "--", "baseline": ":", "fed": "-."}.get(
            role, "-"
        ),
        "zorder": 4 if role == "ours" else 3,
    }


def apart(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Labels moved as little as keeps them `gap` apart and in order."""
    names = sorted(heights, key=lambda name: heights[name])
    placed = [heights[name] for name in names]
    for _ in range(200):
        for i in range(len(placed) - 1):
            missing = gap - (placed[i + 1] - placed[i])
            if missing > 1e-9:
                placed[i] -= missing / 2
                placed[i + 1] += missing / 2
    return dict(zip(names, placed, strict=True))


def name_lines(axis: Any, curves: dict[str, Curve], start: float = 0.06) -> None:
    """Each name on its own line right of `start`, where other lines and names are far away."""
    taken: list[tuple[float, float]] = []
    grid = np.linspace(start, 0.86, 41)
    heights = {name: _at(points, grid) for name, points in curves.items()}
    for name in reversed(list(curves)):  # ours first: it gets the best place
        others = [heights[other] for other in curves if other != name]
        room = np.min([np.abs(heights[name] - other) for other in others] or [grid * 0 + 1], axis=0)
        room = np.where(np.isfinite(heights[name]), np.minimum(room, 0.08), -1.0)
        for x, y in taken:  # a name is about .12 wide and .05 high
            near = np.hypot((grid - x) / 0.16, (heights[name] - y) / 0.07)
            room = np.where(near < 1, room - (1 - near), room)
        best = int(np.argmax(room - 0.02 * grid))
        taken.append((float(grid[best]), float(heights[name][best])))
        axis.text(
            *taken[-1],
            name,
            color=colour_of(name),
            ha="center",
            va="center",
            zorder=6,
            weight="bold",
            fontsize=8.5,
            bbox={"facecolor": BACKGROUND[0], "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
        )


def _at(points: Curve, grid: Curve) -> Curve:
    """Heights of a curve at the grid, NaN where it does not reach."""
    order = np.argsort(points[:, 0], kind="stable")
    x, y = points[order, 0], points[order, 1]
    return np.asarray(np.interp(grid, x, y, left=np.nan, right=np.nan))
