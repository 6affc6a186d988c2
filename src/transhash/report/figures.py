"""Figures of an experiment: MAP by code length, precision-recall curves, ablations, training.

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
from transhash.experiments.plan import MethodSpec
from transhash.hashers import METHODS
from transhash.report.summary import DIRECTIONS, PROPOSED, VARIANTS, Mean, Summary

# Light and dark: the page switches between them, files are written in the light ones.
FOREGROUND = ("#1f2328", "#e8eaed")
FAINT = ("#d4d8dd", "#3a4048")
BACKGROUND = ("#fffffe", "#15181d")
_UNKNOWN_METHOD = ("#7f7f7f", "#9f9f9f")  # a method of another version
_METHODS = {method.name: method for method in METHODS}
_LINE_STYLES = {
    "paper-ablation": "--",
    "ablation": "--",
    "as-published": "--",
    "real-valued": ":",
    "transductive": "-.",
}
_STYLE = {
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
_TITLES = {
    "image_to_text": "Image query, text database",
    "text_to_image": "Text query, image database",
}
_CHANCE_LINE: dict[str, Any] = {
    "label": "chance", "color": FOREGROUND[0], "linewidth": 1, "dashes": (2, 2), "alpha": 0.6,
}  # fmt: skip

Curve = npt.NDArray[np.float64]  # (n, 2): x, y


def pyplot() -> Any:
    """Return matplotlib.pyplot, or raise DataError if it is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise DataError(
            "Figures need matplotlib, which is not installed. "
            "Install it: pip install 'transhash[plots]'"
        ) from None
    return pyplot


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style to figures that are created and saved inside."""
    with pyplot().rc_context(_STYLE):
        yield


def method_color(name: str) -> str:
    return _METHODS[name].color[0] if name in _METHODS else _UNKNOWN_METHOD[0]


def css_variable(name: str) -> str:
    """Return the CSS variable of a method's color."""
    return name.lower().replace("+", "-") if name in _METHODS else "unknown-method"


def css_variables() -> dict[str, tuple[str, str]]:
    """Return the light and dark value of every color variable of page and figures."""
    methods = {css_variable(name): method.color for name, method in _METHODS.items()}
    base = {"ink": FOREGROUND, "faint": FAINT, "paper": BACKGROUND}
    return {**base, **methods, "unknown-method": _UNKNOWN_METHOD}


def build_figures(summary: Summary) -> Iterator[tuple[str, str, Any]]:
    """Yield (file name, caption, matplotlib figure); the caller closes each figure."""
    if len(summary.bits) > 1:
        caption = "MAP by code length; bars are one standard deviation over seeds"
        yield "map", caption, _map_figure(summary)
    for bits in summary.bits:
        caption = f"Precision by recall along the ranking, {bits} bits, 101 recall points"
        yield f"pr-rank-{bits}", caption, _curves_figure(summary, bits, by_radius=False)
    for bits in summary.bits:
        caption = f"Precision and recall within each Hamming radius, {bits} bits; ring: radius 2"
        yield f"pr-radius-{bits}", caption, _curves_figure(summary, bits, by_radius=True)
    if summary.has_variants:
        caption = "THN and its ablations; bars are one standard deviation"
        yield "ablation", caption, _ablation_figure(summary)
    if metrics := summary.metrics():
        caption = "Terms of the objective during training, smoothed"
        yield "training", caption, _training_figure(metrics)


def _panels(columns: int, height: float = 3.6, rows: int = 1, **options: Any) -> Any:
    """Return a transparent figure and its axes."""
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(9.6, height * rows), layout="constrained", squeeze=False, **options
    )
    figure.patch.set_alpha(0)
    for axis in axes.flat:
        axis.patch.set_alpha(0)
    return figure, axes


def _add_legend(figure: Any, axes: Any) -> None:
    """Add one legend for all axes: labels of methods are too long to write on the lines."""
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=3, frameon=False
    )


def _line_style(spec: MethodSpec) -> dict[str, Any]:
    """Return bold for THN, dashed for its ablations, dotted without codes, hollow if fine-tuned."""
    method = _METHODS.get(spec.method)
    role = method.role if method else "baseline"
    return {
        "label": spec.label,
        "color": method_color(spec.method),
        "marker": method.marker if method else ".",
        "markersize": 4.5,
        "fillstyle": "none" if spec.teacher else "full",
        "linewidth": 2.6 if role == "proposed" else 1.5,
        "linestyle": "-." if spec.teacher else _LINE_STYLES.get(role, "-"),
        "zorder": 4 if role == "proposed" else 3,
    }


def _map_figure(summary: Summary) -> Any:
    figure, axes = _panels(2, 3.6 + 0.07 * len(summary.methods), sharey=True)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        for spec in summary.methods:
            scores = {b: s for b in summary.bits if (s := summary.map(direction, spec, b))}
            y, sd = [s.value for s in scores.values()], [s.sd or 0.0 for s in scores.values()]
            axis.errorbar(list(scores), y, sd, **_line_style(spec), capsize=0, elinewidth=1)
        axis.plot(summary.bits, _chance_values(summary, direction), **_CHANCE_LINE)
        axis.set(title=_TITLES[direction], xlabel="bits", xticks=summary.bits)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("MAP")
    _add_legend(figure, axes)
    return figure


def _curves_figure(summary: Summary, bits: int, by_radius: bool) -> Any:
    """Plot THN and the baselines; the paper's ablations only where there is nothing else."""
    specs = [spec for spec in summary.methods if spec not in VARIANTS]
    specs = specs if len(specs) > 1 else list(summary.methods)
    key = "pr_by_radius" if by_radius else "pr_by_rank"
    figure, axes = _panels(2, 3.5 + 0.07 * len(specs), sharey=True)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        for spec in specs:
            rows = [row[direction] for row in summary.cells(spec, bits)]
            rows = [row for row in rows if row.get(key)]  # without codes there is no radius
            if not rows:
                continue
            points = _mean_radius_curve(rows) if by_radius else _mean_rank_curve(rows)
            style = _line_style(spec) | ({"markersize": 3.0} if by_radius else {"marker": ""})
            axis.plot(*points[:, -2:].T, **style)
            if by_radius:
                axis.plot(
                    *points[points[:, 0] == 2][:, 1:].T, "o", markersize=9, fillstyle="none",
                    color=method_color(spec.method), markeredgewidth=1.2,
                )  # fmt: skip
        chance = summary.chance(direction, bits)
        if chance:
            axis.axhline(chance.value, **_CHANCE_LINE)
        axis.set(title=_TITLES[direction], xlabel="recall", xlim=(-0.01, 1.01), ylim=(0, 1.02))
    axes[0][0].set_ylabel("precision")
    _add_legend(figure, axes)
    return figure


def _ablation_figure(summary: Summary) -> Any:
    specs = [spec for spec in (*VARIANTS, PROPOSED) if spec in summary.methods]
    figure, axes = _panels(2, 3.6, sharey=True)
    width = 0.8 / len(specs)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        for number, spec in enumerate(specs):
            offset = (number - (len(specs) - 1) / 2) * width
            for x, bits in enumerate(summary.bits):
                if score := summary.map(direction, spec, bits):
                    _bar(axis, x + offset, score, width * 0.9, spec)
        axis.axhline(fmean(_chance_values(summary, direction)), **_CHANCE_LINE)
        axis.set(title=_TITLES[direction], xticks=range(len(summary.bits)))
        axis.set_xticklabels([f"{bits} bits" for bits in summary.bits])
        axis.grid(axis="x", visible=False)
    axes[0][0].set_ylabel("MAP")
    _add_legend(figure, axes)
    return figure


def _bar(axis: Any, x: float, score: Mean, width: float, spec: MethodSpec) -> None:
    axis.bar(x, score.value, width, color=method_color(spec.method), label=spec.label)
    axis.errorbar(x, score.value, score.sd or 0, color=FOREGROUND[0], elinewidth=1)
    text = {"ha": "center", "va": "bottom", "fontsize": 7, "weight": "bold"}
    axis.text(x, 0.012, f"{100 * score.value:.0f}", color=BACKGROUND[0], **text)


def _chance_values(summary: Summary, direction: str) -> list[float]:
    return [s.value for bits in summary.bits if (s := summary.chance(direction, bits))]


# The color of each loss, by its name in metrics.jsonl.
_TERM_COLORS = {
    "objective": FOREGROUND[0],
    "relation": method_color("DCMH"),
    "inherited": method_color("THN"),
    "quantization": method_color("HTH"),
    "alignment_images": method_color("QCH"),
    "alignment_texts": method_color("CVH"),
}


def _training_figure(metrics: dict[tuple[MethodSpec, int], list[dict[str, float]]]) -> Any:
    """Plot the terms of the objective for the longest code of each method, on a log scale."""
    longest = {spec: (bits, steps) for (spec, bits), steps in metrics.items()}  # bits ascend
    columns = 2 if len(longest) in (2, 4) else min(3, len(longest))
    figure, axes = _panels(columns, 3.2, rows=-(-len(longest) // columns), sharey=True)
    for axis, (spec, (bits, steps)) in zip(axes.flat, longest.items(), strict=False):
        names = {name for step in steps for name in step} - {"step"}
        terms = [name for name in _TERM_COLORS if name in names]
        for term in [*terms, *sorted(names - set(terms))]:
            x = np.array([step["step"] for step in steps if term in step])
            y = _smooth(np.array([step[term] for step in steps if term in step]))
            axis.plot(
                x,
                np.where(y > 0, y, np.nan),
                label=term.replace("_", " of "),
                color=_TERM_COLORS.get(term, FOREGROUND[0]),
                linewidth=2.2 if term == "objective" else 1.4,
                linestyle="--" if term == "inherited" else "-",  # often equal to `relation`
            )
        axis.set_yscale("log")
        axis.grid(axis="x", visible=False)
        axis.set(title=f"{spec.label}, {bits} bits", xlabel="step")
    for axis in list(axes.flat)[len(longest) :]:
        axis.set_axis_off()
    _add_legend(figure, axes)
    return figure


def _mean_rank_curve(rows: Sequence[dict[str, Any]]) -> Curve:
    return np.asarray(np.mean([row["pr_by_rank"] for row in rows], axis=0))


def _mean_radius_curve(rows: Sequence[dict[str, Any]]) -> Curve:
    """Return radius, recall and precision: means over the seeds with results at the radius."""
    points: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        for radius, recall, precision in row["pr_by_radius"]:
            points.setdefault(int(radius), []).append((recall, precision))
    return np.array([(radius, *np.mean(points[radius], axis=0)) for radius in sorted(points)])


def _smooth(values: Curve) -> Curve:
    """Average over about a fiftieth of the steps: batches are noisy."""
    width = max(1, len(values) // 50)
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")
