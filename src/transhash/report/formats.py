"""Tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from transhash.report.figures import css_variable
from transhash.report.summary import PROPOSED
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
