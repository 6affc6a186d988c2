"""Figures of a run: MAP by code length, precision-recall curves, the ablation, training curves.

Each function takes means over seeds from a Summary and returns a matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from transhash.report.style import (
    BACKGROUND,
    FOREGROUND,
    Curve,
    apart,
    colour_of,
    line_of,
    name_lines,
    panels,
    pyplot,
)
from transhash.report.summary import DIRECTIONS, OURS, VARIANTS, Summary

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
    if OURS in summary.methods and any(name in summary.methods for name in VARIANTS):
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
        for name, height in apart(ends, 0.045 * top).items():
            axis.text(
                summary.bits[-1] + 0.035 * width,
                height,
                name,
                va="center",
                color=FOREGROUND[0] if name == "chance" else colour_of(name),
                weight="bold" if name == OURS else "normal",
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
        name_lines(axis, curves, start=0.14 if by_radius else 0.06)
    axes[0][0].set_ylabel("precision")
    return figure


def _bars(summary: Summary) -> Any:
    names = [name for name in (*VARIANTS, OURS) if name in summary.methods]
    figure, axes = panels(2, 3.6, sharey=True)
    width = 0.8 / len(names)
    for axis, direction in zip(axes[0], DIRECTIONS, strict=True):
        for place, name in enumerate(names):
            offset = (place - (len(names) - 1) / 2) * width
            for x, bits in enumerate(summary.bits):
                if score := summary.map(direction, name, bits):
                    axis.bar(x + offset, score.value, width * 0.9, color=colour_of(name))
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
