"""Tables in the paper's shape: what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from transhash.experiments.results import Row
from transhash.report.summary import (
    BASELINES,
    DIRECTIONS,
    PROPOSED,
    REAL_VALUED,
    VARIANTS,
    Mean,
    Summary,
    interval,
)

DECIMALS = 4  # the paper's
MARK = "*"  # after the name of what ranks by real values
_MEANING = f"; {MARK} ranks by real values, not by codes, at every length alike"


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


Content = Entry | str | None


@dataclass(frozen=True)
class Line:
    name: str
    cells: Sequence[Content]


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
    if PROPOSED in summary.methods and any(name in summary.methods for name in VARIANTS):
        made.append(ablation(summary))
    if PROPOSED in summary.methods and len(summary.methods) > 1:
        made.append(margins(summary))
        if len(summary.seeds) > 1:
            made.append(differences(summary))
    return [*made, costs(summary)]


def comparison(summary: Summary) -> Table:
    """Table 1: a block a task, a line a method, the paper's numbers beside ours if they exist."""
    lengths = [f"{bits} bits" for bits in summary.bits]
    sources, names = [summary.map], [summary.benchmark]
    if summary.published:
        sources, names = [summary.map, summary.published_map], ["ours", "paper"]
    blocks = []
    for direction, task in DIRECTIONS.items():
        lines = _lines(summary, summary.methods, [(source, direction) for source in sources])
        chance: list[Content] = [_entry(summary.chance(direction, bits)) for bits in summary.bits]
        lines.append(Line("chance", chance + [None] * (len(lines[0].cells) - len(chance))))
        blocks.append((task, lines))
    seeds = f"mean ± sd over {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else "one seed"
    caption = f"MAP of cross-modal retrieval on {summary.benchmark}, {seeds}"
    groups = [(name, lengths) for name in names]
    caption += _marked(summary)
    return Table("comparison", caption, ("SplitData", "Method"), groups, blocks)


def ablation(summary: Summary) -> Table:
    """Table 2: THN and its variants, both directions side by side."""
    names = [name for name in (*VARIANTS, PROPOSED) if name in summary.methods]
    blocks = [("", _lines(summary, names, [(summary.map, d) for d in DIRECTIONS]))]
    if any(name in printed for printed in summary.published.values() for name in VARIANTS):
        columns = [(summary.published_map, direction) for direction in DIRECTIONS]
        blocks.append(("", _lines(summary, names, columns, " (paper)")))
    groups = [(task, [f"{bits} bits" for bits in summary.bits]) for task in DIRECTIONS.values()]
    caption = f"MAP of THN's variants on {summary.benchmark}"
    return Table("ablation", caption, ("Method",), groups, blocks)


def margins(summary: Summary) -> Table:
    """THN minus the others in points of MAP, averaged over the code lengths."""
    sources: list[tuple[str, Callable[[str, str | None], Mean | None]]]
    sources = [("ours", summary.margin)]
    if summary.published:
        sources.append(("paper", summary.published_margin))
    others: list[tuple[str, str | None]] = [(n, n) for n in summary.methods if n != PROPOSED]
    if any(name in BASELINES for name in summary.methods):
        others.insert(0, ("best rival of each cell", None))
    columns = [(of, direction) for _, of in sources for direction in DIRECTIONS]
    lines = [
        Line(_named(name), [_entry(of(direction, other), decimals=1) for of, direction in columns])
        for name, other in others
    ]
    groups = [(name, list(DIRECTIONS.values())) for name, _ in sources]
    won, total = summary.wins()
    caption = "Average margin of THN, in points of MAP (paired by seed)"
    if total:
        caption += f"; THN is above every rival in {won} of {total} cells"
    caption += _marked(summary)
    return Table("margins", caption, ("THN over",), groups, [("", lines)])


def differences(summary: Summary) -> Table:
    """THN, frozen and fine-tuned, minus every other method, split by split, with intervals."""
    blocks = []
    for ours in (PROPOSED, f"{PROPOSED}@{PROPOSED}"):
        if ours not in summary.methods:
            continue
        lines = []
        for other in summary.methods:
            cells: list[Content] = []
            for direction in DIRECTIONS:
                found = interval(summary.margins_by_seed(direction, other, ours))
                cells.append(_entry(summary.margin(direction, other, ours), decimals=1))
                cells.append(None if found is None else f"{found[0]:+.1f} to {found[1]:+.1f}")
            if other != ours:
                lines.append(Line(_named(other), cells))
        blocks.append((ours, lines))
    caption = (
        f"Paired differences in points of MAP over {len(summary.seeds)} splits, averaged over code "
        "lengths, with 95% intervals (Student); splits of one data set overlap, so these are narrow"
    )
    groups = [(task, ["difference", "95%"]) for task in DIRECTIONS.values()]
    return Table("differences", caption + _marked(summary), ("", "over"), groups, blocks)


def costs(summary: Summary) -> Table:
    """What a method takes, and whether its codes are healthy."""
    heads = ["fit s", "tune s", "encode s", "held-out MAP", "image codes", "text codes"]
    heads += ["bit balance", "image MMD²", "text MMD²"]
    blocks = []
    for method in summary.methods:
        lines = []
        lengths = {f"{bits} bits": summary.cells(method, bits) for bits in summary.bits}
        if method in REAL_VALUED:  # the same at every length
            lengths = {"no codes": [row for rows in lengths.values() for row in rows]}
        for length, rows in lengths.items():
            if not rows:
                continue
            held = [score for score in _known(rows, "held_out_map") if None not in score]
            codes = _known(rows, "distinct_codes")
            cells: list[Content] = [
                _average(_known(rows, "training_seconds"), 1),
                _average(_known(rows, "tuning_seconds"), 1),
                _average(_known(rows, "encode_seconds"), 2),
                _average([fmean(score) for score in held], DECIMALS),
                _average([one["images"] for one in codes], 0),
                _average([one["texts"] for one in codes], 0),
                _balance(_known(rows, "bit_balance")),
                _mmd(_known(rows, "mmd"), "images"),
                _mmd(_known(rows, "mmd"), "texts"),
            ]
            lines.append(Line(length, cells))
        blocks.append((_named(method), lines))
    caption = "Time, held-out MAP, distinct codes, share of +1 over the bits, MMD² before and after"
    return Table("costs", caption, ("Method", "MinLength"), [("", heads)], blocks)


def _lines(
    summary: Summary,
    names: Sequence[str],
    columns: Sequence[tuple[Callable[[str, str, int], Mean | None], str]],
    suffix: str = "",
) -> list[Line]:
    """A line a method; for each source of MAPs and direction, a column a code length."""
    ranked = [
        _ranked({name: source(direction, name, bits) for name in names})
        for source, direction in columns
        for bits in summary.bits
    ]
    return [Line(_named(name) + suffix, [column[name] for column in ranked]) for name in names]


def _named(method: str) -> str:
    return method + MARK if method in REAL_VALUED else method


def _marked(summary: Summary) -> str:
    """What the mark means, where it stands."""
    return _MEANING if any(name in REAL_VALUED for name in summary.methods) else ""


def _entry(score: Mean | None, place: int = 0, decimals: int = DECIMALS) -> Entry | None:
    return None if score is None else Entry(score.value, score.sd, place, decimals)


def _ranked(scores: dict[str, Mean | None]) -> dict[str, Entry | None]:
    """Best and second of a column, by what is printed: equal figures share a place."""
    shown = {round(score.value, DECIMALS) for score in scores.values() if score is not None}
    # A column of one number has no best.
    order = sorted(shown, reverse=True)[:2] if len([s for s in scores.values() if s]) > 1 else []

    def place(score: Mean | None) -> int:
        printed = None if score is None else round(score.value, DECIMALS)
        return order.index(printed) + 1 if printed in order else 0

    return {name: _entry(score, place(score)) for name, score in scores.items()}


def _known(rows: Sequence[Row], name: str) -> list[Any]:
    """What the rows say of it: a method without codes says nothing of codes."""
    return [row[name] for row in rows if row.get(name) is not None]


def _average(values: Sequence[float], decimals: int) -> Entry | None:
    return Entry(fmean(values), decimals=decimals) if values else None


def _balance(shares: Sequence[tuple[float, float]]) -> str | None:
    """From the bit that is on least to the one that is on most."""
    if not shares:
        return None
    return f"{min(low for low, _ in shares):.2f} to {max(high for _, high in shares):.2f}"


def _mmd(found: Sequence[dict[str, dict[str, float]]], side: str) -> str | None:
    """Before and after training, averaged over the seeds of methods that align domains."""
    known = [mmd[side] for mmd in found if side in mmd]
    if not known:
        return None
    return f"{fmean(m['before'] for m in known):.3f} to {fmean(m['after'] for m in known):.3f}"
