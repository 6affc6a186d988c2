"""demo: the whole way on data drawn by code, from nothing to a page."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from transhash.cli import app, err, out
from transhash.cli.fit import print_validation
from transhash.progress import progress_bar

if TYPE_CHECKING:  # slow to import
    from transhash.hashers import Hasher
    from transhash.training.split_data import TestSet

_PER_CLASS = 60  # pictures and texts of each thing: the whole demo in a minute and a half
_SHOWN = ("THN", "THN-D", "QCH", "CVH", "kNN")
_INTRODUCTION = (
    "Synthetic data, drawn by code: 12 things. Posters with captions are the auxiliary set; "
    "crayon drawings and riddles, never paired, are the target. "
    "One to two minutes on two cores, less when run again."
)
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
    from transhash.experiments import Cell, Plan, Results, make_synthetic_cached, run_plan
    from transhash.experiments.cells import describe_cell, training_record
    from transhash.features.images import image_features
    from transhash.hashers import make_hasher
    from transhash.report.summary import REAL_VALUED
    from transhash.report.tables import MARK
    from transhash.search.engine import SearchEngine
    from transhash.service import is_installed
    from transhash.storage import write_json
    from transhash.training.fit import fit_run
    from transhash.training.split_data import build_split, load_benchmark_features

    start = time.perf_counter()
    out.print(_INTRODUCTION, soft_wrap=True)
    folder = make_synthetic_cached(_PER_CLASS, seed, progress_bar)
    features = image_features("efficientnet-lite0")
    benchmark, problems = load_benchmark_features(folder, features, progress_bar)
    benchmark = replace(benchmark, name="drawn by code (synthetic)")
    task = build_split(benchmark, seed)
    encoder, report = fit_run(
        make_hasher("THN", bits=bits, seed=seed), "THN", task.training, to, features,
        task.text_features, held_out=task.held_out, problems=problems, track=progress_bar,
    )  # fmt: skip
    _forget_older_index(to)
    engine = SearchEngine.open(to, writable=True)
    # The files again, whose features are in the cache by now: a search shows the pictures.
    engine.add_images(replace(benchmark.images.without_labels(), features=None), progress_bar)
    engine.add_texts(benchmark.texts.without_labels(), progress_bar)
    engine.close()
    plan = Plan("embedded", _SHOWN, (bits,), (seed,), sizes={}, trials=0, settings={})
    (to / "results.jsonl").unlink(missing_ok=True)  # of an earlier demo
    results = Results(to, plan, benchmark, f"drawn with seed {seed}, {_PER_CLASS} of each thing")
    thn = describe_cell(Cell("THN", bits, seed), encoder.hasher, task)
    results.append(thn | training_record(encoder.hasher, task, report["training_seconds"]))
    run_plan(plan, benchmark, results, 1, err, features)
    keys = ("method", "bits", "image_to_text_map", "text_to_image_map", "image_to_text_chance")
    rows = [[row[key] for key in keys] for row in results.rows]
    for row in rows:
        if row[0] in REAL_VALUED:
            row[1] = None  # no codes, so no bits
    write_json(to / "results.json", [dict(zip((*keys[:4], "chance"), row)) for row in rows])
    table = Table("method", title=f"MAP on the drawings (synthetic), {bits} bits")
    for way in ("image -> text", "text -> image"):
        table.add_column(way, justify="right")
    table.add_column("uses unlabelled target items")
    for name, _, there, back, _ in rows:
        marked = name + MARK if name in REAL_VALUED else name
        table.add_row(marked, f"{there:.3f}", f"{back:.3f}", "yes" if name == "THN" else "no")
    chances = [results.rows[0][f"{way}_chance"] for way in ("image_to_text", "text_to_image")]
    table.add_row("chance", *(f"{chance:.3f}" for chance in chances))
    out.print(table)
    out.print(f"{MARK} transitive nearest neighbours: ranks by real values, not by codes")
    print_validation(report["verdict"])
    if find_spec("matplotlib") is not None:
        from transhash.report import write_report

        out.print(f"curves and tables: {write_report(to)}")
    out.print(f"run, index and results are in {to} after {time.perf_counter() - start:.0f} s")
    lacking = serve and not is_installed()
    if serve and not lacking:
        from transhash.service import serve_run

        invitation = "\nOpen {} and type a sentence or drop a drawing. Ctrl-C stops it."
        serve_run(to, port=port, on_ready=lambda address: out.print(invitation.format(address)))
    else:
        encode_queries = benchmark.split(seed).query_images
        middle = encode_queries[_middling(encoder.hasher, task.target)]
        _print_searches(to, benchmark.images.ids[middle])
        if lacking:
            page = "pip install 'transhash[serve]' && transhash serve"
            out.print(f"The page needs packages that are not installed: {page} {to}")


def _forget_older_index(run: Path) -> None:
    """What an earlier demo indexed by another model, of another version or seed, is drawn anew."""
    from transhash.errors import DataError
    from transhash.search.catalog import Catalog
    from transhash.search.consistency import check_model

    if not ((run / "results.json").exists() and (run / "catalog.sqlite").exists()):
        return  # no demo wrote it
    catalog = Catalog(run / "catalog.sqlite")
    try:
        check_model(catalog, run)
    except DataError:
        catalog.close()
        shutil.rmtree(run / "index", ignore_errors=True)
        for file in run.glob("catalog.sqlite*"):
            file.unlink()
    finally:
        catalog.close()


def _middling(hasher: Hasher, target: TestSet) -> int:
    """Which asking drawing finds its riddles middling well: as many do better as do worse."""
    from transhash.evaluation import DEFINITIONS, DistanceHistogram
    from transhash.scoring import directions_of

    counted = directions_of(hasher, target)["image_to_text"].counted()
    assert isinstance(counted, DistanceHistogram)  # Hamming distances
    precision, _ = DEFINITIONS["all"].per_query(counted)
    return int(precision.argsort(kind="stable")[len(precision) // 2])


def _print_searches(run: Path, drawing: str) -> None:
    from transhash.search.engine import SearchEngine

    engine = SearchEngine.open(run)
    for sentence in _SENTENCES:
        hits = engine.similar_to_text(sentence, 3)
        names = ", ".join(f"{hit.item.id} (distance {hit.distance})" for hit in hits)
        out.print(f"\n{sentence}\n  -> {names}", soft_wrap=True)
    out.print(f"\n{drawing} (as many drawings find their riddles better as worse)")
    for hit in engine.similar_to_id("images", drawing, 3, modality="texts"):
        out.print(f"  -> {hit.item.text} (distance {hit.distance})", soft_wrap=True)
    engine.close()
    out.print(f'\nTry: transhash search {run} --text "a boat at sea" or transhash serve {run}')
