"""How figures look: one colour a method, names beside lines, no boxes. matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.report.summary import VARIANTS

# Light and dark: the page swaps them, files are written in the light ones.
COLOURS = {
    "THN": ("#d1214f", "#ff6b8f"),
    "THN-D": ("#8a5a00", "#d9a94a"),
    "THN-Q": ("#a34f86", "#dd8fc2"),
    "THN-ip": ("#5c6b8a", "#93a4c9"),
    "DCMH": ("#1668c7", "#6fb1ff"),
    "QCH": ("#0c8560", "#3fcf9c"),
    "HTH": ("#c96a00", "#ffab4d"),
    "CVH": ("#7448c8", "#b798ff"),
    "IMH": ("#6d7680", "#a8b1bb"),
}
INK, FAINT, PAPER = ("#1f2328", "#e8eaed"), ("#d4d8dd", "#3a4048"), ("#fffffe", "#15181d")
MARKERS = dict(zip(COLOURS, "oDsXv^P*h", strict=True))

STYLE = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": INK[0],
    "axes.edgecolor": FAINT[0],
    "axes.labelcolor": INK[0],
    "xtick.color": INK[0],
    "ytick.color": INK[0],
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

Points = npt.NDArray[np.float64]  # (n, 2): x, y


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


def line_of(method: str) -> dict[str, Any]:
    """Ours is bold, its variants dashed."""
    return {
        "color": COLOURS[method][0],
        "marker": MARKERS[method],
        "markersize": 4.5,
        "linewidth": 2.6 if method == "THN" else 1.5,
        "linestyle": "--" if method in VARIANTS else "-",
        "zorder": 4 if method == "THN" else 3,
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


def name_lines(axis: Any, curves: dict[str, Points], start: float = 0.06) -> None:
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
            color=COLOURS[name][0],
            ha="center",
            va="center",
            zorder=6,
            weight="bold",
            fontsize=8.5,
            bbox={"facecolor": PAPER[0], "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
        )


def _at(points: Points, grid: Points) -> Points:
    """Heights of a curve at the grid, NaN where it does not reach."""
    order = np.argsort(points[:, 0], kind="stable")
    x, y = points[order, 0], points[order, 1]
    return np.asarray(np.interp(grid, x, y, left=np.nan, right=np.nan))
