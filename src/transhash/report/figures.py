"""Figures of a run: MAP by code length, precision-recall curves, the ablation, training curves.

Each function takes means over seeds from a Summary and returns a matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.hashers import METHODS
from transhash.report.summary import DIRECTIONS, PROPOSED, VARIANTS, Summary

# How figures look: one colour a method, names beside lines, no boxes. matplotlib is an extra.

# Light and dark: the page swaps them, files are written in the light ones.
FOREGROUND, FAINT, BACKGROUND = (
    ("#1f2328", "#e8eaed"),
    ("#d4d8dd", "#3a4048"),
    ("#fffffe", "#15181d"),
)
_UNKNOWN_METHOD = ("#7f7f7f", "#9f9f9f")  # a method that this version does not know
_METHODS = {method.name: method for method in METHODS}

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
    return _METHODS[learner].colour[0] if learner in _METHODS else _UNKNOWN_METHOD[0]


def css_colour(method: str) -> str:
    """The variable of the page that holds it."""
    learner = method.partition("@")[0]
    return f"var(--{learner.lower() if learner in _METHODS else 'strange'})"


def css_variables() -> dict[str, tuple[str, str]]:
    """Every colour of page and figures, by the name it has on the page."""
    methods = {name.lower(): method.colour for name, method in _METHODS.items()}
    ground = {"ink": FOREGROUND, "faint": FAINT, "paper": BACKGROUND}
    return {**ground, **methods, "strange": _UNKNOWN_METHOD}


def line_of(method: str) -> dict[str, Any]:
    """Ours is bold, what is made of it dashed, what has no codes dotted, fine-tuned both."""
    known = _METHODS.get(method.partition("@")[0])
    role = known.role if known else "baseline"
    return {
        "color": colour_of(method),
        "marker": known.marker if known else ".",
        "markersize": 4.5,
        "linewidth": 2.6 if role == "proposed" else 1.5,
        "linestyle": "-."
        if "@" in method
        else {
            "paper-ablation": "--",
            "ablation": "--",
            "as-published": "--",
            "real-valued": ":",
            "transductive": "-.",
        }.get(role, "-"),
        "zorder": 4 if role == "proposed" else 3,
    }


def spread_labels(heights: dict[str, float], gap: float) -> dict[str, float]:
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


def label_lines(axis: Any, curves: dict[str, Curve], start: float = 0.06) -> None:
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


TITLES = {
    "image_to_text": "Image query, text database",
    "text_to_image": "Text query, image database",
}
TERMS = {  # colour of each loss, by the name it has in metrics.jsonl
    "objective": FOREGROUND[0],
    "relation": colour_of("DCMH"),
    "inherited": colour_of("THN"),
    "quantization": colour_of("HTH"),
    "alignment_images": colour_of("QCH"),
    "alignment_texts": colour_of("CVH"),
}


def figures(summary: Summary) -> Iterator[tuple[str, str, Any]]:
    """(file name, caption, matplotlib figure), each closed by the caller when it is written."""
    pyplot()
    if len(summary.bits) > 1:
        yield "map", "MAP by code length; bars are one standard deviation over seeds", _map(summary)
    for bits in summary.bits:
        caption = f"Precision by recall along the ranking, {bits} bits, 101 recall points"
        yield f"pr-rank-{bits}", caption, _curves(summary, bits, by_radius=False)
    for bits in summary.bits:
        caption = f"Precision and recall within each Hamming radius, {bits} bits; ring: radius 2"
        yield f"pr-radius-{bits}", caption, _curves(summary, bits, by_radius=True)
    if PROPOSED in summary.methods and any(name in summary.methods for name in VARIANTS):
        yield "ablation", "THN and its variants; bars are one standard deviation", _bars(summary)
    if steps := summary.metrics():
        yield "training", "Terms of the objective during training, smoothed", _training(steps)


def _map(summary: Summary) -> Any:
    figure, axes = panels(2, 4.0, sharey=True)
    scores = [
        summary.map(d, method, b)
        for d in DIRECTIONS
        for method in summary.methods
        for b in summary.bits
    ]
    top = 1.06 * max(score.value + (score.sd or 0.0) for score in scores if score)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        ends = {}
        for method in summary.methods:
            known = [(b, s) for b in summary.bits if (s := summary.map(direction, method, b))]
            x, y = [b for b, _ in known], [s.value for _, s in known]
            axis.errorbar(
                x,
                y,
                yerr=[s.sd or 0.0 for _, s in known],
                **line_of(method),
                capsize=0,
                elinewidth=1,
            )
            if x[-1] == summary.bits[-1]:
                ends[method] = y[-1]
        chance = [s.value for b in summary.bits if (s := summary.chance(direction, b))]
        axis.plot(summary.bits, chance, color=FOREGROUND[0], linewidth=1, dashes=(2, 2), alpha=0.6)
        axis.set(title=TITLES[direction], xlabel="bits", xticks=summary.bits)
        axis.set_ylim(0, top)
        ends["chance"] = chance[-1]
        width = summary.bits[-1] - summary.bits[0]
        axis.set_xlim(summary.bits[0] - 0.04 * width, summary.bits[-1] + 0.24 * width)
        for name, height in spread_labels(ends, 0.045 * top).items():
            axis.text(
                summary.bits[-1] + 0.035 * width,
                height,
                name,
                va="center",
                color=FOREGROUND[0] if name == "chance" else colour_of(name),
                weight="bold" if name == PROPOSED else "normal",
            )
    axes[0][0].set_ylabel("MAP")
    return figure


def _curves(summary: Summary, bits: int, by_radius: bool) -> Any:
    """The paper's comparison: THN and its rivals; the variants only where there are no rivals."""
    names = [name for name in summary.methods if name not in VARIANTS]
    names = names if len(names) > 1 else list(summary.methods)
    kept = "pr_by_radius" if by_radius else "pr_by_rank"
    figure, axes = panels(2, 3.9, sharey=True)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        curves: dict[str, Curve] = {}
        for method in names:
            rows = [row[direction] for row in summary.cells(method, bits)]
            rows = [row for row in rows if row.get(kept)]  # without codes there is no radius
            if not rows:
                continue
            points = _mean_radius_curve(rows) if by_radius else _mean_rank_curve(rows)
            curves[method] = points[:, -2:]
            line = line_of(method) | ({"markersize": 3.0} if by_radius else {"marker": ""})
            axis.plot(*points[:, -2:].T, **line)
            if by_radius:
                ring = points[points[:, 0] == 2]
                axis.plot(
                    *ring[:, 1:].T,
                    "o",
                    markersize=9,
                    fillstyle="none",
                    color=colour_of(method),
                    markeredgewidth=1.2,
                )
        chance = summary.chance(direction, bits)
        if chance:
            axis.axhline(chance.value, color=FOREGROUND[0], linewidth=1, dashes=(2, 2), alpha=0.6)
            axis.text(0.01, chance.value - 0.012, "chance", va="top", fontsize=8, alpha=0.8)
        axis.set(title=TITLES[direction], xlabel="recall", xlim=(-0.01, 1.01), ylim=(0, 1.02))
        label_lines(axis, curves, start=0.14 if by_radius else 0.06)
    axes[0][0].set_ylabel("precision")
    return figure


def _bars(summary: Summary) -> Any:
    names = [name for name in (*VARIANTS, PROPOSED) if name in summary.methods]
    figure, axes = panels(2, 3.6, sharey=True)
    width = 0.8 / len(names)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        for place, name in enumerate(names):
            offset = (place - (len(names) - 1) / 2) * width
            for x, bits in enumerate(summary.bits):
                if score := summary.map(direction, name, bits):
                    axis.progress_bar(x + offset, score.value, width * 0.9, color=colour_of(name))
                    axis.errorbar(
                        x + offset, score.value, score.sd or 0, color=FOREGROUND[0], elinewidth=1
                    )
                    axis.text(
                        x + offset,
                        0.012,
                        f"{100 * score.value:.0f}",
                        ha="center",
                        va="bottom",
                        fontsize=7,
                        color=BACKGROUND[0],
                        weight="bold",
                    )
        chance = [s.value for b in summary.bits if (s := summary.chance(direction, b))]
        axis.axhline(fmean(chance), color=FOREGROUND[0], linewidth=1, dashes=(2, 2), alpha=0.6)
        axis.set(title=TITLES[direction], xticks=range(len(summary.bits)))
        axis.set_xticklabels([f"{bits} bits" for bits in summary.bits])
        axis.grid(axis="x", visible=False)
    axes[0][0].set_ylabel("MAP")
    handles = [pyplot().Rectangle((0, 0), 1, 1, color=colour_of(name)) for name in names]
    figure.legend(handles, names, loc="outside upper right", ncols=len(names), frameon=False)
    return figure


def _training(kept: dict[tuple[str, int], list[dict[str, float]]]) -> Any:
    """The longest code of each method: the terms as they were added up, on a log scale."""
    last = {method: steps for (method, _), steps in kept.items()}  # lengths come in rising order
    longest = dict(kept.keys())
    columns = 2 if len(last) in (2, 4) else min(3, len(last))
    figure, axes = panels(columns, 3.2, rows=-(-len(last) // columns), sharey=True)
    for axis, (method, steps) in zip(axes.flat, last.items(), strict=False):
        found = {name for step in steps for name in step} - {"step"}
        for term in [*(t for t in TERMS if t in found), *sorted(found - set(TERMS))]:
            x = np.array([step["step"] for step in steps if term in step])
            y = _smooth(np.array([step[term] for step in steps if term in step]))
            axis.plot(
                x,
                np.where(y > 0, y, np.nan),
                color=TERMS.get(term, FOREGROUND[0]),
                linewidth=2.2 if term == "objective" else 1.4,
                linestyle="--" if term == "inherited" else "-",  # it often lies on `relation`
                label=term.replace("_", " of "),
            )
        axis.set_yscale("log")
        axis.grid(axis="x", visible=False)
        axis.set(title=f"{method}, {longest[method]} bits", xlabel="step")
    for axis in list(axes.flat)[len(last) :]:
        axis.set_axis_off()
    by_label: dict[str, Any] = {}
    for axis in axes.flat:
        by_label |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        list(by_label.values()), list(by_label), loc="outside lower center", ncols=6, frameon=False
    )
    return figure


def _mean_rank_curve(rows: Sequence[dict[str, Any]]) -> Curve:
    return np.asarray(np.mean([row["pr_by_rank"] for row in rows], axis=0))


def _mean_radius_curve(rows: Sequence[dict[str, Any]]) -> Curve:
    """Radius, recall, precision: means over the seeds that retrieve something at the radius."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        for radius, recall, precision in row["pr_by_radius"]:
            found.setdefault(int(radius), []).append((recall, precision))
    return np.array([(radius, *np.mean(found[radius], axis=0)) for radius in sorted(found)])


def _smooth(values: Curve) -> Curve:
    """Mean over about a fiftieth of the steps: batches are noisy."""
    width = max(1, len(values) // 50)
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")
