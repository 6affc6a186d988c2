"""demo: the whole way on data drawn by code, from nothing to a page."""

from __future__ import annotations

import json
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
    from transhash.data.benchmark import fitted_sizes, load_benchmark
    from transhash.datasets.drawn import THINGS, draw_dataset
    from transhash.experiments.cells import describe
    from transhash.experiments.plan import Cell
    from transhash.features.cache import cache_folder
    from transhash.features.image import image_features
    from transhash.hashers import make_hasher
    from transhash.hashers.tuning import held_out_map
    from transhash.runs.fit import fit_run
    from transhash.runs.search import SearchEngine
    from transhash.runs.task import build_task, with_image_features
    from transhash.storage import write_bytes, write_json

    start = time.perf_counter()
    folder = draw_dataset(
        cache_folder() / f"drawn-{seed}-{_PER_CLASS}", seed=seed, per_class=_PER_CLASS, track=bar
    )
    out.print(
        f"Synthetic data, drawn by code: {len(THINGS)} things. Posters with captions are the "
        "auxiliary set; crayon drawings and riddles, never paired, are the target.",
        soft_wrap=True,
    )
    extractor = image_features("efficientnet-lite0")
    benchmark, problems = with_image_features(load_benchmark(folder), extractor, bar)
    benchmark = replace(benchmark, sizes=fitted_sizes(benchmark))
    task = build_task(benchmark, seed)
    rows: list[dict[str, Any]] = []
    for name in _SHOWN:
        hasher = make_hasher(name, bits=bits, seed=seed)
        began = time.perf_counter()
        if name == "THN":
            fit_run(
                hasher, name, task.training, to, extractor, task.text_features,
                problems=problems, track=bar,
            )  # fmt: skip
        else:
            hasher.fit(task.training)
        rows.append(
            {
                "benchmark": "drawn by code (synthetic)",
                "shared": {
                    "tune": 0,
                    "data": f"drawn with seed {seed}, {_PER_CLASS} of each thing",
                },
                "training_seconds": time.perf_counter() - began,
                "tuning_seconds": 0.0,
                "held_out_map": held_out_map(hasher, task.held_out),
                **describe(Cell(name, bits, seed), hasher, task),
            }
        )
    write_bytes(to / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    write_json(
        to / "results.json",
        [
            {
                "method": row["method"],
                "bits": bits,
                "image_to_text_map": row["image_to_text_map"],
                "text_to_image_map": row["text_to_image_map"],
                "chance": row["image_to_text_chance"],
            }
            for row in rows
        ],
    )
    engine = SearchEngine.open(to, writable=True)
    engine.add_images(benchmark.images.without_labels(), bar)
    engine.add_texts(benchmark.texts.without_labels(), bar)
    engine.close()
    _print_scores(rows)
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
