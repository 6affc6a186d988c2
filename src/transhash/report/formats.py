"""Reports as Markdown, LaTeX and one HTML page that needs no network."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from transhash.report.figures import css_variable, css_variables
from transhash.report.summary import PROPOSED, Summary
from transhash.report.tables import Content, Entry, Line, Table


def _tex(text: str) -> str:
    for sign, tex in {"→": r"$\rightarrow$", "±": r"$\pm$", "²": "$^2$", "_": r"\_"}.items():
        text = text.replace(sign, tex)
    return text


class _Format(NamedTuple):
    """Templates for the parts of a table."""

    best: str
    second: str
    spread: str
    empty: str
    name: Callable[[str], str]
    block: str = "{name}"  # before its first line

    def cell(self, content: Content) -> str:
        if content is None:
            return self.empty
        if not isinstance(content, Entry):
            return self.name(content)
        text = {1: self.best, 2: self.second}.get(content.rank, "{}").format(content.text)
        return text + (self.spread.format(content.spread) if content.spread else "")

    def rows(self, table: Table) -> Iterator[tuple[Line, bool, list[str]]]:
        """Yield each line, whether it is the last of its block, and its columns."""
        for block, lines in table.blocks:
            for number, line in enumerate(lines):
                head = self.block.format(name=self.name(block), lines=len(lines))
                first = [] if len(table.corner) < 2 else ["" if number else head]
                cells = map(self.cell, line.cells)
                yield line, line is lines[-1], [*first, self.name(line.name), *cells]


_MARKDOWN = _Format("**{}**", "<u>{}</u>", " ± {}", "–", str)
_LATEX = _Format(
    r"\textbf{{{}}}",
    r"\underline{{{}}}",
    r"$\pm${}",
    "--",
    _tex,
    r"\multirow{{{lines}}}{{*}}{{{name}}}",
)


def markdown(table: Table) -> str:
    """Return a pipe table with the best bold and the second underlined."""
    single = len(table.groups) == 1
    heads = [n if single else f"{group} {n}" for group, names in table.groups for n in names]
    rule = "|" + "---|" * len(table.corner) + "---:|" * len(heads)
    rows = [columns for _, _, columns in _MARKDOWN.rows(table)]
    head, *lines = ["| " + " | ".join(row) + " |" for row in ([*table.corner, *heads], *rows)]
    return "\n".join([f"**{table.caption}**", "", head, rule, *lines]) + "\n"


def latex(table: Table) -> str:
    r"""Return a tabular in the paper's shape, which needs \usepackage{multirow}."""
    corner = len(table.corner)
    width = corner + sum(len(names) for _, names in table.groups)
    layout = "|".join([*"l" * corner, *("c" * len(names) for _, names in table.groups)])
    out = [r"\begin{table}[t]", r"\centering\small", rf"\caption{{{_tex(table.caption)}}}"]
    out += [rf"\label{{table:{table.key}}}", rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    if any(group for group, _ in table.groups):
        groups = [rf"\multicolumn{{{len(n)}}}{{c}}{{{_tex(group)}}}" for group, n in table.groups]
        out.append(" & " * corner + " & ".join(groups) + r" \\")
    heads = [_tex(name) for _, names in table.groups for name in names]
    out += [" & ".join([*table.corner, *heads]) + r" \\", r"\hline"]
    for line, last, columns in _LATEX.rows(table):
        if line.name in (PROPOSED.label, "chance") and not columns[0]:
            out.append(rf"\cline{{2-{width}}}")
        out.append(" & ".join(columns) + r" \\")
        if last:
            out.append(r"\hline")
    return "\n".join([*out, r"\end{tabular}", r"\end{table}"]) + "\n"


def html_table(table: Table, methods: Mapping[str, str]) -> str:
    """Return an HTML table with a dot of its color before each label of `methods`."""

    def name(text: str) -> str:
        if text not in methods:
            return html.escape(text)
        color = f"var(--{css_variable(methods[text])})"
        return f'<span class="key" style="background: {color}"></span>' + html.escape(text)

    task = '<th class="task" rowspan="{lines}">{name}</th>'
    template = _Format("<b>{}</b>", "<u>{}</u>", "<small>± {}</small>", "–", name, task)
    corner, starts = len(table.corner), {0}  # columns that begin a group
    for _, names in table.groups:
        starts.add(max(starts) + len(names))

    def columns_html(texts: list[str], tag: str) -> str:
        classes = [" class=break" if column in starts else "" for column in range(len(texts))]
        return "".join(f"<{tag}{c}>{text}</{tag}>" for c, text in zip(classes, texts, strict=True))

    out = [f"<table><caption>{html.escape(table.caption)}</caption><thead>"]
    if len(table.groups) > 1:  # a single group repeats the caption
        spans = "".join(
            f'<th class="break" colspan="{len(names)}">{html.escape(group)}</th>'
            for group, names in table.groups
        )
        out.append(f'<tr class="group"><th colspan="{corner}"></th>{spans}</tr>')
    first = "".join(f'<th class="name">{head}</th>' for head in table.corner)
    heads = [html.escape(head) for _, names in table.groups for head in names]
    out.append(f"<tr>{first}{columns_html(heads, 'th')}</tr></thead><tbody>")
    for line, last, columns in template.rows(table):
        *block, label = columns[:corner]
        kind = {PROPOSED.label: "thn", "chance": "chance"}.get(line.name, "")
        out.append(f'<tr class="{kind}">{"".join(block)}<th class="name">{label}</th>')
        out.append(
            columns_html(columns[corner:], "td") + ("</tr></tbody><tbody>" if last else "</tr>")
        )
    return f'<div class="wide">{"".join(out).removesuffix("<tbody>")}</table></div>'


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
