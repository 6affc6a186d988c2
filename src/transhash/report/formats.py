"""One walk through a table, written as Markdown, as LaTeX and as HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from transhash.report.figures import css_colour
from transhash.report.summary import PROPOSED
from transhash.report.tables import MARK, Content, Entry, Line, Table


def _tex(text: str) -> str:
    replaced: dict[str, str] = {"→": r"$\rightarrow$", "±": r"$\pm$", "²": "$^2$", "_": r"\_"}
    for sign, written in replaced.items():
        text = text.replace(sign, written)
    return text


class _Format(NamedTuple):
    """How the parts of a table are written: best and second of a column, ±, nothing, names."""

    best: str
    second: str
    spread: str
    nothing: str
    name: Callable[[str], str]
    block: str = "{name}"  # before its first line

    def cell(self, content: Content) -> str:
        if content is None:
            return self.nothing
        if not isinstance(content, Entry):
            return self.name(content)
        text = {1: self.best, 2: self.second}.get(content.place, "{}").format(content.text)
        return text + (self.spread.format(content.spread) if content.spread else "")

    def rows(self, table: Table) -> Iterator[tuple[Line, bool, list[str]]]:
        """Each line, whether it is its block's last, and its columns; a block is named once."""
        for block, lines in table.blocks:
            for number, line in enumerate(lines):
                named = self.block.format(name=self.name(block), lines=len(lines))
                first = [] if len(table.corner) < 2 else ["" if number else named]
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
    """A pipe table; best bold, second underlined."""
    one = len(table.groups) == 1
    heads = [name if one else f"{group} {name}" for group, names in table.groups for name in names]
    rule = "|" + "---|" * len(table.corner) + "---:|" * len(heads)
    rows = [columns for _, _, columns in _MARKDOWN.rows(table)]
    head, *lines = ["| " + " | ".join(row) + " |" for row in ([*table.corner, *heads], *rows)]
    return "\n".join([f"**{table.caption}**", "", head, rule, *lines]) + "\n"


def latex(table: Table) -> str:
    r"""A tabular in the paper's shape; needs \usepackage{multirow}."""
    corner = len(table.corner)
    width = corner + sum(len(names) for _, names in table.groups)
    layout = "|".join([*"l" * corner, *("c" * len(names) for _, names in table.groups)])
    out = [r"\begin{table}[t]", r"\centering\small", rf"\caption{{{_tex(table.caption)}}}"]
    out += [rf"\label{{table:{table.key}}}", rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    if any(group for group, _ in table.groups):
        named = [rf"\multicolumn{{{len(n)}}}{{c}}{{{_tex(group)}}}" for group, n in table.groups]
        out.append(" & " * corner + " & ".join(named) + r" \\")
    heads = [_tex(name) for _, names in table.groups for name in names]
    out += [" & ".join([*table.corner, *heads]) + r" \\", r"\hline"]
    for line, last, columns in _LATEX.rows(table):
        if line.name in (PROPOSED, "chance") and not columns[0]:
            out.append(rf"\cline{{2-{width}}}")
        out.append(" & ".join(columns) + r" \\")
        if last:
            out.append(r"\hline")
    return "\n".join([*out, r"\end{tabular}", r"\end{table}"]) + "\n"


def html_table(table: Table, methods: Collection[str]) -> str:
    """Each of `methods` has a dot of its colour before its name."""

    def named(text: str) -> str:
        method = text.removesuffix(MARK)
        dot = f'<span class="key" style="background: {css_colour(method)}"></span>'
        return (dot if method in methods else "") + html.escape(text)

    task = '<th class="task" rowspan="{lines}">{name}</th>'
    written = _Format("<b>{}</b>", "<u>{}</u>", "<small>± {}</small>", "–", named, task)
    corner, starts = len(table.corner), {0}  # columns that begin a group
    for _, names in table.groups:
        starts.add(max(starts) + len(names))

    def across(texts: list[str], tag: str) -> str:
        marks = [" class=break" if place in starts else "" for place in range(len(texts))]
        return "".join(f"<{tag}{m}>{text}</{tag}>" for m, text in zip(marks, texts, strict=True))

    out = [f"<table><caption>{html.escape(table.caption)}</caption><thead>"]
    if len(table.groups) > 1:  # a single group says what the caption says
        spans = "".join(
            f'<th class="break" colspan="{len(names)}">{html.escape(group)}</th>'
            for group, names in table.groups
        )
        out.append(f'<tr class="group"><th colspan="{corner}"></th>{spans}</tr>')
    first = "".join(f'<th class="name">{head}</th>' for head in table.corner)
    heads = [html.escape(head) for _, names in table.groups for head in names]
    out.append(f"<tr>{first}{across(heads, 'th')}</tr></thead><tbody>")
    for line, last, columns in written.rows(table):
        *block, name = columns[:corner]
        kind = {PROPOSED: "thn", "chance": "chance"}.get(line.name, "")
        out.append(f'<tr class="{kind}">{"".join(block)}<th class="name">{name}</th>')
        out.append(across(columns[corner:], "td") + ("</tr></tbody><tbody>" if last else "</tr>"))
    return f'<div class="wide">{"".join(out).removesuffix("<tbody>")}</table></div>'
