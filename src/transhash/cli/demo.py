"""The command demo: the full pipeline on generated data."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from transhash.cli import app, err, out
from transhash.cli.fit import print_validation
from transhash.progress import progress_bar

if TYPE_CHECKING:  # slow to import
    from transhash.experiments import Results
    from transhash.hashers import Hasher
    from transhash.training.split_data import TestSet

_PER_CLASS = 60  # images and texts per class: the demo takes one to two minutes
_METHODS = ("THN", "THN-D", "QCH", "CVH", "kNN")
_INTRODUCTION = (
    "Synthetic data set with 12 classes. Auxiliary set: posters with captions. Target set: "
    "unpaired crayon drawings and riddles. One to two minutes on two cores."
)
_QUERIES = (
    "What floats in the harbour and needs wind in its sails?",
    "Four wheels and an engine, parked outside.",
    "It opens its petals in the garden every spring.",
)


@app.command()
def demo(
    to: Path = typer.Option(Path("runs/demo"), "--out", help="Run folder to create."),
    bits: int = typer.Option(32, help="Code length in bits, a multiple of 8."),
    seed: int = typer.Option(0, help="Random seed for data, split and training."),
    serve: bool = typer.Option(True, help="Open the search page at the end."),
    port: int = typer.Option(8000, help="Port of the search page on 127.0.0.1."),
) -> None:
    """Run the full pipeline on a small synthetic data set and open the search page.

    Example: `transhash demo --no-serve`
    """
    from transhash.experiments import (
        Cell,
        MethodSpec,
        Plan,
        Results,
        make_synthetic_cached,
        run_plan,
    )
    from transhash.experiments.cells import describe_cell, training_record
    from transhash.features.images import image_features
    from transhash.hashers import make_hasher
    from transhash.search.engine import SearchEngine
    from transhash.service import is_installed
    from transhash.training.fit import Fit
    from transhash.training.split_data import build_split, load_benchmark_features

    start = time.perf_counter()
    out.print(_INTRODUCTION)
    folder = make_synthetic_cached(_PER_CLASS, seed, progress_bar)
    features = image_features("efficientnet-lite0")
    benchmark, problems = load_benchmark_features(folder, features, progress_bar)
    benchmark = replace(benchmark, name="synthetic")
    split = build_split(benchmark, seed)
    hasher = make_hasher("THN", bits=bits, seed=seed)
    fitted = Fit(hasher, "THN", to, features, track=progress_bar)
    fitted.run_split(split, problems=problems)
    delete_outdated_index(to)
    with SearchEngine.open(to, writable=True) as engine:
        # Index the files, not their features, so that results show images.
        images = replace(benchmark.images.without_labels(), features=None)
        engine.writer.add_images(images, progress_bar)
        engine.writer.add_texts(benchmark.texts.without_labels(), progress_bar)
    plan = Plan("synthetic", tuple(map(MethodSpec.parse, _METHODS)), (bits,), (seed,))
    (to / "results.jsonl").unlink(missing_ok=True)  # of an earlier demo
    results = Results(to, plan, benchmark, f"synthetic, seed {seed}, {_PER_CLASS} per class")
    thn = describe_cell(Cell("THN", None, bits, seed), hasher, split)
    results.append(thn | training_record(hasher, split, fitted.report["training_seconds"]))
    run_plan(plan, benchmark, results, 1, err, features)
    _print_results(results, to, bits)
    print_validation(fitted.report["validation"])
    if find_spec("matplotlib") is not None:
        from transhash.report import write_report

        out.print(f"Figures and tables: {write_report(to)}")
    out.print(f"Saved run, index and results to {to} in {time.perf_counter() - start:.0f} s")
    if serve and is_installed():
        from transhash.service import serve_run

        invitation = "\nOpen {} and search by text or image (press Ctrl-C to stop)."
        serve_run(to, port=port, on_ready=lambda address: out.print(invitation.format(address)))
        return
    query = benchmark.split(seed).query_images[_median_query(hasher, split.test)]
    _print_searches(to, benchmark.images.ids[query])
    if serve:
        command = f"pip install 'transhash[serve]' && transhash serve {to}"
        out.print(f"To open the search page, run: {command}")


def delete_outdated_index(run: Path) -> None:
    """Delete the index of an earlier demo if it was built with another model."""
    from transhash.model.files import model_digest
    from transhash.search.catalog import Catalog

    if not ((run / "results.json").exists() and (run / "catalog.sqlite").exists()):
        return  # not written by a demo
    digest = model_digest(run)
    with Catalog(run / "catalog.sqlite") as catalog:
        is_current = catalog.get_or_set("model", digest) == digest
    if not is_current:
        shutil.rmtree(run / "index", ignore_errors=True)
        for file in run.glob("catalog.sqlite*"):
            file.unlink()


def _print_results(results: Results, folder: Path, bits: int) -> None:
    """Print MAP by method, and write it to results.json."""
    from transhash.hashers import find_method
    from transhash.storage import write_json

    table = Table("method", title=f"MAP on the synthetic data set, {bits} bits")
    for direction in ("image -> text", "text -> image"):
        table.add_column(direction, justify="right")
    table.add_column("uses unlabeled target items")
    rows: list[dict[str, Any]] = []
    for row in results.rows:
        method = find_method(row["method"])
        scores = {key: row[key] for key in ("image_to_text_map", "text_to_image_map")}
        rows.append(
            {"method": method.name, "bits": row["bits"] if method.has_codes else None}
            | scores
            | {"chance": row["image_to_text_chance"]}
        )
        uses_target = "yes" if method.name == "THN" else "no"
        table.add_row(method.label, *(f"{score:.3f}" for score in scores.values()), uses_target)
    first = results.rows[0]
    chances = (first["image_to_text_chance"], first["text_to_image_chance"])
    table.add_row("chance", *(f"{chance:.3f}" for chance in chances))
    write_json(folder / "results.json", rows)
    out.print(table, soft_wrap=False)


def _median_query(hasher: Hasher, target: TestSet) -> int:
    """Return the query image whose average precision is the median."""
    from transhash.evaluation import DEFINITIONS, DistanceHistogram
    from transhash.scoring import build_directions

    histogram = build_directions(hasher, target)["image_to_text"].tie_groups()
    assert isinstance(histogram, DistanceHistogram)
    precision, _ = DEFINITIONS["all"].per_query(histogram)
    return int(precision.argsort(kind="stable")[len(precision) // 2])


def _print_searches(run: Path, drawing: str) -> None:
    from transhash.search.engine import SearchEngine

    with SearchEngine.open(run) as engine:
        for query in _QUERIES:
            hits = engine.similar_to_text(query, 3)
            names = ", ".join(f"{hit.item.id} (distance {hit.distance})" for hit in hits)
            out.print(f"\n{query}\n  -> {names}")
        out.print(f"\n{drawing} (median query)")
        for hit in engine.similar_to_id("images", drawing, 3, modality="texts"):
            out.print(f"  -> {hit.item.text} (distance {hit.distance})")
    out.print(f'\nTry: transhash search {run} --text "a boat at sea" or transhash serve {run}')
