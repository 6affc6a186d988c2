"""index, search, serve."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from transhash.cli import app, err, out, print_json, truncate
from transhash.cli.fit import print_problems
from transhash.errors import DataError
from transhash.progress import progress_bar


@app.command()
def index(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    images: Path | None = typer.Option(None, help="Images to make searchable."),
    texts: Path | None = typer.Option(None, help="Texts to make searchable."),
    codes: list[Path] = typer.Option([], help="Folders of codes that `transhash encode` wrote."),
    into: str | None = typer.Option(None, help="Another engine: faiss:DIR, exact:DIR, milvus:URI."),
    source: str | None = typer.Option(None, "--from", help="Copy codes from this engine instead."),
    check: bool = typer.Option(
        False, "--check", help="Read every picture, though its size and time are as they were."
    ),
    sync: list[Path] = typer.Option(
        [], help="A folder or file to keep in step with: adds, updates, forgets what is gone."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what --sync would do, change nothing."
    ),
    allow_empty: bool = typer.Option(
        False, "--forget-all", help="With --sync: a source that is gone or empty is meant to be."
    ),
    root: list[str] = typer.Option(
        [], metavar="OLD=NEW", help="A folder that was moved: its items are known by the new place."
    ),
) -> None:
    """Encode items and add them to the run's index; what is known and unchanged is left as it is.

    Example: `transhash index runs/mine --images photos/ --texts notes.csv`

    Example: `transhash index runs/mine --sync photos/ --sync notes.csv --dry-run`

    Example: `transhash index runs/mine --codes codes/ --into milvus:http://host:19530/photos`

    An item is known by the folder or file it stands in: a file of the same name from another
    folder is another item, whose id then names its folder, too. Items added by `--codes` have no
    picture or text to show, only their id.
    """
    from transhash.cli.items import move_root, print_preview, split_root, warn_if_moved
    from transhash.data.manifest import read_images, read_texts
    from transhash.model.shards import read_job, read_shards
    from transhash.search.engine import SearchEngine
    from transhash.search.sync import plan_sync
    from transhash.search.sync import sync as sync_source
    from transhash.search.writer import IndexResult

    adding = bool(images or texts or codes)
    if source is not None:
        from transhash.cli.encode import copy_indexes

        if adding or sync or root:
            raise DataError("--from copies what is in an index; leave out what to add to it")
        copy_indexes(run, source, into)
        return
    if not (adding or sync or root):
        raise DataError("nothing to index: give --images, --texts, --codes or --sync")
    if (dry_run or allow_empty) and not sync:
        raise DataError("--dry-run and --forget-all go with --sync")
    if dry_run:
        if adding or root:
            raise DataError("--dry-run says what --sync would do; give it alone")
        print_preview(run, into, sync, check, allow_empty)
        return
    moves = [split_root(pair) for pair in root]
    jobs = [(folder, read_job(folder, run)) for folder in codes]  # before anything is written
    pictures = None if images is None else read_images(images)
    sentences = None if texts is None else read_texts(texts)
    listed = [*(pictures.problems if pictures else ()), *(sentences.problems if sentences else ())]
    engine = SearchEngine.open(run, into, writable=True)
    done: list[IndexResult] = []
    forgotten = 0
    try:
        for old, new in moves:
            move_root(engine, old, new)
        kept = [
            s for path in sync for s in plan_sync(engine.catalog, path, allow_empty=allow_empty)
        ]
        if pictures is not None:
            done.append(engine.add_images(pictures, progress_bar, reread=check))
            warn_if_moved(engine, done[-1], pictures.source)
        if sentences is not None:
            done.append(engine.add_texts(sentences, progress_bar))
            warn_if_moved(engine, done[-1], sentences.source)
        for part in kept:
            listed += part.problems
            one, gone = sync_source(engine, part, progress_bar, reread=check)
            warn_if_moved(engine, one, part.origin)
            done.append(one)
            forgotten += gone
        for folder, job in jobs:
            shards = progress_bar(read_shards(folder), f"indexing {job.modality}", job.shards)
            done.append(engine.add_codes(job.modality, shards))
        counts = {name: len(part) for name, part in engine.indexes.items()}
    finally:
        engine.close()
    if not (adding or sync):
        return
    listed += [problem for part in done for problem in part.problems]
    listed = list(dict.fromkeys(listed))  # a file of both kinds is listed with each
    print_problems([problem._asdict() for problem in listed], run / "skipped.json")
    out.print(
        f"{run}: {sum(part.added for part in done):,} added, "
        f"{sum(part.updated for part in done):,} updated, "
        f"{sum(part.unchanged for part in done):,} unchanged, "
        + (f"{forgotten:,} forgotten, " if sync else "")
        + f"{len(listed):,} skipped; "
        f"{counts['images']:,} images and {counts['texts']:,} texts are searchable",
        soft_wrap=True,
    )


@app.command()
def search(
    run: Path = typer.Argument(..., help="A run folder with an index."),
    text: str | None = typer.Option(None, help="A sentence; finds images."),
    image: Path | None = typer.Option(None, help="An image file; finds texts."),
    k: int = typer.Option(10, "-k", help="How many results."),
    modality: str | None = typer.Option(None, help="images or texts, to search within one kind."),
    ranking: str | None = typer.Option(
        None,
        help="all, ties or hamming: whether bits that the query is sure of count more, in all or "
        "inside equal Hamming distances, or alike.",
        show_default="weighted",
    ),
    index: str | None = typer.Option(None, help="The engine, if not the run's own."),
    sheet: Path | None = typer.Option(None, help="Write a contact sheet (PNG) of the results."),
    as_json: bool = typer.Option(False, "--json", help="One JSON line a result."),
) -> None:
    """Find images by a sentence, or texts by an image.

    Example: `transhash search runs/mine --text "a dog on the beach" -k 5`
    """
    from transhash.index.weighted import check_ranking
    from transhash.search.engine import DEFAULT_RANKING, SearchEngine

    if (text is None) == (image is None):
        raise DataError("give either --text or --image")
    mode = check_ranking(ranking or DEFAULT_RANKING)
    if modality not in (None, "images", "texts"):
        raise DataError(f"--among takes images or texts, got {modality!r}")
    if text is not None and not text.strip():
        raise DataError("--text is empty; give a sentence to search with")
    if image is not None and re.match(r"[A-Za-z]{2,}:/", str(image)):  # not a drive's letter
        address = str(image).replace(":/", "://", 1)  # a path has lost one
        raise DataError(f"{address} is an address; download it and name the file")
    if image is not None and not image.is_file():
        what = "is not a file" if image.exists() else "does not exist"
        raise DataError(f"{image} {what}; give an image file")
    engine = SearchEngine.open(run, index)
    start = time.perf_counter()
    if text is not None:
        words = engine.query_encoder.text_features
        known, unknown = (
            ([], []) if words is None else (words.known_words(text), words.unknown_words(text))
        )
        if words is not None and not known:
            err.print(
                "[yellow]warning:[/yellow] none of these words occur in the training texts; "
                "the ranking says nothing",
                markup=True,
            )
        elif len(unknown) >= max(1, len(known)):
            err.print(
                "[yellow]warning:[/yellow] words that occur in no training text are left out: "
                + escape(", ".join(dict.fromkeys(unknown))),
                markup=True,
                soft_wrap=True,
            )
        hits = engine.similar_to_text(text, k, _among(text, modality), mode)
    else:
        assert image is not None
        hits = engine.similar_to_image(image, k, _among(text, modality), mode)
    seconds = time.perf_counter() - start
    if sheet is not None:
        from transhash.search.hits import write_contact_sheet

        write_contact_sheet(hits, engine, sheet)
        err.print(f"contact sheet written to {sheet}")
    if as_json:
        for rank, hit in enumerate(hits, 1):
            row = {
                "rank": rank, "id": hit.item.id, "distance": hit.distance,
                "text": hit.item.text, "source": hit.item.source,
            }  # fmt: skip
            print_json(row)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("distance", justify="right")
    table.add_column("id", overflow="fold")
    table.add_column("text" if hits and hits[0].item.text else "file", overflow="fold")
    from rich.text import Text

    for rank, hit in enumerate(hits, 1):
        shown = truncate(hit.item.text or "") or hit.item.source or ""
        table.add_row(str(rank), str(hit.distance), Text(hit.item.id), Text(shown))
    out.print(table)
    searched = engine.indexes[_among(text, modality)]
    few = None if mode == "hamming" else searched.candidates(k)
    out.print(
        f"{len(hits)} of {len(searched):,} in {seconds * 1e3:.0f} ms, ranking {mode}"
        + ("" if few is None else f" of the nearest {few:,} candidates")
    )
    engine.close()


@app.command()
def serve(
    run: Path = typer.Argument(..., help="A run folder with an index."),
    host: str = typer.Option("127.0.0.1", help="Loopback unless told otherwise."),
    port: int = typer.Option(8000, min=0, max=65535, help="0 takes any that is free."),
    index: str | None = typer.Option(None, help="The engine, if not the run's own."),
    originals: bool = typer.Option(
        False, "--originals", help="Show pictures large, and let their files be opened and saved."
    ),
    writable: bool = typer.Option(
        False, help="Keep votes on results; allow adding and removing items by key."
    ),
    api_key: str | None = typer.Option(
        None,
        envvar="TRANSHASH_API_KEY",
        help="Key of writing clients; of all clients if the host is not loopback.",
        show_default="made at each start on loopback",
    ),
    rate_limit: float | None = typer.Option(None, help="Requests a second allowed to one client."),
    browser: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    """Serve the search page and its HTTP API.

    Example: `transhash serve runs/mine`
    """
    from transhash.service import serve_run

    def ready(address: str) -> None:
        out.print(f"serving {run} at {address} - Ctrl-C stops it", soft_wrap=True)
        if "#" in address:
            out.print("whoever has this link may vote, add and remove, until then", soft_wrap=True)

    serve_run(
        run, host=host, port=port, index_url=index, writable=writable,
        originals=originals, api_key=api_key, rate_limit=rate_limit, open_browser=browser,
        on_ready=ready,
    )  # fmt: skip


def _among(text: str | None, modality: str | None) -> Any:
    return modality or ("images" if text is not None else "texts")
