"""The commands index, sync, move and copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from transhash.cli import INDEX, RUN, app, open_catalog, out, print_problems, warn
from transhash.errors import DataError, EngineError
from transhash.progress import progress_bar

if TYPE_CHECKING:
    from transhash.data.collection import Problem
    from transhash.search.engine import SearchEngine
    from transhash.search.sync import SyncPlan
    from transhash.search.writer import IndexResult

_MAX_SHOWN_REMOVALS = 8
_REREAD = typer.Option(
    False, "--reread", help="Re-read every file even if size and time are unchanged."
)


@app.command()
def index(
    run: Path = RUN,
    images: list[Path] = typer.Option([], help="Images to add: folder or table. Repeatable."),
    texts: list[Path] = typer.Option([], help="Texts to add: folder or table. Repeatable."),
    codes: list[Path] = typer.Option([], help="Folder written by `transhash encode`. Repeatable."),
    reread: bool = _REREAD,
    index: str | None = INDEX,
) -> None:
    """Encode images and texts and add them to the run's index. Unchanged items are skipped.

    Items are identified by their source: files of the same name in two folders are two items.
    Items added with `--codes` have an id but no image or text to show.

    Example: `transhash index runs/mine --images photos/ --texts notes.csv`

    Example: `transhash index runs/mine --codes codes/ --index milvus:http://host:19530/photos`
    """
    from transhash.data.manifest import read_images, read_texts
    from transhash.model.shards import read_job, read_shards
    from transhash.search.engine import SearchEngine

    if not (images or texts or codes):
        raise DataError("Nothing to index. Pass --images, --texts or --codes.")
    jobs = [(folder, read_job(folder, run)) for folder in codes]  # fail before writing anything
    image_items = [read_images(path) for path in images]
    text_items = [read_texts(path) for path in texts]
    results = []
    problems: list[Problem] = []
    with SearchEngine.open(run, index, writable=True) as engine:
        for photos in image_items:
            problems += photos.problems
            results.append(engine.writer.add_images(photos, progress_bar, reread=reread))
        for notes in text_items:
            problems += notes.problems
            results.append(engine.writer.add_texts(notes, progress_bar))
        for folder, job in jobs:
            shards = progress_bar(read_shards(folder), f"indexing {job.modality}", job.shards)
            results.append(engine.writer.add_codes(job.modality, shards))
        _print_result(engine, results, problems)


@app.command()
def sync(
    run: Path = RUN,
    sources: list[Path] = typer.Argument(..., help="Folders or files to match."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show the changes without applying them."
    ),
    allow_shrink: bool = typer.Option(
        False, "--allow-shrink", help="Remove items of a missing, empty or much smaller source."
    ),
    reread: bool = _REREAD,
    index: str | None = INDEX,
) -> None:
    """Make the index match folders or files: add new items, update changed ones, remove deleted
    ones.

    Example: `transhash sync runs/mine photos/ notes.csv --dry-run`
    """
    from transhash.search import sync as syncing
    from transhash.search.engine import SearchEngine

    problems: list[Problem] = []
    with SearchEngine.open(run, index, writable=not dry_run) as engine:
        path_plans = [
            (path, plan) for path in sources for plan in syncing.plan_sync(engine.catalog, path)
        ]
        plans = [plan for _, plan in path_plans]
        problems += [problem for plan in plans for problem in plan.problems]
        if dry_run:
            for path, plan in path_plans:
                result = syncing.preview_sync(engine.catalog, plan, progress_bar, reread=reread)
                _print_preview(path, plan, result)
                problems += result.problems
            for loss in syncing.find_losses(engine.catalog, plans).values():
                warn(f"Needs --allow-shrink, because {loss}.")
        else:
            results, removed = syncing.sync(
                engine.writer, plans, progress_bar, reread=reread, allow_shrink=allow_shrink
            )
            _print_result(engine, results, problems, removed)
    if dry_run:  # no file is written, so print all of them
        rows = [problem._asdict() for problem in dict.fromkeys(problems)]
        print_problems(rows, run / "skipped.json", limit=None)


@app.command()
def move(
    run: Path = RUN,
    old: Path = typer.Argument(..., help="Folder or file that the items were indexed from."),
    new: Path = typer.Argument(..., help="Where it is now."),
) -> None:
    """Update the index after a source folder was moved.

    Example: `transhash move runs/mine photos/ /media/disk/photos/`
    """
    if not new.exists():
        raise DataError(f"{new} does not exist. Move the files first, then pass the new path.")
    with open_catalog(run) as catalog:
        moved = catalog.sources.move(str(old.resolve()), str(new.resolve()))
    if not moved:
        raise DataError(f"No item was indexed from {old}. List the sources with `transhash info`.")
    out.print(f"Moved {moved:,} items from {old} to {new}")


@app.command()
def copy(
    run: Path = RUN,
    source: str = typer.Option(..., "--from", metavar="URL", help="Index to copy from."),
    destination: str = typer.Option(..., "--to", metavar="URL", help="Index to copy to."),
) -> None:
    """Copy all codes from one index to another. Rerun to resume.

    Example: `transhash copy runs/mine --from grouped:runs/mine/index --to milvus:./codes.db`
    """
    from transhash.data.collection import MODALITIES
    from transhash.index import open_index
    from transhash.model.files import read_bits
    from transhash.search.engine import index_url

    bits = read_bits(run)
    for modality in MODALITIES:
        with (
            open_index(index_url(source, modality), bits, read_only=True) as old,
            open_index(index_url(destination, modality), old.bits) as new,
        ):
            before = len(new)
            sent = new.ingest(*old.export(), progress_bar)
            if len(new) < len(old):
                raise EngineError(
                    f"{destination} has {len(new):,} {modality} after copying {len(old):,}. "
                    "Rerun the same command."
                )
            out.print(
                f"{modality}: sent {sent:,} of {len(old):,} from {source} to {destination} "
                f"({before:,} were already there)"
            )


def _print_preview(path: Path, plan: SyncPlan, result: IndexResult) -> None:
    for item in plan.removed[:_MAX_SHOWN_REMOVALS]:
        out.print(f"would remove {plan.modality[:-1]} {item.id}")
    if (more := len(plan.removed) - _MAX_SHOWN_REMOVALS) > 0:
        out.print(f"would remove {more:,} more {plan.modality}")
    out.print(
        f"{path}, {plan.modality}: would add {result.added:,}, update {result.updated:,}, "
        f"remove {len(plan.removed):,}, keep {result.unchanged:,}"
    )


def _print_result(
    engine: SearchEngine,
    results: Sequence[IndexResult],
    problems: Sequence[Problem],
    removed: int | None = None,
) -> None:
    skipped = dict.fromkeys([*problems, *(p for result in results for p in result.problems)])
    print_problems([problem._asdict() for problem in skipped], engine.run / "skipped.json")
    sizes = {modality: len(index) for modality, index in engine.indexes.items()}
    out.print(
        f"{engine.run}: added {sum(result.added for result in results):,}, "
        f"updated {sum(result.updated for result in results):,}, "
        f"unchanged {sum(result.unchanged for result in results):,}, "
        + ("" if removed is None else f"removed {removed:,}, ")
        + f"skipped {len(skipped):,}. "
        f"The index has {sizes['images']:,} images and {sizes['texts']:,} texts."
    )
