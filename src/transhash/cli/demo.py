"""demo: the whole way on data drawn by code, from nothing to a page."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from transhash.cli import app, out
from transhash.progress import bar

_PER_CLASS = 60  # pictures and texts of each thing: the whole demo in a minute and a half
_SHOWN = ("THN", "THN-D", "QCH", "CVH")
_SENTENCES = (
    "What floats in the harbour and needs wind in its sails?",
    "Four wheels and an engine, parked outside.",
    "It opens its petals in the garden every spring.",
)


@app.command()
def demo(
    to: Path = typer.Option(Path("runs/demo"), "--out", help="The run folder to write."),
    bits: int = typer.Option(32, help="Code length, a multiple of 8."),
    seed: int = typer.Option(0, help="Seed of the drawing, the split and the training."),
    serve: bool = typer.Option(True, help="End in the search page; --no-serve for scripts."),
    port: int = typer.Option(8000, help="Where the page is served, on 127.0.0.1."),
) -> None:
    """Draw a small synthetic data set, train THN on it, compare, index and open the page.

    Example: `transhash demo --no-serve`
    """
    from rich.console import Console

    from transhash.datasets.drawn import THINGS
    from transhash.experiments.plan import Plan
    from transhash.experiments.results import Results
    from transhash.experiments.run import run_plan
    from transhash.experiments.sources import draw_embedded
    from transhash.features.image import image_features
    from transhash.hashers import make_hasher
    from transhash.runs.fit import fit_run
    from transhash.runs.search import SearchEngine
    from transhash.runs.task import build_task, ready_benchmark
    from transhash.storage import write_json

    start = time.perf_counter()
    folder = draw_embedded(_PER_CLASS, seed, bar)
    out.print(
        f"Synthetic data, drawn by code: {len(THINGS)} things. Posters with captions are the "
        "auxiliary set; crayon drawings and riddles, never paired, are the target.",
        soft_wrap=True,
    )
    features = image_features("efficientnet-lite0")
    benchmark, problems = ready_benchmark(folder, features, bar)
    benchmark = replace(benchmark, name="drawn by code (synthetic)")
    task = build_task(benchmark, seed)
    fit_run(
        make_hasher("THN", bits=bits, seed=seed), "THN", task.training, to, features,
        task.text_features, problems=problems, track=bar,
    )  # fmt: skip
    plan = Plan("embedded", _SHOWN, (bits,), (seed,), sizes={}, trials=0, settings={})
    (to / "results.jsonl").unlink(missing_ok=True)  # of an earlier demo
    results = Results(to, plan, benchmark, f"drawn with seed {seed}, {_PER_CLASS} of each thing")
    run_plan(plan, benchmark, results, 1, Console(stderr=True), features)
    shown = ("method", "bits", "image_to_text_map", "text_to_image_map")
    write_json(
        to / "results.json",
        [{k: r[k] for k in shown} | {"chance": r["image_to_text_chance"]} for r in results.rows],
    )
    engine = SearchEngine.open(to, writable=True)
    engine.add_images(benchmark.images.without_labels(), bar)
    engine.add_texts(benchmark.texts.without_labels(), bar)
    engine.close()
    _print_scores(results.rows)
    if find_spec("matplotlib") is not None:
        from transhash.report import write_report

        out.print(f"curves and tables: {write_report(to)}")
    out.print(f"run, index and results are in {to} after {time.perf_counter() - start:.0f} s")
    if serve:
        from transhash.service import serve as serve_run

        def invite(address: str) -> None:
            out.print(f"\nOpen {address} and type a sentence or drop a drawing. Ctrl-C stops it.")

        serve_run(to, port=port, on_ready=invite)
    else:
        _print_searches(to)


def _print_scores(rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"MAP on the drawings (synthetic), {rows[0]['bits']} bits")
    for column in ("method", "image -> text", "text -> image", "uses unlabelled target items"):
        table.add_column(column, justify="right" if "->" in column else "left")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['image_to_text_map']:.3f}",
            f"{row['text_to_image_map']:.3f}",
            "yes" if row["method"] == "THN" else "no",
        )
    table.add_row(
        "chance", f"{rows[0]['image_to_text_chance']:.3f}", f"{rows[0]['text_to_image_chance']:.3f}"
    )
    out.print(table)


def _print_searches(run: Path) -> None:
    from rich.text import Text

    from transhash.runs.search import SearchEngine

    engine = SearchEngine.open(run)
    for sentence in _SENTENCES:
        hits = engine.similar_to_text(sentence, 3)
        names = ", ".join(f"{hit.item.id} (distance {hit.distance})" for hit in hits)
        out.print(Text(f"\n{sentence}\n  -> {names}"))
    item = engine.catalog.sample("images", 5)[2]
    hits = engine.similar_to_id("images", item.id, 3, among="texts")
    out.print(Text(f"\n{item.id}"))
    for hit in hits:
        out.print(Text(f"  -> {hit.item.text} (distance {hit.distance})"))
    engine.close()
    out.print(f'\nTry: transhash search {run} --text "a boat at sea" or transhash serve {run}')
