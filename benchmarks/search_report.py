"""The verdict table and the figure of benchmarks/search.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
SINGLE = {16: 15, 32: 2.5, 64: 1.9, 128: 1.2}  # times FAISS flat, one query
BATCH = {32: 5, 64: 3.5, 128: 1.5}  # batch of 64
CLUSTERED = 50  # 32 and 64 bits, k = 10 and 100


def ratios(rows: Rows, engine: str = "ours") -> Iterable[tuple[dict[str, Any], float]]:
    """(our row, FAISS flat / ours) of every cell."""
    keys = ("kind", "items", "bits", "batch", "k", "threads")
    flat = {tuple(r[key] for key in keys): r for r in rows if r["engine"] == "faiss flat"}
    for row in rows:
        other = flat.get(tuple(row[key] for key in keys))
        if row["engine"] == engine and other is not None:
            yield row, other["cpu_ms"] / row["cpu_ms"]


def verdict(rows: Rows, disk: dict[str, Any]) -> str:
    lines = ["", "must show (single thread, largest size measured)", ""]

    def judge(what: str, value: float, wanted: float, unit: str, below: bool = False) -> None:
        holds = value <= wanted if below else value >= wanted
        sign = "<=" if below else ">="
        lines.append(f"{'yes' if holds else 'NO ':3}  {what:62} {value:9.2f} {sign} {wanted}{unit}")

    largest = max(row["items"] for row in rows)
    for row, ratio in ratios(rows):
        if row["items"] != largest:
            continue
        name = f"{row['kind']} {row['bits']} bits, batch {row['batch']}, k {row['k']}"
        if row["kind"] == "uniform" and row["k"] == 100:
            wanted = {1: SINGLE, 64: BATCH}.get(row["batch"], {}).get(row["bits"])
            if wanted:
                judge(name, ratio, wanted, "x FAISS flat")
        elif row["kind"] != "uniform" and row["bits"] in (32, 64) and row["k"] in (10, 100):
            judge(name, ratio, CLUSTERED, "x FAISS flat")
    for row in rows:
        if (row["engine"], row["kind"], row["batch"], row["k"], row["items"]) != (
            *("ours, scan only", "uniform", 1, 100, largest),
        ):
            continue
        if row["bits"] >= 32:
            read = row["items"] * row["bytes_an_item"] / row["cpu_ms"] / 1e6
            share = 100 * read / row["bandwidth"]
            judge(f"scan of {row['bits']} bits, share of read bandwidth", share, 75, "%")
    worst = min(ratios(rows), key=lambda pair: pair[1])
    cell = "{kind} {items:.0e} {bits} bits batch {batch} k {k}".format(**worst[0])
    judge(f"slowest cell against FAISS flat ({cell})", worst[1], 1, "x")
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
                grown = (
                    f"growth of a query, {bits} bits clustered, items x{sizes[-1] / sizes[0]:.0f}"
                )
                judge(grown, value / first, sizes[-1] / sizes[0], "x", below=True)
    judge(
        f"opening {disk['items']:.0e} items, {disk['bits']} bits", disk["open_ms"], 50, " ms", True
    )
    allowed = 2 * disk["bits"] / 8 + 8
    judge("bytes an item, uniform 64 bits", disk["bytes_an_item"], allowed, " B", True)
    return "\n".join(lines)


def draw(rows: Rows, path: Path) -> None:
    """CPU time a query by engine and code length, k = 100, one query."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no figure: pip install matplotlib")
        return
    largest = max(row["items"] for row in rows)
    chosen = [r for r in rows if r["items"] == largest and r["batch"] == 1 and r["k"] == 100]
    kinds = list(dict.fromkeys(row["kind"] for row in chosen))
    if not kinds:
        return
    figure, axes = plt.subplots(
        1, len(kinds), figsize=(5 * len(kinds), 4), sharey=True, squeeze=False
    )
    for axis, kind in zip(axes[0], kinds):
        mine = [row for row in chosen if row["kind"] == kind]
        for engine in dict.fromkeys(row["engine"] for row in mine):
            points = sorted((r["bits"], r["cpu_ms"]) for r in mine if r["engine"] == engine)
            axis.plot(*zip(*points), marker="o", label=engine, lw=2.5 if engine == "ours" else 1)
        axis.set(xscale="log", yscale="log", xlabel="bits", title=f"{kind}, {largest:.0e} items")
        axis.set_xticks(sorted({r["bits"] for r in mine}))
        axis.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms a query (CPU, one thread, k = 100)")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"figure: {path}")
