"""The command fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from transhash.cli import app, out, print_problems, warn
from transhash.codes import BENCHMARK_BITS, DEFAULT_BITS, default_bits
from transhash.errors import DataError
from transhash.features import check_image_features
from transhash.hashers import METHODS, find_method, make_hasher
from transhash.progress import progress_bar

_METHOD_NAMES = ", ".join(method.name.lower() for method in METHODS[::-1] if method.has_codes)
_RUN_FILES = (
    "config.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "report.json",
    "writer.lock",
    "validation",
    "fine-tuning",
)


@app.command("fit")
def fit(
    method: str = typer.Argument("thn", help=f"Method: {_METHOD_NAMES}."),
    auxiliary: Path | None = typer.Option(
        None,
        help="Auxiliary set: file with columns image, text and optionally labels.",
        show_default="the built-in concepts alone",
    ),
    concepts: bool = typer.Option(
        True, help="Also learn from the built-in concepts of the image network."
    ),
    embedded_captions: bool = typer.Option(
        False, "--embedded-captions", help="Also learn from captions inside your image files."
    ),
    auxiliary_images: Path | None = typer.Option(
        None, help="Auxiliary images, if images and texts are in separate files."
    ),
    auxiliary_texts: Path | None = typer.Option(
        None, help="Auxiliary texts, if images and texts are in separate files."
    ),
    relation: Path | None = typer.Option(
        None,
        help="File of related pairs (image id, text id, 0 or 1), or votes from "
        "`transhash feedback`.",
    ),
    images: Path | None = typer.Option(
        None, help="Target images: folder or csv, tsv, jsonl, parquet, npy file."
    ),
    texts: Path | None = typer.Option(
        None, help="Target texts: folder or csv, tsv, jsonl, parquet, txt, npy file."
    ),
    benchmark: Path | None = typer.Option(
        None, help="Benchmark folder to use instead of your own files."
    ),
    split_seed: int = typer.Option(0, help="Seed of the benchmark split."),
    bits: int | None = typer.Option(
        None,
        help="Code length in bits, a multiple of 8.",
        show_default=f"{DEFAULT_BITS} for thn on your own files, else {BENCHMARK_BITS}",
    ),
    seed: int = typer.Option(0, help="Random seed for training."),
    features: str = typer.Option(
        "efficientnet-lite0",
        help="Image features: efficientnet-lite0, efficientnet-lite2, open_clip:NAME, timm:NAME, "
        "transformers:NAME or alexnet.",
    ),
    text_features: str | None = typer.Option(
        None,
        help="Text features: words, bag-of-words, or an embedding model (name or folder).",
        show_default="words, with all-MiniLM-L6-v2 on your own files if installed",
    ),
    weights: str | None = typer.Option(
        None, help="AlexNet weights: .pth or .safetensors file, or URL."
    ),
    tune: int = typer.Option(0, help="Number of hyperparameter trials on held-out auxiliary data."),
    validate: bool = typer.Option(
        True, help="Estimate quality on held-out auxiliary pairs (trains a second model)."
    ),
    fine_tune: bool = typer.Option(
        False, "--fine-tune", help="Fine-tune the image backbone before training."
    ),
    fine_tune_blocks: int | None = typer.Option(None, help="Fine-tune only the last N blocks."),
    fine_tune_minutes: float | None = typer.Option(
        None, help="Limit fine-tuning to about N minutes."
    ),
    fine_tune_teacher: str | None = typer.Option(
        None, help="Method that supervises fine-tuning.", show_default="the fitted method"
    ),
    setting: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Set a hyperparameter: NAME=VALUE or fine_tune.NAME=VALUE. Repeatable.",
    ),
    device: str = typer.Option("cpu", help="Device: cpu or cuda."),
    precision: str = typer.Option("float32", help="float32 or bfloat16 (GPU only)."),
    to: Path = typer.Option(..., "--out", help="Run folder to create."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Train a model for your images and texts.

    It learns from an auxiliary set of related pairs, the built-in concepts, or both.

    Rerun the same command to resume an interrupted fit.

    Example: `transhash fit thn --auxiliary aux.tsv --images photos/ --texts notes.csv --out r`
    """
    check_image_features(features)
    chosen = find_method(method)
    name, known_settings = chosen.name, chosen.settings()
    if bits is None:
        bits = BENCHMARK_BITS if benchmark is not None else default_bits(name)
    options: dict[str, Any] = {"bits": bits, "seed": seed}
    deep_options = {"device": device, "precision": precision, "weights": weights}
    options |= {key: value for key, value in deep_options.items() if key in known_settings}
    hasher_settings, tuning_settings = split_settings(parse_settings(setting))
    hasher = make_hasher(name, **{**options, **hasher_settings})

    # Slow to import, so after the checks above.
    from transhash.features.images import image_features
    from transhash.hashers.world import init_world
    from transhash.progress import no_progress
    from transhash.training.fine_tune import FineTuningRequest, require_backbone, split_images
    from transhash.training.fit import Fit
    from transhash.training.fit_data import read_fit_data

    extractor = image_features(features, device)
    request = None
    limits = {"blocks": fine_tune_blocks, "minutes": fine_tune_minutes}
    if fine_tune:
        require_backbone(extractor)  # fail before reading files
        tuning_settings = {"seed": seed, **limits, **tuning_settings}
        request = FineTuningRequest.from_hasher(hasher, name, tuning_settings, fine_tune_teacher)
    elif tuning_settings or any(v is not None for v in (*limits.values(), fine_tune_teacher)):
        raise DataError("Fine-tuning options need --fine-tune. Add it, or remove them.")
    if benchmark is not None and relation is not None:
        raise DataError("A benchmark defines its own relation. Remove --relation.")
    check_output_folder(to)
    with init_world(device) as world:
        track = progress_bar if world.rank == 0 else no_progress
        fitting = Fit(
            hasher, name, to, extractor, text_features, device, trials=tune, validate=validate,
            fine_tuning=request, use_concepts=concepts, user_settings=hasher_settings,
            track=track, world=world,
        )  # fmt: skip
        fitting.check_world()  # fail before reading files
        if benchmark is not None:
            from transhash.training.split_data import build_split, load_benchmark_features

            with_features, problems = world.local_main_process_first(
                lambda: load_benchmark_features(benchmark, extractor, track)
            )
            split = build_split(
                with_features, split_seed,
                uses_target=hasher.uses_target, texts=text_features, device=device,
            )  # fmt: skip
            fitting.run_split(split, split_images(with_features, split_seed), problems)
        else:
            data = read_fit_data(
                auxiliary, images, texts, relation=relation,
                auxiliary_images=auxiliary_images, auxiliary_texts=auxiliary_texts,
                embedded_captions=embedded_captions, track=track,
            )  # fmt: skip
            fitting.run_files(data)
    if world.rank:
        return
    if as_json:
        print(json.dumps(fitting.report))
    else:
        print_report(fitting.report, to)


def check_output_folder(folder: Path) -> None:
    """Require a folder that is new, empty or from an earlier fit without an index."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file. Choose a new --out folder.")
    if (folder / "catalog.sqlite").exists():
        raise DataError(
            f"{folder} already has an index. Choose a new --out folder, or update the index with "
            "transhash sync."
        )
    if (
        folder.exists()
        and any(folder.iterdir())
        and not any((folder / name).exists() for name in _RUN_FILES)
    ):
        raise DataError(f"{folder} contains other files. Choose an empty --out folder.")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value that is not JSON is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise DataError(f"--set must be NAME=VALUE, got {pair!r}.")
        try:
            settings[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # not JSON, or too many digits or brackets
            settings[name.strip()] = value
    return settings


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the method, and those of fine-tuning without their prefix."""
    prefix = "fine_tune."
    own = {name: value for name, value in settings.items() if not name.startswith(prefix)}
    tuning = {name.removeprefix(prefix): settings[name] for name in settings if name not in own}
    return own, tuning


def print_report(report: dict[str, Any], folder: Path) -> None:
    codes, auxiliary, target = report["codes"], report["auxiliary"], report["target"]
    sources = []
    if auxiliary["images"]:
        sources.append(
            f"{auxiliary['images']:,} auxiliary images and {auxiliary['texts']:,} texts "
            f"({auxiliary['related_share']:.1%} of pairs related)"
        )
    if auxiliary["concepts"]:
        sources.append(f"{auxiliary['concepts']:,} built-in concepts")
    out.print(
        f"[bold]{report['method']}[/bold], {report['bits']} bits: trained in "
        f"{report['training_seconds']:.0f} s on {' and '.join(sources)}, with {target['images']:,} "
        f"images and {target['texts']:,} texts of yours, unlabeled",
        markup=True,
    )
    if votes := report.get("votes"):
        out.print(
            f"Votes: {votes['up']:,} up and {votes['down']:,} down on {votes['images']:,} images "
            f"and {votes['texts']:,} texts of the auxiliary set"
        )
    low, high = (round(100 * share) for share in codes["bit_balance"])
    out.print(
        f"Codes: {codes['distinct']:,} distinct out of {codes['items']:,}, "
        f"bits set {low}-{high}% of the time"
    )
    out.print(f"Features: images {report['image_features']}, texts {report['text_features']}")
    for message in report["warnings"]:
        warn(message)
    print_problems(report["problems"], folder / "report.json")
    out.print(f"Saved to {folder}")
    if "validation" in report:
        print_validation(report["validation"])


def print_validation(validation: dict[str, Any]) -> None:
    """Print the validation report of a fit."""
    for line in validation["summary"]:
        out.print(line)
    if missing := validation["coverage"].get("words", {}).get("missing_words"):
        out.print(f"Frequent words missing from the captions: {', '.join(missing)}")
    for message in validation["warnings"]:
        warn(message)
