"""evaluate: on a benchmark or on anybody's labelled files, whole, in shards, by any engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from transhash.cli import app, out
from transhash.datasets.prepare import SOURCES
from transhash.errors import DataError
from transhash.progress import progress_bar

_RANKINGS = {
    "hamming": "Hamming distance",
    "tiebreak": "Hamming distance, equal ones by how sure the query is of the differing bits (ties)",
    "weighted": "how sure the query is of the differing bits (all), not Hamming distance",
}


@app.command("evaluate")
def evaluate_run(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    benchmark: Path | None = typer.Option(None, help="A three-part folder."),
    split_seed: int = typer.Option(0, help="The split the run was fitted on."),
    images: Path | None = typer.Option(None, help="Or your own images, with a column `labels`."),
    texts: Path | None = typer.Option(None, help="And your own texts, with a column `labels`."),
    queries: int = typer.Option(1000, help="How many of your images, and of your texts, ask."),
    seed: int = typer.Option(0, help="Which of them."),
    definition: str = typer.Option("all", help="MAP definition; see docs/evaluation.md."),
    at: int | None = typer.Option(None, help="Cut the ranking here, for definitions that cut."),
    ranking: str = typer.Option(
        "hamming", help="hamming, ties or all: how finely the queries rank; see docs/search.md."
    ),
    index: str | None = typer.Option(
        None, help="The engine that ranks: grouped:DIR, exact:DIR, faiss:DIR, milvus:URI."
    ),
    shard: str | None = typer.Option(
        None, help="i/n: only this part of the database, to --histogram."
    ),
    histogram: Path | None = typer.Option(None, help="Where --shard writes its counts."),
    merge: list[Path] = typer.Option([], help="Histogram folders of all shards, to be added up."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Score a run by MAP and precision-recall, beside chance.

    Example: `transhash evaluate runs/mine --benchmark DIR --json`

    Example: `transhash evaluate runs/mine --images photos.csv --texts notes.csv`

    Example: `transhash evaluate runs/mine --benchmark DIR --index milvus:./codes.db`

    With `--index` the engine ranks: it is sent the benchmark's codes first (an empty place is
    needed), while your own files are looked for in the index as it is served. Items that an
    approximate engine leaves out are ranked last. Published tables rank by Hamming distance.
    """
    from transhash.evaluation import Scores, find_definition
    from transhash.index.weighted import check_ranking
    from transhash.scoring import DatabasePart, count_benchmark, count_files, merge_shards

    find_definition(definition, at)  # a wrong name is refused before the work
    mode = check_ranking(ranking)
    _check_options(benchmark, images, texts, index, shard, histogram, merge)
    if mode != "hamming" and (shard is not None or merge):
        raise DataError("--shard and --merge add up Hamming distances: leave out --ranking")
    if merge:
        counted = merge_shards(run, merge, split_seed, benchmark)
    elif benchmark is not None:
        part = None if shard is None else DatabasePart.parse(shard)
        counted = count_benchmark(
            run, benchmark, split_seed,
            ranking=mode, index=index, part=part, to=histogram, track=progress_bar,
        )  # fmt: skip
    else:
        assert images is not None
        assert texts is not None
        counted = count_files(
            run, images, texts, queries, seed, ranking=mode, index=index, track=progress_bar
        )
    if shard:
        out.print(f"shard {shard} written to {histogram}; add all up with --merge")
        return
    scores: dict[str, Any] = {
        name: Scores.of(
            counts, definition=definition, at=at, ranking=mode, bits=counted.about["bits"]
        ).to_dict()
        for name, counts in counted.histograms.items()
    }
    beside: dict[str, Any] = {
        name: Scores.of(each.counted(), definition=definition, at=at).to_dict()
        for name, each in (counted.keyword or {}).items()
    }
    if as_json:
        print(json.dumps(scores | counted.about | ({"keyword": beside} if beside else {})))
    else:
        _print(scores, counted.about, beside)


def _check_options(
    benchmark: Path | None,
    images: Path | None,
    texts: Path | None,
    index: str | None,
    shard: str | None,
    histogram: Path | None,
    merge: list[Path],
) -> None:
    own = images is not None or texts is not None
    if own and (images is None or texts is None):
        raise DataError("own files need both --images and --texts: each is ranked for the other")
    if own and benchmark is not None:
        raise DataError("give --benchmark or your own --images and --texts, not both")
    if not own and benchmark is None and not merge:
        raise DataError("nothing to score: give --benchmark, or --images and --texts with labels")
    if shard is not None and merge:
        raise DataError("--shard writes one part and --merge adds all up: give one of them")
    if own and (shard is not None or merge):
        raise DataError("--shard and --merge cut a benchmark, not own files")
    if index is not None and (shard is not None or merge):
        raise DataError("--index ranks the whole database: leave out --shard and --merge")
    if shard is not None and histogram is None:
        raise DataError("--shard needs --histogram FOLDER, where its counts are written")
    if histogram is not None and shard is None:
        raise DataError("--histogram is where --shard writes: give --shard i/n, too")


def _print(scores: dict[str, Any], about: dict[str, Any], keyword: dict[str, Any]) -> None:
    table = Table(title=f"{about['method']}, {about['bits']} bits, {about['benchmark']}")
    for column in ("direction", "MAP", "chance", "P@10", "queries", "database"):
        table.add_column(column, justify="left" if column == "direction" else "right")
    ways = (("image_to_text", "image -> text"), ("text_to_image", "text -> image"))
    rows = [(words, scores[key]) for key, words in ways]
    rows += [(f"{words}, keywords", keyword[key]) for key, words in ways if keyword]
    for words, row in rows:
        near = row["precision_at"].get("10")
        table.add_row(
            words, _number(row["map"]), _number(row["chance"]),
            "" if near is None else f"{near:.3f}", f"{row['queries']:,}", f"{row['database']:,}",
        )  # fmt: skip
    out.print(table)
    out.print(f"MAP: {scores['image_to_text']['definition_in_words']}", soft_wrap=True)
    out.print(f"ranking: {_RANKINGS[scores['image_to_text']['ranking']]}", soft_wrap=True)
    if keyword:
        out.print("keywords: words that a text and a picture's name share, no learning")
    if "index" in about:
        sent = f", {about['sent']:,} codes sent there" if "sent" in about else ""
        out.print(f"ranked by {about['index']}{sent}", soft_wrap=True)
    if about.get("unlabelled"):
        out.print(f"{about['unlabelled']:,} rows without a label were left out")
    if about.get("voted"):
        out.print(f"{about['voted']:,} items that the run learned votes on do not ask")
    if any(about.get("not_indexed", {}).values()):
        counts = " and ".join(f"{count:,} {kind}" for kind, count in about["not_indexed"].items())
        out.print(f"{counts} of these files are not in the index and were left out")
    if about["problems"]:
        out.print(f"{about['problems']:,} rows or files could not be used")


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"  # DCHMT's, if a query has no hit


# prepare, experiment, report.


@app.command(help=f"Turn raw public data into a three-part benchmark folder.\n\n{SOURCES}")
def prepare(
    protocol: str = typer.Argument(..., help="nus-wide or imagenet-yahooqa."),
    root: Path = typer.Option(..., help="The folder that holds the raw data."),
    to: Path = typer.Option(..., "--out", help="The three-part folder to write."),
) -> None:
    from transhash.datasets.prepare import prepare_folder

    done = prepare_folder(protocol, root=root, out=to, track=progress_bar)
    counts = ", ".join(f"{number:,} rows in {part}.tsv" for part, number in done.counts.items())
    left = f"; {sum(done.problems.values()):,} left out, see problems.tsv" if done.problems else ""
    out.print(f"written to {done.folder}: {counts}{left}")


@app.command()
def experiment(
    file: Path = typer.Argument(..., help="A TOML file; see experiments/."),
    root: Path | None = typer.Option(None, help="The benchmark's folder, raw or prepared."),
    to: Path = typer.Option(..., "--out", help="Where results.jsonl grows."),
    jobs: int = typer.Option(1, help="Cells at a time, in processes of their own."),
    device: str = typer.Option("cpu", help="Where backbones compute: cpu or cuda."),
) -> None:
    """Run methods x bits x seeds on one benchmark; a killed run goes on where it stopped.

    Example: `transhash experiment experiments/quick.toml --out runs/quick`
    """
    from transhash.experiments import run_experiment
    from transhash.hashers.deep import check_device

    check_device(device)
    run_experiment(file, root, to, jobs=jobs, device=device)


@app.command()
def report(folder: Path = typer.Argument(..., help="Where an experiment wrote.")) -> None:
    """Tables, curves and a page from results.jsonl.

    Example: `transhash report runs/quick`
    """
    from transhash.report import write_report

    out.print(f"written to {write_report(folder)}")
