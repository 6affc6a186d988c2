"""One HTML file with the tables and figures of a run; it asks nothing of the network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from transhash.report.figures import css_variables
from transhash.report.formats import html_table
from transhash.report.summary import Summary
from transhash.report.tables import Table

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_NOTE = """The paper's numbers are printed beside ours. They are not comparable cell by cell: the
paper does not name its 16 categories, its features came from a fine-tuned AlexNet, and public
codes of the field disagree on what MAP is."""

_CSS = """
:root { color-scheme: light dark; VARIABLES }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1080px; padding: 2.5rem 1.25rem 5rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 FONT }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; letter-spacing: -.01em }
h2 { font-size: 1.15rem; margin: 3rem 0 .8rem }
p { max-width: 46rem; margin: .5rem 0 } .dim, figcaption, caption { opacity: .72 }
.lead { font-size: 1.05rem } .lead b { color: var(--thn) }
.wide { overflow-x: auto; margin: 1rem 0 2rem }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums;
  white-space: nowrap; min-width: 60% }
caption { text-align: left; padding: 0 0 .5rem; white-space: normal }
th, td { padding: .26rem .7rem; text-align: right; font-weight: 400 }
thead th { border-bottom: 1px solid var(--faint); opacity: .72 }
tr.group th { border: 0; text-align: center; padding-bottom: 0 }
tbody { border-bottom: 1px solid var(--faint) }
th.name, th.task { text-align: left } th.task { vertical-align: top; font-weight: 600 }
tr.thn { background: color-mix(in srgb, var(--thn) 9%, transparent) }
tr.chance { opacity: .6 } td small { opacity: .6; margin-left: .35em }
td.break, th.break { border-left: 1px solid var(--faint) }
.key { display: inline-block; width: .62em; height: .62em; border-radius: 50%; margin-right: .5em }
figure { margin: 1.2rem 0 2.4rem } figure svg { width: 100%; height: auto; display: block }
figcaption { font-size: .86rem; margin-top: .3rem }
details { margin: 1rem 0 } summary { cursor: pointer; padding: .3rem 0; font-weight: 600 }
footer { margin-top: 4rem; font-size: .82rem; opacity: .7 }
@media print { body { max-width: none } details { display: block } }
"""


def page(
    summary: Summary, tables: Sequence[Table], drawings: Iterable[tuple[str, str, str]]
) -> str:
    """`drawings` are (key, caption, SVG); curves of all lengths but the longest are folded."""
    written = {table.key: html_table(table, summary.methods) for table in tables}
    drawn = {key: (caption, svg) for key, caption, svg in drawings}
    parts = [f"<h1>{html.escape(summary.benchmark)}</h1>", _lead(summary)]
    if summary.published:
        parts.append(f'<p class="dim">{_NOTE}</p>')
    parts += ["<h2>Comparison</h2>", written["comparison"], _figures(drawn, ["map"])]
    parts += [written[key] for key in ("margins", "differences") if key in written]
    for head, kind in (("by ranking", "pr-rank"), ("by Hamming radius", "pr-radius")):
        longest, *others = [f"{kind}-{bits}" for bits in reversed(summary.bits)]
        parts.append(f"<h2>Precision and recall {head}</h2>")
        parts.append(_figures(drawn, [longest]))
        if others:
            folded = _figures(drawn, list(reversed(others)))
            parts.append(f"<details><summary>Other code lengths</summary>{folded}</details>")
    if "ablation" in written:
        parts += ["<h2>Ablation</h2>", written["ablation"], _figures(drawn, ["ablation"])]
    if "training" in drawn:
        parts += ["<h2>Training</h2>", _figures(drawn, ["training"])]
    parts += ["<h2>Cost and health of the codes</h2>", written["costs"], _footer(summary)]
    title = f"{summary.benchmark}: results"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # No icon of its own would make the browser ask for one.
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_style()}</style>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def themed(svg: str) -> str:
    """The SVG with variables for its colours, so that it follows the page into the dark."""
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
    return _CSS.replace("VARIABLES", light).replace("DARK", dark).replace("FONT", _FONT)


def _lead(summary: Summary) -> str:
    row = summary.rows[0]
    items, score = row["items"], row["image_to_text"]["definition_in_words"]
    ranking = "Hamming distance (methods without codes: by their scores)"
    seeds = len(summary.seeds)
    about = (
        f"{len(summary.methods)} methods, {', '.join(map(str, summary.bits))} bits, "
        f"{seeds} seed{'s'[: seeds != 1]}. {items['auxiliary_images']:,} auxiliary images and "
        f"{items['auxiliary_texts']:,} texts, {items['target_images']:,} + "
        f"{items['target_texts']:,} unlabelled target items, {items['query_images']:,} + "
        f"{items['query_texts']:,} queries against {items['database_texts']:,} texts and "
        f"{items['database_images']:,} images. Score: {score}; ranked by {ranking}."
    )
    trials = row["shared"]["tune"]
    tuned = (
        f"Settings of every method chosen on held-out auxiliary data, {trials} trials each."
        if trials
        else "Settings as given, none tuned."
    )
    won, total = summary.wins()
    won_text = f"<b>THN</b> is above every rival in {won} of {total} cells. " if total else ""
    text = html.escape(f"{about} {tuned}")
    return f'<p class="lead">{won_text}</p><p class="dim">{text}</p>'


def _figures(drawn: dict[str, tuple[str, str]], keys: Sequence[str]) -> str:
    return "\n".join(
        f'<figure role="img" aria-label="{html.escape(drawn[key][0])}">{themed(drawn[key][1])}'
        f"<figcaption>{html.escape(drawn[key][0])}</figcaption></figure>"
        for key in keys
        if key in drawn
    )


def _footer(summary: Summary) -> str:
    row = summary.rows[-1]
    made = f"transhash {row['version']}, Python {row['python']}, torch {row['torch']}"
    return f"<footer>{html.escape(made)}. Data {html.escape(row['shared']['data'])}.</footer>"
