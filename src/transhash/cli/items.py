"""The commands list, info, remove and feedback."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from transhash.cli import (
    INDEX,
    JSON_LINES,
    JSON_OBJECT,
    RUN,
    app,
    count,
    open_catalog,
    out,
    plain_table,
    print_facts,
    print_json,
    truncate,
    warn,
)
from transhash.errors import DataError


@app.command("list")
def list_items(
    run: Path = RUN,
    modality: str | None = typer.Option(
        None, help="Modality to list: images or texts.", show_default="both"
    ),
    source: Path | None = typer.Option(None, help="Show only items from this folder or file."),
    limit: int = typer.Option(
        20, "-n", "--limit", min=0, help="Maximum number of items; 0 for all."
    ),
    as_json: bool = JSON_LINES,
) -> None:
    """List indexed items in the order they were added.

    Example: `transhash list runs/mine --source photos/ -n 50`
    """
    from transhash.data.collection import check_modality

    listed = None if modality is None else check_modality(modality)
    path = None if source is None else str(source.resolve())
    with open_catalog(run, read_only=True) as catalog:
        rows = list(catalog.sources.list_items(listed, path, limit or -1))
        total = sum(
            items
            for place, kind, items in catalog.sources.counts()
            if path in (None, place) and listed in (None, kind)
        )
    if path is not None and not total:
        raise DataError(f"No item was indexed from {path}. List sources with `transhash info`.")
    if as_json:
        for row in rows:
            print_json({name: value for name, value in row._asdict().items() if name != "key"})
        return
    table = plain_table("modality", "id", "file or text")
    for row in rows:
        content = truncate(row.text) if row.text is not None else row.path or ""
        table.add_row(row.modality[:-1], Text(row.id), Text(content))
    out.print(table, soft_wrap=False)
    out.print(f"{len(rows):,} of {total:,} items")


@app.command()
def info(run: Path = RUN, as_json: bool = JSON_OBJECT) -> None:
    """Show a run's method, features, items, sources and size.

    Example: `transhash info runs/mine`
    """
    from transhash.search.engine import describe_run

    facts = describe_run(run)
    if as_json:
        print_json(facts)
        return
    sources, size = facts.pop("sources"), facts.pop("bytes")
    facts["size on disk"] = f"{size / 1e6:,.1f} MB"
    origins = [
        (f"{row['items']:,} {row['modality']}", f"from {row['source'] or 'no file'}")
        for row in sources
    ]
    print_facts([*facts.items(), *origins])


@app.command()
def remove(
    run: Path = RUN,
    images: list[str] = typer.Option(
        [], metavar="ID", help="Id of an image to remove. Repeatable."
    ),
    texts: list[str] = typer.Option([], metavar="ID", help="Id of a text to remove. Repeatable."),
    index: str | None = INDEX,
) -> None:
    """Remove items from the index. Your files are not touched.

    Files that are still in a folder come back when that folder is indexed again. Votes on removed
    items are kept until `transhash feedback RUN --prune`. The exit code is 2 if no item was
    removed.

    Example: `transhash remove runs/mine --images IMG_0042.jpg --texts 17`
    """
    if not images and not texts:
        raise DataError("Nothing to remove. Pass --images ID or --texts ID (see `transhash list`).")
    from transhash.search.engine import SearchEngine

    with open_catalog(run, read_only=True):
        pass  # opening the engine would create a missing catalog
    removed, missing = 0, []
    with SearchEngine.open(run, index, writable=True) as engine:
        for modality, ids in zip(engine.indexes, (images, texts)):
            unique = dict.fromkeys(ids)
            known = [i for i in unique if engine.catalog.find(modality, i) is not None]
            missing += [f"{modality[:-1]} {i!r}" for i in unique if i not in known]
            removed += engine.remove(modality, known)
        sizes = {modality: len(part) for modality, part in engine.indexes.items()}
    if missing:
        message = f"Not in {run}: {', '.join(missing)}. List the items with `transhash list`."
        if not removed:
            raise DataError(message)
        warn(message)
    out.print(
        f"{run}: removed {removed:,}. "
        f"The index has {sizes['images']:,} images and {sizes['texts']:,} texts."
    )


@app.command()
def feedback(
    run: Path = RUN,
    to: Path | None = typer.Option(
        None, "--out", help="Write the votes to a csv, tsv or jsonl file."
    ),
    prune: bool = typer.Option(False, "--prune", help="Delete votes on items that were removed."),
    as_json: bool = JSON_OBJECT,
) -> None:
    """Show votes on search results and export them for training.

    Example: `transhash feedback runs/mine --out votes.csv`

    Then: `transhash fit thn --relation votes.csv --auxiliary aux.tsv --images photos/ --texts
    notes.csv --out runs/better`
    """
    from transhash.model.files import require_run
    from transhash.search.feedback import FeedbackStore, export_votes, orphaned_votes

    store = FeedbackStore(require_run(run))
    votes = store.all()
    orphaned = []
    if votes and (run / "catalog.sqlite").exists():
        with open_catalog(run, read_only=True) as catalog:
            orphaned = orphaned_votes(votes, catalog)
    if prune:
        store.delete_many(orphaned)
        votes = [vote for vote in votes if vote not in orphaned]
    facts = {
        "up": sum(vote.vote for vote in votes),
        "down": sum(1 - vote.vote for vote in votes),
        "images": len({vote.image.digest for vote in votes}),
        "texts": len({vote.text for vote in votes}),
        "orphaned": len(orphaned),
        "deleted": len(orphaned) if prune else 0,
    }
    if to is not None:
        if not votes:
            raise DataError(
                f"{run} has no votes. Vote on results of: transhash serve {run} --writable"
            )
        facts["thumbnails"] = export_votes(votes, to)
    if as_json:
        print_json(facts)
        return
    out.print(
        f"{facts['up']:,} up and {facts['down']:,} down votes on {count(facts['images'], 'image')} "
        f"and {count(facts['texts'], 'text')}"
    )
    if prune:
        out.print(f"Deleted {count(len(orphaned), 'vote')} on removed items")
    elif orphaned:
        out.print(f"{count(len(orphaned), 'vote')} on removed items. Use --prune to delete them.")
    if to is not None:
        if facts["thumbnails"]:
            out.print(f"{facts['thumbnails']:,} image files are missing: wrote their thumbnails")
        out.print(f"Saved to {to}. Train on it with: transhash fit thn --relation {to} ...")
