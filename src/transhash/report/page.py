"""One HTML file with the tables and figures of an experiment, without network access."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from transhash.report.figures import css_variables
from transhash.report.formats import html_table
from transhash.report.summary import Summary
from transhash.report.tables import Table

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_NOTE = """The paper's numbers are not comparable cell by cell: the paper does not name its 16
categories, its features came from a fine-tuned AlexNet, and public implementations define MAP
differently."""


def build_page(
    summary: Summary, tables: Sequence[Table], drawings: Mapping[str, tuple[str, str]]
) -> str:
    """Return the page; `drawings` are (caption, SVG) by name.

    Curves of all lengths but the longest are collapsed.
    """
    methods = {spec.label: spec.method for spec in summary.methods}
    html_tables = {table.key: html_table(table, methods) for table in tables}
    parts = [f"<h1>{html.escape(summary.benchmark)}</h1>", _lead(summary)]
    if summary.published:
        parts.append(f'<p class="dim">{_NOTE}</p>')
    parts += ["<h2>Comparison</h2>", html_tables["comparison"], _figures(drawings, ["map"])]
    parts += [html_tables[key] for key in ("margins", "differences") if key in html_tables]
    for head, kind in (("by ranking", "pr-rank"), ("by Hamming radius", "pr-radius")):
        longest, *others = [f"{kind}-{bits}" for bits in reversed(summary.bits)]
        parts.append(f"<h2>Precision and recall {head}</h2>")
        parts.append(_figures(drawings, [longest]))
        if others:
            more = _figures(drawings, list(reversed(others)))
            parts.append(f"<details><summary>Other code lengths</summary>{more}</details>")
    if "ablation" in html_tables:
        parts += ["<h2>Ablation</h2>", html_tables["ablation"], _figures(drawings, ["ablation"])]
    if "training" in drawings:
        parts += ["<h2>Training</h2>", _figures(drawings, ["training"])]
    parts += ["<h2>Cost and code statistics</h2>", html_tables["costs"], _footer(summary)]
    title = f"{summary.benchmark}: results"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without an icon the browser would request one.
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_style()}</style>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def themed(svg: str) -> str:
    """Return the SVG with CSS variables for its colors, so that it follows the dark mode."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for name, (light, _) in css_variables().items():
        svg = svg.replace(light, f"var(--{name})")
    return svg.replace("'DejaVu Sans'", _FONT)


def _style() -> str:
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in css_variables().items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in css_variables().items())
    css = (resources.files("transhash.report") / "page.css").read_text(encoding="utf-8")
    return css.replace("VARIABLES", light).replace("DARK", dark).replace("FONT", _FONT)


def _lead(summary: Summary) -> str:
    row = summary.rows[0]
    items, score = row["items"], row["image_to_text"]["definition_text"]
    ranking = "Hamming distance (methods without codes: by their scores)"
    seeds = len(summary.seeds)
    about = (
        f"{len(summary.methods)} methods, {', '.join(map(str, summary.bits))} bits, "
        f"{seeds} seed{'s'[: seeds != 1]}. {items['auxiliary_images']:,} auxiliary images and "
        f"{items['auxiliary_texts']:,} texts, {items['target_images']:,} + "
        f"{items['target_texts']:,} unlabeled target items, {items['query_images']:,} + "
        f"{items['query_texts']:,} queries against {items['database_texts']:,} texts and "
        f"{items['database_images']:,} images. Score: {score}; ranked by {ranking}."
    )
    trials = row["shared"]["tune"]
    tuning = f"{trials} tuning trials per method on held-out data." if trials else "No tuning."
    won, total = summary.wins()
    wins = f"<b>THN</b> is above every baseline in {won} of {total} cells. " if total else ""
    text = html.escape(f"{about} {tuning}")
    return f'<p class="lead">{wins}</p><p class="dim">{text}</p>'


def _figures(drawings: Mapping[str, tuple[str, str]], keys: Sequence[str]) -> str:
    parts = [(html.escape(drawings[key][0]), drawings[key][1]) for key in keys if key in drawings]
    return "\n".join(
        f'<figure role="img" aria-label="{caption}">{themed(svg)}'
        f"<figcaption>{caption}</figcaption></figure>"
        for caption, svg in parts
    )


def _footer(summary: Summary) -> str:
    row = summary.rows[-1]
    versions = f"transhash {row['version']}, Python {row['python']}, torch {row['torch']}"
    return f"<footer>{html.escape(versions)}. Data {html.escape(row['shared']['data'])}.</footer>"
