"""The commands search, serve and mcp."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from transhash.cli import (
    INDEX,
    JSON_LINES,
    RUN,
    app,
    out,
    plain_table,
    print_json,
    truncate,
    warn,
)
from transhash.errors import DataError
from transhash.progress import progress_bar

if TYPE_CHECKING:
    from transhash.data.collection import Modality
    from transhash.index.weighted import RankingMode
    from transhash.search.catalog import SearchFilter
    from transhash.search.engine import SearchEngine
    from transhash.search.hits import Hits
    from transhash.search.keywords import SearchMode
    from transhash.search.queries import QueryResult

_MIN_KEY, _MAX_KEY = 8, 200  # characters
_UNKNOWN_IMAGE = "The model was trained on no image like this one: results are unreliable."
_CHANCE = "No good match: no result is nearer to the query than random codes."
_NONE_MATCH = "No item meets all conditions. transhash info lists the sources."


@app.command()
def search(
    run: Path = RUN,
    text: str | None = typer.Option(None, help="Text query."),
    image: Path | None = typer.Option(None, help="Image query."),
    queries: Path | None = typer.Option(
        None, help="Many queries: table of texts or images, or folder."
    ),
    k: int = typer.Option(10, "-k", help="Number of results."),
    modality: str | None = typer.Option(
        None,
        help="Modality of the results: images or texts.",
        show_default="the other one than the query's, if it has items",
    ),
    ranking: str = typer.Option(
        "weighted", help="weighted (by query confidence), tiebreak or hamming."
    ),
    search_mode: str = typer.Option(
        "hybrid", "--search", help="hybrid (codes and keywords), codes or keywords."
    ),
    folder: str | None = typer.Option(None, help="Only items in this folder of their source."),
    after: str | None = typer.Option(
        None, metavar="DATE", help="Only images taken since YYYY, YYYY-MM or YYYY-MM-DD."
    ),
    before: str | None = typer.Option(
        None, metavar="DATE", help="Only images taken until the end of this date."
    ),
    source: str | None = typer.Option(None, help="Only items of this indexed folder or file."),
    collapse: bool = typer.Option(
        True, "--collapse/--no-collapse", help="Show copies of one item as one result."
    ),
    index: str | None = INDEX,
    contact_sheet: Path | None = typer.Option(None, help="Write the results as one PNG image."),
    as_json: bool = JSON_LINES,
) -> None:
    """Search images by text, or texts by image.

    `--queries FILE --json` prints one line per query with its results as soon as they are known. A
    query that cannot be used does not stop the others; the exit code is then 2.

    Example: `transhash search runs/mine --text "a dog on the beach" -k 5`

    Example: `transhash search runs/mine --queries questions.csv --json > results.jsonl`
    """
    from transhash.data.collection import check_modality
    from transhash.index.weighted import check_ranking
    from transhash.search.catalog import SearchFilter
    from transhash.search.engine import SearchEngine
    from transhash.search.hits import is_chance
    from transhash.search.keywords import check_search

    mode, kind = check_ranking(ranking), check_search(search_mode)
    filters = SearchFilter(_absolute_folder(folder), after, before, _absolute_folder(source))
    if sum(query is not None for query in (text, image, queries)) != 1:
        raise DataError("A search needs one query. Pass --text, --image or --queries.")
    if queries is not None:
        if contact_sheet is not None:
            raise DataError("--contact-sheet shows one query. Pass --text or --image instead.")
        _search_file(run, queries, k, modality, mode, kind, filters, collapse, index, as_json)
        return
    chosen = None if modality is None else check_modality(modality)
    if text is not None and not text.strip():
        raise DataError("--text is empty. Pass a text to search with.")
    if image is not None:
        _check_image(image)
    with SearchEngine.open(run, index) as engine:
        searched = chosen or _searched_modality(engine, by_text=text is not None)
        start = time.perf_counter()
        if text is not None:
            hits = engine.similar_to_text(
                text, k, searched, mode, search=kind, filters=filters, collapse=collapse
            )
            warning = "" if kind == "keywords" else _word_warning(engine, text)
        else:
            hits = engine.similar_to_image(
                image, k, searched, mode, filters=filters, collapse=collapse
            )
            assert image is not None
            is_unknown = engine.encoder.is_unknown_image(engine.encoder.extract_image(image))
            warning = _UNKNOWN_IMAGE if is_unknown else ""
        milliseconds = (time.perf_counter() - start) * 1e3
        items = engine.indexes[searched]
        if not warning and kind != "keywords" and not filters and is_chance(hits, len(items)):
            warning = _CHANCE
        if filters and not hits:
            warning = _NONE_MATCH
        if warning:
            warn(warning)
        if contact_sheet is not None:
            from transhash.search.hits import write_contact_sheet

            write_contact_sheet(hits, engine, contact_sheet)
        if as_json:
            for row in _json_rows(hits):
                print_json(row)
            return
        _print_table(hits)
        pool = None if mode == "hamming" else items.candidates(k)
        reranked = "" if pool is None else f", top {pool:,} reranked"
        out.print(
            f"{len(hits)} of {len(items):,} results in {milliseconds:.0f} ms "
            f"({_describe_search(text is not None, kind)}{mode} ranking{reranked})"
        )


@app.command()
def serve(
    run: Path = RUN,
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port; 0 picks a free one."),
    index: str | None = INDEX,
    originals: bool = typer.Option(
        False, "--originals", help="Allow viewing and downloading original files."
    ),
    writable: bool = typer.Option(False, help="Allow votes and adding or removing items."),
    sync: list[Path] = typer.Option(
        [], help="Folder or table to keep in sync; implies --writable."
    ),
    sync_every: float = typer.Option(
        60, min=0, help="Seconds between looks for changes; 0: on request only."
    ),
    read_key_file: Path | None = typer.Option(
        None, help="File with the key that reading needs.", show_default="$TRANSHASH_READ_KEY"
    ),
    write_key_file: Path | None = typer.Option(
        None,
        help="File with the key that changes need; it allows reading.",
        show_default="$TRANSHASH_WRITE_KEY; on loopback, generated at each start",
    ),
    rate_limit: float | None = typer.Option(None, min=0.01, help="Requests per second per client."),
    key_rate_limit: float = typer.Option(
        200, min=0.01, help="Requests per second with one key, by all clients."
    ),
    browser: bool = typer.Option(False, "--open", help="Open the search page in the browser."),
) -> None:
    """Start the search page and HTTP API.

    Keys are read from files or the environment, so that they do not show in the list of processes.

    Example: `transhash serve runs/mine`

    Example: `transhash serve runs/mine --sync photos/ --sync notes.csv`
    """
    from transhash.service import serve_run

    def print_address(address: str) -> None:
        out.print(f"Serving {run} at {address} (press Ctrl-C to stop)")
        if "#" in address:
            out.print(
                "Anyone with this link can vote, add and remove items until the server stops.",
            )

    serve_run(
        run,
        host=host,
        port=port,
        index_url=index,
        writable=writable,
        originals=originals,
        read_key=_read_key(read_key_file, "TRANSHASH_READ_KEY"),
        write_key=_read_key(write_key_file, "TRANSHASH_WRITE_KEY"),
        rate_limit=rate_limit,
        key_rate_limit=key_rate_limit,
        sync_sources=sync,
        sync_seconds=sync_every or None,
        open_browser=browser,
        on_ready=print_address,
    )


def _read_key(file: Path | None, variable: str) -> str | None:
    """Return the key in a file, else in the environment, else None."""
    if file is None:
        place, key = f"${variable}", os.environ.get(variable, "").strip()
        if not key:
            return None
    else:
        place = str(file)
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or "not UTF-8"
            raise DataError(
                f"Cannot read the key in {file} ({reason}). Pass a text file."
            ) from None
    if not _MIN_KEY <= len(key) <= _MAX_KEY or not key.isprintable():
        raise DataError(
            f"The key in {place} is not one line of {_MIN_KEY} to {_MAX_KEY} characters. "
            "Create one with: openssl rand -hex 16"
        )
    return key


def _check_image(image: Path) -> None:
    if re.match(r"[A-Za-z]{2,}:/", str(image)):  # one letter is a Windows drive
        url = str(image).replace(":/", "://", 1)  # Path removes one slash
        raise DataError(f"{url} is a URL. Download the file and pass its path.")
    if not image.is_file():
        state = "is not a file" if image.exists() else "does not exist"
        raise DataError(f"{image} {state}. Pass an image file.")


def _absolute_folder(name: str | None) -> str | None:
    """Return a folder or file that exists as an absolute path, and other names as they are."""
    return str(Path(name).resolve()) if name and Path(name).exists() else name


def _searched_modality(engine: SearchEngine, *, by_text: bool) -> Modality:
    """Return the other modality than the query's, or the query's if only it has items."""
    from transhash.data.collection import MODALITIES

    own, other = MODALITIES if not by_text else reversed(MODALITIES)
    return own if len(engine.indexes[own]) and not len(engine.indexes[other]) else other


def _describe_search(by_text: bool, search: SearchMode) -> str:
    return f"{search} search, " if by_text else ""


def _word_warning(engine: SearchEngine, text: str) -> str:
    """Return a warning if the model knows few words of a query, or none."""
    words = engine.query_encoder.text_features
    if words is None:
        return ""
    known, unknown = words.known_words(text), words.unknown_words(text)
    if not known:
        return "No query word is known to the model, so the results are meaningless."
    if len(unknown) >= len(known):
        return f"Ignored unknown words: {', '.join(dict.fromkeys(unknown))}"
    return ""


def _search_file(
    run: Path,
    source: Path,
    k: int,
    modality: str | None,
    ranking: RankingMode,
    search_mode: SearchMode,
    filters: SearchFilter,
    collapse: bool,
    index: str | None,
    as_json: bool,
) -> None:
    """Print the results of each query in a file or folder."""
    from transhash.data.collection import check_modality
    from transhash.search.engine import SearchEngine
    from transhash.search.hits import is_chance
    from transhash.search.queries import read_queries, search_queries

    if k < 1:
        raise DataError(f"The number of results must be at least 1, got {k}. Use a larger one.")
    queries = read_queries(source)
    chosen = None if modality is None else check_modality(modality)
    failures = 0
    with SearchEngine.open(run, index) as engine:
        searched = chosen or _searched_modality(engine, by_text=not queries.are_images)
        results: Iterable[QueryResult] = search_queries(
            engine, queries, k, searched, ranking,
            search=search_mode, filters=filters, collapse=collapse,
        )  # fmt: skip
        if not sys.stdout.isatty():  # else the results show the progress
            results = progress_bar(results, "searching", len(queries))
        for result in results:
            failures += bool(result.error)
            is_text = not queries.are_images and not result.error
            uses_codes = is_text and search_mode != "keywords"
            warning = _word_warning(engine, result.content) if uses_codes else ""
            can_tell = not warning and search_mode != "keywords" and not filters
            if can_tell and is_chance(result.hits or (), len(engine.indexes[searched])):
                warning = _CHANCE
            if as_json:
                _print_query(result, "path" if queries.are_images else "text", warning)
                continue
            out.print(f"{result.query}: {truncate(result.content)}")
            if result.hits is None:
                warn(f"{result.query}: {result.error}")
                continue
            if warning:
                warn(f"{result.query}: {warning}")
            _print_table(result.hits)
    if failures:
        warn(f"{failures:,} of {len(queries):,} queries could not be used.")
        raise typer.Exit(2)


def _print_query(result: QueryResult, content_name: str, warning: str) -> None:
    row: dict[str, Any] = {"query": result.query, content_name: result.content or None}
    if warning:
        row["warning"] = warning
    if result.hits is None:
        row["error"] = result.error
    else:
        row["results"] = _json_rows(result.hits)
    print_json(row)
    sys.stdout.flush()  # a reader of the pipe gets each line at once


def _json_rows(hits: Hits) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank, "id": hit.item.id, "distance": hit.distance,
            "text": hit.item.text, "path": hit.item.path, "matched": hit.matched,
            "duplicates": [item.id for item in hit.duplicates],
        }
        for rank, hit in enumerate(hits, 1)
    ]  # fmt: skip


def _print_table(hits: Hits) -> None:
    content_name = "text" if hits and hits[0].item.text else "file"
    right = ("rank", "distance")
    with_reasons = any(hit.matched != ("similar",) for hit in hits)
    columns = ("id", content_name, *(["matched"] if with_reasons else []))
    table = plain_table(*right, *columns, right=right)
    for rank, hit in enumerate(hits, 1):
        content = truncate(hit.item.text or "") or hit.item.path or ""
        if hit.duplicates:
            noun = "duplicate" if len(hit.duplicates) == 1 else "duplicates"
            content += f" (+{len(hit.duplicates):,} {noun})"
        reasons = [Text(", ".join(hit.matched))] if with_reasons else []
        table.add_row(str(rank), str(hit.distance), Text(hit.item.id), Text(content), *reasons)
    out.print(table, soft_wrap=False)


@app.command()
def mcp(
    run: Path = RUN,
    index: str | None = INDEX,
    writable: bool = typer.Option(False, help="Allow the client to store votes."),
) -> None:
    """Answer an MCP client, such as an assistant on the desktop, on standard input and output.

    Clients start this command themselves. Its tools search by text and by image and show items.

    Example: `transhash mcp runs/mine`
    """
    from transhash.plugins.mcp_server import serve_mcp

    serve_mcp(run, index, writable=writable)
