"""list, info, remove; what `index --sync --dry-run` and `--root` say."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from transhash.cli import app, err, out, print_json, truncate
from transhash.cli.fit import print_problems
from transhash.errors import DataError
from transhash.progress import progress_bar

if TYPE_CHECKING:
    from transhash.data.collection import check_modality
    from transhash.search.engine import SearchEngine
    from transhash.search.writer import IndexResult

_NOT_FROM = "no item of this run is from {}; `transhash info` tells where from"
_RUN = typer.Argument(..., help="A run folder that fit wrote.")


@app.command("list")
def list_command(
    run: Path = _RUN,
    modality: str | None = typer.Option(None, help="images or texts; both if not given."),
    origin: Path | None = typer.Option(None, help="Only what was listed in this folder or file."),
    count: int = typer.Option(20, "-n", help="How many; 0 for all."),
    as_json: bool = typer.Option(False, "--json", help="One JSON line an item, texts whole."),
) -> None:
    """List what a run holds, in the order in which it was added.

    Example: `transhash list runs/mine --origin photos/ -n 50`
    """
    from transhash.search.catalog import Catalog

    if count < 0:
        raise DataError(f"-n takes a number of items, 0 for all, got {count}")
    kind = None if modality is None else check_modality(modality)
    place = None if origin is None else str(origin.resolve())
    catalog = Catalog(_run(run) / "catalog.sqlite", read_only=True)
    try:
        rows = list(catalog.origins.listing(kind, place, count or -1))
        totals = [n for where, what, n in catalog.origins.counts()
                  if place in (None, where) and kind in (None, what)]  # fmt: skip
    finally:
        catalog.close()
    if place is not None and not sum(totals):
        raise DataError(_NOT_FROM.format(place))
    if as_json:
        for row in rows:
            print_json({k: v for k, v in row._asdict().items() if k != "key"})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("kind")
    for name in ("id", "file or text"):
        table.add_column(name, overflow="fold")
    for row in rows:
        shown = truncate(row.text) if row.text is not None else row.source or ""
        table.add_row(row.modality[:-1], Text(row.id), Text(shown))
    out.print(table)
    out.print(f"{len(rows):,} of {sum(totals):,} items")


@app.command()
def info(
    run: Path = _RUN,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Tell what a run is: method, features, what it holds and where from, its size on disk.

    Example: `transhash info runs/mine`
    """
    facts = describe_run(_run(run))
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if name != "origins":
            shown = f"{value / 1e6:,.1f} MB" if name == "bytes" else _words(value)
            table.add_row("size on disk" if name == "bytes" else name, Text(shown))
    for row in facts["origins"]:
        where = row["origin"] or "(no file: added by a program, or not noted)"
        table.add_row(f"{row['items']:,} {row['modality']}", Text(f"from {where}"))
    out.print(table)


def describe_run(run: Path) -> dict[str, Any]:
    """What `info` tells."""
    from transhash.data.collection import MODALITIES
    from transhash.model.files import model_digest, read_bits, read_config
    from transhash.search.catalog import Catalog

    config = read_config(run)
    held: dict[str, int] = dict.fromkeys(MODALITIES, 0)
    origins: list[dict[str, Any]] = []
    engines: list[str] = []
    if (run / "catalog.sqlite").exists():
        catalog = Catalog(run / "catalog.sqlite", read_only=True)
        try:
            held = {name: catalog.count(name) for name in MODALITIES}
            origins = [
                {"origin": place, "modality": kind, "items": count}
                for place, kind, count in catalog.origins.counts()
            ]
            # Not noted by the first format, which has the run's own.
            engines = [name or "grouped (the run's own)" for name in catalog.engines() or [""]]
        finally:
            catalog.close()
    written = (run / "config.json").stat().st_mtime
    votes = config.get("votes")
    return {
        "run": str(run),
        "method": config["method"],
        "bits": read_bits(run),
        "image features": config["image_features"],
        "text features": config["text_features"],
        "written": datetime.fromtimestamp(written).astimezone().isoformat(timespec="seconds"),
        "transhash": config.get("transhash", ""),
        "model": model_digest(run),
        **({"learned from votes": votes["up"] + votes["down"]} if votes else {}),
        **held,
        "engines": engines,
        "bytes": sum(file.stat().st_size for file in run.rglob("*") if file.is_file()),
        "origins": origins,
    }


@app.command()
def remove(
    run: Path = _RUN,
    images: list[str] = typer.Option([], metavar="ID", help="An image to forget; repeatable."),
    texts: list[str] = typer.Option([], metavar="ID", help="A text to forget; repeatable."),
    index: str | None = typer.Option(None, help="The engine, if not the run's own."),
) -> None:
    """Forget items: they are found no more. Files are left alone.

    Example: `transhash remove runs/mine --images IMG_0042.jpg --texts 17`

    What is still in a folder comes back when that folder is indexed again. Votes on them are kept,
    with thumbnail and text, until `transhash feedback RUN --forget-gone`. Exit code 2 if the run
    holds none of them.
    """
    if not images and not texts:
        raise DataError("nothing to remove: give --images ID or --texts ID, as `list` shows them")
    from transhash.data.collection import MODALITIES
    from transhash.search.engine import SearchEngine

    _catalog(run)
    engine = SearchEngine.open(run, index, writable=True)
    try:
        gone, missing = 0, []
        for kind, ids in zip(MODALITIES, (images, texts)):
            unique = list(dict.fromkeys(ids))
            there = [i for i in unique if engine.catalog.find(kind, i) is not None]
            missing += [f"{kind[:-1]} {i!r}" for i in unique if i not in there]
            gone += engine.remove(kind, there)
        counts = {name: len(part) for name, part in engine.indexes.items()}
    finally:
        engine.close()
    if missing:
        sentence = f"there is no {', no '.join(missing)} in {run}; `transhash list` shows what is"
        if not gone:
            raise DataError(sentence)
        err.print(f"warning: {sentence}", soft_wrap=True)
    out.print(
        f"{run}: {gone:,} forgotten; {counts['images']:,} images and {counts['texts']:,} texts "
        "are searchable",
        soft_wrap=True,
    )


def print_preview(
    run: Path, into: str | None, sources: list[Path], check: bool, allow_empty: bool
) -> None:
    """What keeping in step would do."""
    from transhash.search.engine import SearchEngine
    from transhash.search.sync import plan_sync, preview_sync

    _catalog(run)
    engine = SearchEngine.open(run, into)
    try:
        listed = []
        for path in sources:
            for part in plan_sync(engine.catalog, path, allow_empty=allow_empty):
                seen = preview_sync(engine.catalog, part, progress_bar, reread=check)
                listed += [*part.problems, *seen.problems]
                for name in part.removed[:8]:
                    out.print(f"would forget {part.modality[:-1]} {name}", soft_wrap=True)
                if len(part.removed) > 8:
                    out.print(f"would forget {len(part.removed) - 8:,} more {part.modality}")
                out.print(
                    f"{path}: {part.modality}: would add {seen.added:,}, update {seen.updated:,}, "
                    f"forget {len(part.removed):,}; {seen.unchanged:,} are unchanged",
                    soft_wrap=True,
                )
    finally:
        engine.close()
    rows = [problem._asdict() for problem in dict.fromkeys(listed)]
    print_problems(rows, run / "skipped.json", shown=len(rows))  # all: nothing is written


def split_root(pair: str) -> tuple[Path, Path]:
    """OLD=NEW as two paths; NEW is there, whatever else has an equals sign in its name."""
    places = [at for at, letter in enumerate(pair) if letter == "="]
    for at in places:
        if pair[:at] and pair[at + 1 :] and Path(pair[at + 1 :]).exists():
            return Path(pair[:at]).resolve(), Path(pair[at + 1 :]).resolve()
    if not places:
        raise DataError(f"--root takes OLD=NEW, two folders, got {pair!r}")
    raise DataError(f"{pair[places[0] + 1 :]} does not exist; --root takes OLD=NEW after the move")


def move_root(engine: SearchEngine, old: Path, new: Path) -> None:
    count = engine.catalog.origins.move(str(old), str(new))
    if not count:
        raise DataError(_NOT_FROM.format(old))
    out.print(f"{count:,} items of {old} are known in {new} now", soft_wrap=True)


def warn_if_moved(engine: SearchEngine, done: IndexResult, origin: str) -> None:
    """Of items that are known from a place which is no more: their files are not found by it."""
    for place, count in engine.catalog.origins.other_sources(done.numbers, origin).items():
        if place and not Path(place).exists():
            err.print(
                f"warning: {count:,} of these are known from {place}, which is not there; if it "
                f"was moved, say so: transhash index {engine.run} --root '{place}={origin}'",
                soft_wrap=True,
            )


def _run(run: Path) -> Path:
    if not run.is_dir():
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    return run


def _catalog(run: Path) -> None:
    if not (_run(run) / "catalog.sqlite").exists():
        raise DataError(f"{run} holds nothing yet; fill it with: transhash index {run} ...")


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


# feedback.


@app.command()
def feedback(
    run: Path = typer.Argument(..., help="A run folder that was served with --writable."),
    to: Path | None = typer.Option(
        None, "--out", help="Write them here: csv, tsv or jsonl, for fit --relation."
    ),
    forget_gone: bool = typer.Option(
        False, help="Forget votes on items that are no longer in the run."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the counts as JSON."),
) -> None:
    """Count the votes that were given on a run's results, and write them to learn from.

    Example: `transhash feedback runs/mine --out votes.csv`

    Then: `transhash fit thn --relation votes.csv --auxiliary aux.tsv --images photos/ --texts
    notes.csv --out runs/better`
    """
    from transhash.search.catalog import Catalog
    from transhash.search.feedback import FeedbackStore, export_votes, orphaned_votes

    if not run.is_dir():
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    kept = FeedbackStore(run)
    votes = kept.all()
    gone = []
    if votes and (run / "catalog.sqlite").exists():
        catalog = Catalog(run / "catalog.sqlite", read_only=True)
        try:
            gone = orphaned_votes(votes, catalog)
        finally:
            catalog.close()
    if forget_gone:
        kept.forget(gone)
        votes = [vote for vote in votes if vote not in gone]
    facts = {
        "up": sum(vote.vote for vote in votes),
        "down": sum(1 - vote.vote for vote in votes),
        "images": len({vote.image.digest for vote in votes}),
        "texts": len({vote.text for vote in votes}),
        "gone": len(gone),
        "forgotten": len(gone) if forget_gone else 0,
    }
    if to is not None and not votes:
        raise DataError(
            f"{run} holds no votes; give some on the page of: transhash serve {run} --writable"
        )
    if to is not None:
        facts["thumbnails"] = export_votes(votes, to)
    if as_json:
        print_json(facts)
        return
    out.print(
        f"{facts['up']:,} up and {facts['down']:,} down, on {_count(facts['images'], 'picture')} "
        f"and {_count(facts['texts'], 'text')}"
    )
    if forget_gone:
        out.print(f"{len(gone):,} on items that left the run were forgotten")
    elif gone:
        out.print(
            f"{len(gone):,} of them are on items that left the run; what was voted on is kept, "
            "unless --forget-gone is given",
            soft_wrap=True,
        )
    if to is None:
        return
    if facts["thumbnails"]:
        out.print(f"{facts['thumbnails']:,} pictures whose files are gone: thumbnails beside {to}")
    out.print(f"written to {to}; learn from it with: transhash fit thn --relation {to} ...")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
