"""Tables in the paper's shape, and their Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from transhash.experiments.results import Row
from transhash.report.summary import DIRECTIONS, RIVALS, VARIANTS, Mean, Summary

DECIMALS = 4  # the paper's


@dataclass(frozen=True)
class Entry:
    """A number as it stands in a table; place 1 is the best of its column, 2 the second."""

    value: float
    sd: float | None = None
    place: int = 0
    decimals: int = DECIMALS

    @property
    def text(self) -> str:
        return f"{self.value:.{self.decimals}f}"

    @property
    def spread(self) -> str:
        return "" if self.sd is None else f"{self.sd:.{self.decimals}f}"


Cell = Entry | str | None


@dataclass(frozen=True)
class Line:
    name: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """Columns stand in groups, lines in blocks (the paper's tasks); a block may have no name."""

    key: str
    caption: str
    corner: Sequence[str]  # heads of the columns before the numbers: Task and Method, or Method
    groups: Sequence[tuple[str, Sequence[str]]]
    blocks: Sequence[tuple[str, Sequence[Line]]]


def tables(summary: Summary) -> list[Table]:
    """All tables that the rows of a run can fill."""
    made = [comparison(summary)]
    if "THN" in summary.methods and any(name in summary.methods for name in VARIANTS):
        made.append(ablation(summary))
    if "THN" in summary.methods and len(summary.methods) > 1:
        made.append(margins(summary))
    return [*made, costs(summary)]


def comparison(summary: Summary) -> Table:
    """Table 1: a block a task, a line a method, the paper's numbers beside ours if they exist."""
    lengths = [f"{bits} bits" for bits in summary.bits]
    groups = [(summary.benchmark, lengths)]
    if summary.published:
        groups = [("ours", lengths), ("paper", lengths)]
    blocks = []
    for direction, task in DIRECTIONS.items():
        columns = [
            _ranked({name: summary.map(direction, name, bits) for name in summary.methods})
            for bits in summary.bits
        ]
        if summary.published:
            columns += [
                _ranked({name: _published(summary, direction, name, b) for name in summary.methods})
                for b in summary.bits
            ]
        lines = [Line(name, [column[name] for column in columns]) for name in summary.methods]
        chance = [_entry(summary.chance(direction, bits)) for bits in summary.bits]
        lines.append(Line("chance", chance + [None] * (len(columns) - len(chance))))
        blocks.append((task, lines))
    seeds = f"mean ± sd over {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else "one seed"
    caption = f"MAP of cross-modal retrieval on {summary.benchmark}, {seeds}"
    return Table("comparison", caption, ("Task", "Method"), groups, blocks)


def ablation(summary: Summary) -> Table:
    """Table 2: THN and its variants, both directions side by side."""
    names = [name for name in (*VARIANTS, "THN") if name in summary.methods]
    lengths = [f"{bits} bits" for bits in summary.bits]
    columns = [
        _ranked({name: summary.map(direction, name, bits) for name in names})
        for direction in DIRECTIONS
        for bits in summary.bits
    ]
    lines = [Line(name, [column[name] for column in columns]) for name in names]
    blocks = [("", lines)]
    if summary.published.get("image_to_text", {}).get("THN-D"):
        published = [
            _ranked({name: _published(summary, direction, name, bits) for name in names})
            for direction in DIRECTIONS
            for bits in summary.bits
        ]
        blocks.append(
            (
                "",
                [Line(f"{name} (paper)", [column[name] for column in published]) for name in names],
            )
        )
    groups = [(task, lengths) for task in DIRECTIONS.values()]
    return Table(
        "ablation", f"MAP of THN's variants on {summary.benchmark}", ("Method",), groups, blocks
    )


def margins(summary: Summary) -> Table:
    """THN minus the others in points of MAP, averaged over the code lengths."""
    others = [name for name in (*RIVALS, *VARIANTS) if name in summary.methods]
    lines = []
    if any(name in RIVALS for name in others):
        lines.append(Line("best rival of each cell", _margin_cells(summary, None)))
    lines += [Line(name, _margin_cells(summary, name)) for name in others]
    groups = [("ours", list(DIRECTIONS.values()))]
    if summary.published:
        groups.append(("paper", list(DIRECTIONS.values())))
    won, total = summary.wins()
    caption = "Average margin of THN, in points of MAP (paired by seed)"
    if total:
        caption += f"; THN is above every rival in {won} of {total} cells"
    return Table("margins", caption, ("THN over",), groups, [("", lines)])


def costs(summary: Summary) -> Table:
    """What a method takes, and whether its codes are healthy."""
    heads = ["fit s", "tune s", "encode s", "held-out MAP", "image codes", "text codes"]
    heads += ["bit balance", "image MMD²", "text MMD²"]
    blocks = []
    for method in summary.methods:
        lines = []
        for bits in summary.bits:
            rows = summary.cells(method, bits)
            if not rows:
                continue
            held = [fmean(row["held_out_map"]) for row in rows if None not in row["held_out_map"]]
            cells: list[Cell] = [
                Entry(fmean(row["training_seconds"] for row in rows), decimals=1),
                Entry(fmean(row["tuning_seconds"] for row in rows), decimals=1),
                Entry(fmean(row["encode_seconds"] for row in rows), decimals=2),
                Entry(fmean(held)) if held else None,
                Entry(fmean(row["distinct_codes"]["images"] for row in rows), decimals=0),
                Entry(fmean(row["distinct_codes"]["texts"] for row in rows), decimals=0),
                f"{min(row['bit_balance'][0] for row in rows):.2f} to "
                f"{max(row['bit_balance'][1] for row in rows):.2f}",
                _mmd(rows, "images"),
                _mmd(rows, "texts"),
            ]
            lines.append(Line(f"{bits} bits", cells))
        blocks.append((method, lines))
    caption = "Time, held-out MAP, distinct codes, share of +1 over the bits, MMD² before and after"
    return Table("costs", caption, ("Method", "Length"), [("", heads)], blocks)


def markdown(table: Table) -> str:
    """A pipe table; best bold, second underlined."""
    heads = [f"{group} {name}".strip() for group, names in table.groups for name in names]
    if len(table.groups) == 1:
        heads = list(table.groups[0][1])
    corner = list(table.corner)
    lines = [
        f"**{table.caption}**",
        "",
        "| " + " | ".join([*corner, *heads]) + " |",
        "|" + "---|" * len(corner) + "---:|" * len(heads),
    ]
    for block, rows in table.blocks:
        for number, row in enumerate(rows):
            first = [block if number == 0 else ""] if len(corner) == 2 else []
            cells = [_shown(cell, "**{}**", "<u>{}</u>", " ± ") for cell in row.cells]
            lines.append("| " + " | ".join([*first, row.name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    r"""A tabular in the paper's shape; needs \usepackage{multirow}."""
    corner = len(table.corner)
    width = corner + sum(len(names) for _, names in table.groups)
    layout = "|".join([*"l" * corner, *("c" * len(names) for _, names in table.groups)])
    out = [r"\begin{table}[t]", r"\centering\small", rf"\caption{{{_tex(table.caption)}}}"]
    out += [rf"\label{{table:{table.key}}}", rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    named = [
        rf"\multicolumn{{{len(names)}}}{{c}}{{{_tex(group)}}}" for group, names in table.groups
    ]
    if any(group for group, _ in table.groups):
        out.append(" & " * corner + " & ".join(named) + r" \\")
    heads = [_tex(name) for _, names in table.groups for name in names]
    out += [" & ".join([*table.corner, *heads]) + r" \\", r"\hline"]
    for block, rows in table.blocks:
        for number, row in enumerate(rows):
            first = []
            if corner == 2:
                first = [rf"\multirow{{{len(rows)}}}{{*}}{{{_tex(block)}}}" if not number else ""]
            if row.name in ("THN", "chance") and corner == 2 and len(rows) > 2:
                out.append(rf"\cline{{2-{width}}}")
            cells = [_shown(c, r"\textbf{{{}}}", r"\underline{{{}}}", r"$\pm$") for c in row.cells]
            out.append(" & ".join([*first, _tex(row.name), *cells]) + r" \\")
        out.append(r"\hline")
    return "\n".join([*out, r"\end{tabular}", r"\end{table}"]) + "\n"


def _shown(cell: Cell, best: str, second: str, plus_minus: str) -> str:
    if cell is None:
        return "–" if "*" in best else "--"
    if isinstance(cell, str):
        return cell
    text = {1: best, 2: second}.get(cell.place, "{}").format(cell.text)
    return f"{text}{plus_minus}{cell.spread}" if cell.spread else text


def _tex(text: str) -> str:
    replaced: dict[str, str] = {"→": r"$\rightarrow$", "±": r"$\pm$", "²": "$^2$", "_": r"\_"}
    for sign, written in replaced.items():
        text = text.replace(sign, written)
    return text


def _entry(score: Mean | None, place: int = 0) -> Entry | None:
    return None if score is None else Entry(score.value, score.sd, place)


def _ranked(scores: dict[str, Mean | None]) -> dict[str, Entry | None]:
    """Best and second of a column, by what is printed: equal figures share a place."""
    shown = {round(score.value, DECIMALS) for score in scores.values() if score is not None}
    # A column of one number has no best.
    order = sorted(shown, reverse=True)[:2] if len([s for s in scores.values() if s]) > 1 else []

    def place(score: Mean | None) -> int:
        printed = None if score is None else round(score.value, DECIMALS)
        return order.index(printed) + 1 if printed in order else 0

    return {name: _entry(score, place(score)) for name, score in scores.items()}


def _published(summary: Summary, direction: str, method: str, bits: int) -> Mean | None:
    value = summary.published[direction].get(method, {}).get(bits)
    return None if value is None else Mean(value)


def _margin_cells(summary: Summary, other: str | None) -> list[Cell]:
    cells: list[Cell] = []
    sources: list[Callable[[str], Mean | None]] = [lambda d: summary.margin(d, other)]
    if summary.published:
        sources.append(lambda d: _published_margin(summary, d, other))
    for source in sources:
        for direction in DIRECTIONS:
            gain = source(direction)
            cells.append(None if gain is None else Entry(gain.value, gain.sd, decimals=1))
    return cells


def _published_margin(summary: Summary, direction: str, other: str | None) -> Mean | None:
    printed = summary.published[direction]
    names = [other] if other else list(RIVALS)
    if any(name not in printed for name in names):
        return None
    gains = [
        ours - max(printed[name][bits] for name in names) for bits, ours in printed["THN"].items()
    ]
    return Mean(100 * fmean(gains))


def _mmd(rows: Sequence[Row], side: str) -> str | None:
    """Before and after training, averaged over the seeds of methods that align domains."""
    known = [row["mmd"][side] for row in rows if row["mmd"] and side in row["mmd"]]
    if not known:
        return None
    return f"{fmean(m['before'] for m in known):.3f} to {fmean(m['after'] for m in known):.3f}"
