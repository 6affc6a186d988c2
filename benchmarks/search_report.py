"""Print tables and draw a figure of the results of benchmarks/search.py.

python benchmarks/search_report.py grid.jsonl --figure docs/images/search.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
# Required speed relative to FAISS flat, by bits
SINGLE = {16: 15, 32: 2.5, 64: 1.9, 128: 1.2}  # one query
BATCH = {32: 5, 64: 3.5, 128: 1.5}  # batch of 64
CLUSTERED = 50  # 32 and 64 bits, k = 10 and 100
EXACT = ("ours", "faiss flat", "usearch exact", "numpy")
ENGINES = (*EXACT, "faiss ivf", "faiss multihash", "faiss hnsw", "usearch hnsw")


def ratios(rows: Rows, engine: str = "ours") -> Iterable[tuple[dict[str, Any], float]]:
    """Yield the row of an engine, and the speed relative to FAISS flat, for each cell."""
    keys = ("kind", "items", "bits", "batch", "k", "threads")
    flat = {tuple(r[key] for key in keys): r for r in rows if r["engine"] == "faiss flat"}
    for row in rows:
        other = flat.get(tuple(row[key] for key in keys))
        if row["engine"] == engine and other is not None:
            yield row, other["ms"] / row["ms"]


def check_targets(rows: Rows, disk: dict[str, Any]) -> str:
    """Compare the results with the required speeds."""
    lines = ["", "targets (single thread, largest size measured)", ""]

    def check(what: str, value: float, target: float, unit: str, below: bool = False) -> None:
        met = value <= target if below else value >= target
        sign = "<=" if below else ">="
        lines.append(f"{'yes' if met else 'NO ':3}  {what:62} {value:9.2f} {sign} {target}{unit}")

    worst = min(ratios(rows), key=lambda pair: pair[1])
    rows = [row for row in rows if row["threads"] == 1]
    largest = max(row["items"] for row in rows)
    for row, ratio in ratios(rows):
        if row["items"] != largest:
            continue
        name = f"{row['kind']} {row['bits']} bits, batch {row['batch']}, k {row['k']}"
        if row["kind"] == "uniform" and row["k"] == 100:
            target = {1: SINGLE, 64: BATCH}.get(row["batch"], {}).get(row["bits"])
            if target:
                check(name, ratio, target, "x FAISS flat")
        elif row["kind"] != "uniform" and row["bits"] in (32, 64) and row["k"] in (10, 100):
            check(name, ratio, CLUSTERED, "x FAISS flat")
    for row in rows:
        if (row["engine"], row["kind"], row["batch"], row["k"], row["items"]) != (
            *("ours, scan only", "uniform", 1, 100, largest),
        ):
            continue
        if row["bits"] >= 32:
            read = row["items"] * row["bytes_per_item"] / row["cpu_ms"] / 1e6
            percent = 100 * read / row["bandwidth"]
            check(f"scan of {row['bits']} bits, fraction of read bandwidth", percent, 75, "%")
    cell = "{kind} {items:.0e} {bits} bits, {threads} threads, batch {batch} k {k}".format(
        **worst[0]
    )
    check(f"slowest cell against FAISS flat ({cell})", worst[1], 1, "x")
    sizes = sorted({row["items"] for row in rows})
    if len(sizes) > 1:
        cost = {
            (row["items"], row["bits"], row["batch"], row["k"]): row["cpu_ms"]
            for row in rows
            if row["engine"] == "ours" and row["kind"] == "clustered"
        }
        for (items, bits, batch, k), value in cost.items():
            first = cost.get((sizes[0], bits, batch, k))
            if items == sizes[-1] and first and batch == 1 and k == 100:
                name = f"cost of a query, {bits} bits clustered, items x{sizes[-1] / sizes[0]:.0f}"
                check(name, value / first, sizes[-1] / sizes[0], "x", below=True)
    check(
        f"opening {disk['items']:.0e} items, {disk['bits']} bits", disk["open_ms"], 50, " ms", True
    )
    allowed = 2 * disk["bits"] / 8 + 8
    check("bytes per item, uniform 64 bits", disk["bytes_per_item"], allowed, " B", True)
    return "\n".join(lines)


def tables(rows: Rows) -> str:
    """Return a table per size, threads, batch and k: codes down, engines across."""
    lines: list[str] = []
    keys = ("items", "threads", "batch", "k")
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        mine = [row for row in rows if tuple(row[key] for key in keys) == cell]
        names = [name for name in ENGINES if any(row["engine"] == name for row in mine)]
        items, threads, batch, k = cell
        queries = "one query" if batch == 1 else f"batches of {batch}"
        threaded = "one thread" if threads == 1 else f"{threads} threads"
        lines += ["", f"{items:,} items, {threaded}, {queries}, k = {k}: ms per query", ""]
        lines += ["| codes | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for kind, bits in dict.fromkeys((row["kind"], row["bits"]) for row in mine):
            by_engine = {r["engine"]: r for r in mine if (r["kind"], r["bits"]) == (kind, bits)}
            cells = [
                _cell(by_engine[name], by_engine["ours"]) if name in by_engine else ""
                for name in names
            ]
            lines.append(f"| {kind.partition(':')[0]} {bits} | " + " | ".join(cells) + " |")
    slowest = sorted(ratios(rows), key=lambda pair: pair[1])[:3]
    lines += ["", f"closest of {len(list(ratios(rows)))} cells to FAISS flat:"]
    for row, ratio in slowest:
        name = "{kind} {bits} bits, {items:.0e} items, {threads} thread(s), batch {batch}, k {k}"
        lines.append(f"- {name.format(**row)}: {ratio:.2f}x")
    return "\n".join(lines)


def _cell(row: dict[str, Any], ours: dict[str, Any]) -> str:
    if row is ours:
        return f"{row['ms']:.3g}"
    missed = "" if row["recall"] == 1 else f", recall {row['recall']:.2f}"
    ratio = row["ms"] / ours["ms"]
    return f"{row['ms']:.3g} ({ratio:,.{2 if ratio < 1 else 1 if ratio < 10 else 0}f}x{missed})"


def draw(rows: Rows, path: Path) -> None:
    """Draw the time per query by engine and code length, one thread, one query, k = 100."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = [r for r in rows if (r["threads"], r["batch"], r["k"]) == (1, 1, 100)]
    kinds = list(dict.fromkeys(row["kind"] for row in chosen))
    kinds = list(dict.fromkeys(kind.partition(":")[0] for kind in kinds))
    sizes = sorted({row["items"] for row in chosen})
    figure, axes = plt.subplots(
        len(sizes), len(kinds), figsize=(4 * len(kinds), 3.2 * len(sizes)),
        sharey="row", sharex=True, squeeze=False,
    )  # fmt: skip
    for (r, size), (c, kind) in product(enumerate(sizes), enumerate(kinds)):
        axis = axes[r][c]
        mine = [x for x in chosen if x["items"] == size and x["kind"].partition(":")[0] == kind]
        for number, engine in enumerate(ENGINES):
            points = sorted((x["bits"], x["ms"]) for x in mine if x["engine"] == engine)
            if points:
                style = "-" if engine in EXACT else "--"
                thick = 2.5 if engine == "ours" else 1.2
                axis.plot(*zip(*points), style, marker="o", ms=4, label=engine, lw=thick,
                          color=f"C{number}")  # fmt: skip
        axis.set(xscale="log", yscale="log", title=f"{kind}, {size:,} items")
        axis.set_xticks(sorted({x["bits"] for x in chosen}))
        axis.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if r == len(sizes) - 1:
            axis.set_xlabel("bits")
        if c == 0:
            axis.set_ylabel("ms per query")
    handles, labels = max(
        (a.get_legend_handles_labels() for a in axes.flat), key=lambda h: len(h[0])
    )
    figure.legend(handles, labels, loc="lower center", ncol=min(4, len(labels)), frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--figure", type=Path, help="needs matplotlib")
    arguments = parser.parse_args()
    read = [json.loads(line) for file in arguments.results for line in file.open()]
    print(tables(read))
    if arguments.figure:
        draw(read, arguments.figure)
