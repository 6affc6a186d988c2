"""The commands evaluate, prepare, experiment and report."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from transhash.cli import JSON_OBJECT, RUN, app, out
from transhash.datasets.prepare import SOURCES
from transhash.errors import DataError
from transhash.progress import progress_bar

_RANKINGS = {
    "hamming": "Hamming distance",
    "tiebreak": "Hamming distance, ties by query confidence",
    "weighted": "weighted by query confidence",
}


@app.command("evaluate")
def evaluate_run(
    run: Path = RUN,
    benchmark: Path | None = typer.Option(None, help="Benchmark folder."),
    split_seed: int = typer.Option(0, help="Seed of the benchmark split."),
    images: Path | None = typer.Option(None, help="Your images, with a column `labels`."),
    texts: Path | None = typer.Option(None, help="Your texts, with a column `labels`."),
    queries: int = typer.Option(1000, help="Number of query images and query texts."),
    seed: int = typer.Option(0, help="Seed for drawing queries."),
    map_definition: str = typer.Option("all", help="MAP definition; see docs/map.md."),
    cutoff: int | None = typer.Option(None, help="Rank cutoff for definitions that use one."),
    ranking: str = typer.Option("hamming", help="Ranking mode: hamming, tiebreak or weighted."),
    index: str | None = typer.Option(
        None,
        metavar="URL",
        help="Index that ranks the database, e.g. milvus:./codes.db.",
        show_default="rank in memory",
    ),
    shard: str | None = typer.Option(
        None, metavar="I/N", help="Evaluate only part i of n of the database (needs --histogram)."
    ),
    histogram: Path | None = typer.Option(None, help="Output folder for --shard."),
    merge: list[Path] = typer.Option([], help="Histogram folders of all shards to combine."),
    as_json: bool = JSON_OBJECT,
) -> None:
    """Compute MAP and precision-recall on labeled data.

    With `--index`, that index ranks: it must be empty for a benchmark, whose codes are sent to it.
    Your own files are searched in the index as it is. Items that an approximate index does not
    return are ranked last.

    Example: `transhash evaluate runs/mine --benchmark DIR --json`

    Example: `transhash evaluate runs/mine --images photos.csv --texts notes.csv`

    Example: `transhash evaluate runs/mine --benchmark DIR --index milvus:./codes.db`
    """
    from transhash.evaluation import Scores, find_definition
    from transhash.index.weighted import check_ranking
    from transhash.scoring import DatabaseShard, count_benchmark, count_files, merge_shards

    find_definition(map_definition, cutoff)  # fail before the work
    mode = check_ranking(ranking)
    has_files = images is not None or texts is not None
    is_split = shard is not None or bool(merge)
    if has_files == (benchmark is not None) and not (merge and not has_files):
        raise DataError(
            "Evaluation needs one data set. Pass --benchmark, or --images and --texts with labels."
        )
    if is_split and (has_files or index is not None or mode != "hamming"):
        raise DataError(
            "--shard and --merge count Hamming distances on a benchmark. "
            "Remove --images, --texts, --index and --ranking."
        )
    if shard is not None and merge:
        raise DataError("--shard evaluates one part, --merge combines all. Pass one of them.")
    if (shard is None) != (histogram is None):
        raise DataError("--shard and --histogram belong together. Pass both.")
    if merge:
        rankings = merge_shards(run, merge, split_seed, benchmark)
    elif benchmark is not None:
        rankings = count_benchmark(
            run, benchmark, split_seed, ranking=mode, index=index,
            shard=None if shard is None else DatabaseShard.parse(shard),
            output=histogram, track=progress_bar,
        )  # fmt: skip
    elif images is not None and texts is not None:
        rankings = count_files(
            run, images, texts, queries, seed, ranking=mode, index=index, track=progress_bar
        )
    else:
        raise DataError("Own files need both modalities. Pass --images and --texts.")
    if shard:
        out.print(f"Saved shard {shard} to {histogram}. Combine all shards with --merge.")
        return
    score = partial(Scores.from_counts, definition=map_definition, cutoff=cutoff)
    bits = rankings.about["bits"]
    scores = {
        name: score(counts, ranking=mode, bits=bits).to_dict()
        for name, counts in rankings.histograms.items()
    }
    keyword = {
        name: score(direction.tie_groups()).to_dict()
        for name, direction in (rankings.keyword or {}).items()
    }
    if as_json:
        print(json.dumps(scores | rankings.about | ({"keyword": keyword} if keyword else {})))
    else:
        _print_scores(scores, rankings.about, keyword)


def _print_scores(scores: dict[str, Any], about: dict[str, Any], keyword: dict[str, Any]) -> None:
    table = Table(title=f"{about['method']}, {about['bits']} bits, {about['benchmark']}")
    for column in ("direction", "MAP", "chance", "P@10", "queries", "database"):
        table.add_column(column, justify="left" if column == "direction" else "right")
    labels = {"image_to_text": "image -> text", "text_to_image": "text -> image"}
    rows = [(label, scores[name]) for name, label in labels.items()]
    rows += [(f"{label}, keywords", keyword[name]) for name, label in labels.items() if keyword]
    for label, row in rows:
        precision = row["precision_at"].get("10")
        table.add_row(
            label, _number(row["map"]), _number(row["chance"]),
            "" if precision is None else f"{precision:.3f}",
            f"{row['queries']:,}", f"{row['database']:,}",
        )  # fmt: skip
    out.print(table, soft_wrap=False)
    first = scores["image_to_text"]
    out.print(f"MAP: {first['definition_text']}")
    out.print(f"ranking: {_RANKINGS[first['ranking']]}")
    if keyword:
        out.print("keywords: words shared by a text and an image file name (no model)")
    if "index" in about:
        sent = f" ({about['sent']:,} codes sent)" if "sent" in about else ""
        out.print(f"index: {about['index']}{sent}")
    if about.get("unlabeled"):
        out.print(f"Excluded {about['unlabeled']:,} rows without a label")
    if about.get("voted"):
        out.print(f"Excluded {about['voted']:,} queries used as training votes")
    if any(about.get("not_indexed", {}).values()):
        counts = " and ".join(f"{items:,} {kind}" for kind, items in about["not_indexed"].items())
        out.print(f"Excluded {counts} that are not in the index")
    if about["problems"]:
        out.print(f"Skipped {about['problems']:,} rows or files")


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"  # some definitions divide by hits


_PREPARE_EXAMPLE = "Example: `transhash prepare nus-wide --root raw/ --out nus-wide/`"


@app.command(
    help=f"Convert a public data set to a benchmark folder.\n\n{SOURCES}\n\n{_PREPARE_EXAMPLE}"
)
def prepare(
    protocol: str = typer.Argument(..., help="nus-wide or imagenet-yahooqa."),
    root: Path = typer.Option(..., help="Folder with the raw data."),
    to: Path = typer.Option(..., "--out", help="Benchmark folder to create."),
) -> None:
    from transhash.datasets.prepare import prepare_folder

    prepared = prepare_folder(protocol, root=root, out=to, track=progress_bar)
    counts = ", ".join(f"{rows:,} rows in {part}.tsv" for part, rows in prepared.counts.items())
    skipped = sum(prepared.problems.values())
    out.print(
        f"Saved to {prepared.folder}: {counts}"
        + (f" ({skipped:,} skipped, see problems.tsv)" if skipped else "")
    )


@app.command()
def experiment(
    file: Path = typer.Argument(..., help="TOML file; examples are in experiments/."),
    root: Path | None = typer.Option(None, help="Benchmark folder or raw data folder."),
    to: Path = typer.Option(..., "--out", help="Experiment folder for results.jsonl."),
    jobs: int = typer.Option(1, help="Number of parallel processes."),
    device: str = typer.Option("cpu", help="Device of the backbones: cpu or cuda."),
) -> None:
    """Run an experiment from a TOML file. Rerun to resume.

    Example: `transhash experiment experiments/quick.toml --out runs/quick`
    """
    from transhash.experiments import run_experiment
    from transhash.hashers.deep import check_device

    check_device(device)
    run_experiment(file, root, to, jobs=jobs, device=device)


@app.command()
def report(folder: Path = typer.Argument(..., help="Experiment folder.")) -> None:
    """Write tables, figures and an HTML report from experiment results.

    Example: `transhash report runs/quick`
    """
    from transhash.report import write_report

    out.print(f"Saved to {write_report(folder)}")
