"""The tables of a report, in the shape of the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from transhash.experiments.plan import MethodSpec
from transhash.experiments.results import Row
from transhash.report.summary import (
    BASELINES,
    DIRECTIONS,
    FINE_TUNED,
    PROPOSED,
    REAL_VALUED,
    VARIANTS,
    Mean,
    Summary,
    confidence_interval,
)

DECIMALS = 4  # as in the paper


@dataclass(frozen=True)
class Entry:
    """A number in a table; rank 1 is the best of its column, 2 the second."""

    value: float
    sd: float | None = None
    rank: int = 0
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
    """Columns are grouped, and lines are in blocks (the paper's tasks), with or without a name."""

    key: str
    caption: str
    corner: Sequence[str]  # heads of the columns before the numbers: Task and Method, or Method
    groups: Sequence[tuple[str, Sequence[str]]]
    blocks: Sequence[tuple[str, Sequence[Line]]]


def build_tables(summary: Summary) -> list[Table]:
    """Return all tables that the experiment has rows for."""
    tables = [comparison(summary)]
    if summary.has_variants:
        tables.append(ablation(summary))
    if PROPOSED in summary.methods and len(summary.methods) > 1:
        tables.append(margins(summary))
        if len(summary.seeds) > 1:
            tables.append(differences(summary))
    return [*tables, costs(summary)]


def comparison(summary: Summary) -> Table:
    """Table 1: a block per task, a line per method, with the paper's numbers if there are any."""
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
    return Table("comparison", caption, ("Task", "Method"), groups, blocks)


def ablation(summary: Summary) -> Table:
    """Table 2: THN and its ablations, both directions side by side."""
    specs = [spec for spec in (*VARIANTS, PROPOSED) if spec in summary.methods]
    blocks = [("", _lines(summary, specs, [(summary.map, d) for d in DIRECTIONS]))]
    if any(str(spec) in maps for maps in summary.published.values() for spec in VARIANTS):
        columns = [(summary.published_map, direction) for direction in DIRECTIONS]
        blocks.append(("", _lines(summary, specs, columns, " (paper)")))
    groups = [(task, [f"{bits} bits" for bits in summary.bits]) for task in DIRECTIONS.values()]
    caption = f"MAP of THN's ablations on {summary.benchmark}"
    return Table("ablation", caption, ("Method",), groups, blocks)


def margins(summary: Summary) -> Table:
    """THN minus the others in points of MAP, averaged over the code lengths."""
    sources: list[tuple[str, Callable[[str, MethodSpec | None], Mean | None]]]
    sources = [("ours", summary.margin)]
    if summary.published:
        sources.append(("paper", summary.published_margin))
    others: list[tuple[str, MethodSpec | None]]
    others = [(spec.label, spec) for spec in summary.methods if spec != PROPOSED]
    if any(spec in BASELINES for spec in summary.methods):
        others.insert(0, ("best baseline of each cell", None))
    columns = [(margin, direction) for _, margin in sources for direction in DIRECTIONS]
    lines = [
        Line(label, [_entry(margin(direction, other), decimals=1) for margin, direction in columns])
        for label, other in others
    ]
    groups = [(name, list(DIRECTIONS.values())) for name, _ in sources]
    won, total = summary.wins()
    caption = "Average margin of THN, in points of MAP (paired by seed)"
    if total:
        caption += f"; THN is above every baseline in {won} of {total} cells"
    return Table("margins", caption, ("THN over",), groups, [("", lines)])


def differences(summary: Summary) -> Table:
    """THN, frozen and fine-tuned, minus every other method by split, with intervals."""
    blocks = []
    for own in (PROPOSED, FINE_TUNED):
        if own not in summary.methods:
            continue
        lines = []
        for other in summary.methods:
            cells: list[Content] = []
            for direction in DIRECTIONS:
                gains = summary.margins_by_seed(direction, other, own)
                interval = confidence_interval(gains, summary.test_ratio(direction))
                cells.append(_entry(summary.margin(direction, other, own), decimals=1))
                cells.append(interval and f"{interval[0]:+.1f} to {interval[1]:+.1f}")
            if other != own:
                lines.append(Line(other.label, cells))
        blocks.append((own.label, lines))
    caption = (
        f"Paired differences in points of MAP over {len(summary.seeds)} splits, averaged over code "
        "lengths, with 95% intervals corrected for overlapping splits (Nadeau and Bengio, 2003)"
    )
    groups = [(task, ["difference", "95%"]) for task in DIRECTIONS.values()]
    return Table("differences", caption, ("", "over"), groups, blocks)


def costs(summary: Summary) -> Table:
    """Time of each method, and statistics that show collapsed codes."""
    heads = ["fit s", "tune s", "encode s", "held-out MAP", "image codes", "text codes"]
    heads += ["bit balance", "image MMD²", "text MMD²"]
    blocks = []
    for spec in summary.methods:
        lengths = {f"{bits} bits": summary.cells(spec, bits) for bits in summary.bits}
        if spec.method in REAL_VALUED:  # the same at every length
            lengths = {"no codes": [row for rows in lengths.values() for row in rows]}
        lines = [Line(name, _cost_cells(rows)) for name, rows in lengths.items() if rows]
        blocks.append((spec.label, lines))
    caption = "Time, held-out MAP, distinct codes, share of +1 over the bits, MMD² before and after"
    return Table("costs", caption, ("Method", "Length"), [("", heads)], blocks)


def _cost_cells(rows: Sequence[Row]) -> list[Content]:
    def values(name: str) -> list[Any]:
        return [row[name] for row in rows if row.get(name) is not None]

    def average(numbers: Sequence[float], decimals: int) -> Entry | None:
        return Entry(fmean(numbers), decimals=decimals) if numbers else None

    def mmd(modality: str) -> str | None:
        """Before and after training, of methods that align domains."""
        both = [mmd[modality] for mmd in values("mmd") if modality in mmd]
        before, after = ([mmd[when] for mmd in both] for when in ("before", "after"))
        return f"{fmean(before):.3f} to {fmean(after):.3f}" if both else None

    codes, balance = values("distinct_codes"), values("bit_balance")
    lowest, highest = (
        min((low for low, _ in balance), default=0),
        max((b[1] for b in balance), default=0),
    )
    return [
        average(values("training_seconds"), 1),
        average(values("tuning_seconds"), 1),
        average(values("encode_seconds"), 2),
        average([fmean(both) for both in values("held_out_map") if None not in both], DECIMALS),
        average([count["images"] for count in codes], 0),
        average([count["texts"] for count in codes], 0),
        f"{lowest:.2f} to {highest:.2f}" if balance else None,
        mmd("images"),
        mmd("texts"),
    ]


def _lines(
    summary: Summary,
    specs: Sequence[MethodSpec],
    columns: Sequence[tuple[Callable[[str, MethodSpec, int], Mean | None], str]],
    suffix: str = "",
) -> list[Line]:
    """Return a line per method with a column per source, direction and code length."""
    ranked = [
        _rank({spec: source(direction, spec, bits) for spec in specs})
        for source, direction in columns
        for bits in summary.bits
    ]
    return [Line(spec.label + suffix, [column[spec] for column in ranked]) for spec in specs]


def _entry(score: Mean | None, rank: int = 0, decimals: int = DECIMALS) -> Entry | None:
    return None if score is None else Entry(score.value, score.sd, rank, decimals)


def _rank(scores: dict[MethodSpec, Mean | None]) -> dict[MethodSpec, Entry | None]:
    """Mark the best and second of a column as printed: equal numbers share a rank."""
    printed = {
        spec: round(score.value, DECIMALS) for spec, score in scores.items() if score is not None
    }
    # A column with one number has no best.
    order = sorted(set(printed.values()), reverse=True)[:2] if len(printed) > 1 else []
    ranks = {spec: order.index(value) + 1 for spec, value in printed.items() if value in order}
    return {spec: _entry(score, ranks.get(spec, 0)) for spec, score in scores.items()}
