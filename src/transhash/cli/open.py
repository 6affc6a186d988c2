"""The command open."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from transhash.cli import app, count, out, print_problems, warn
from transhash.errors import DataError
from transhash.features import check_image_features
from transhash.progress import progress_bar
from transhash.storage import read_json

if TYPE_CHECKING:
    from transhash.service.schemas import SyncResult

_PORT = 8000
_SYNC_SECONDS = 60.0


@app.command("open")
def open_files(
    photos: Path = typer.Argument(..., help="Folder or table with images, texts or both."),
    texts: list[Path] = typer.Argument(None, help="More folders or tables."),
    auxiliary: Path | None = typer.Option(
        None,
        help="Auxiliary set to learn from: file with columns image and text.",
        show_default="built-in concepts alone",
    ),
    features: str | None = typer.Option(
        None, help="Image features as for `fit`.", show_default="efficientnet-lite0"
    ),
    text_features: str | None = typer.Option(
        None,
        help="Text features as for `fit`.",
        show_default="words, with all-MiniLM-L6-v2 if installed",
    ),
    to: Path | None = typer.Option(
        None,
        "--run",
        help="Run folder.",
        show_default="one per PHOTOS, in the user's data folder",
    ),
    port: int | None = typer.Option(
        None,
        min=0,
        max=65535,
        help="Port on 127.0.0.1; 0 picks a free one.",
        show_default=f"{_PORT}, or a free one",
    ),
    browser: bool = typer.Option(True, help="Open the search page in the browser."),
) -> None:
    """Make a folder searchable and open its search page. Run it again to update.

    The page opens when a sample of the files can be searched. The others are indexed meanwhile.

    Example: `transhash open photos/`

    Example: `transhash open photos/ notes/ --auxiliary captions.csv`
    """
    if features is not None:
        check_image_features(features)
    from transhash.search.engine import SERVICE_LOCK
    from transhash.service import serve_run  # first, so that a missing package is reported at once
    from transhash.storage import lock_holder, recover_folder
    from transhash.training import open_run

    options = open_run.OpenOptions(auxiliary, features, text_features)
    run = Path(os.path.abspath(to or open_run.default_run_folder(photos)))
    recover_folder(run)
    sources = open_run.read_open_sources(run, [photos, *(texts or [])])
    out.print(f"Run folder: {run}")
    if (holder := lock_holder(run, SERVICE_LOCK)) is not None and holder[1]:
        out.print(f"It is open already at {holder[1]}")
        if browser and _has_browser():
            webbrowser.open(holder[1])
        return
    reason, is_optional = open_run.reason_to_fit(run, sources, options)
    if reason and (loss := open_run.loss_by_refit(run, sources, options)):
        if not is_optional:
            raise DataError(
                f"A model fitted again needs a new index, but {loss}. Restore these files, or "
                "choose another --run folder."
            )
        warn(f"The model is kept, because {loss}.")
        reason = ""
    if reason:
        out.print(reason)
        out.print(options.describe(run))
        open_run.fit_sample(run, sources, options, progress_bar)
    open_run.index_samples(run, sources, progress_bar)

    shown: list[dict[str, str]] = []

    def print_address(address: str) -> None:
        out.print(f"Search page: {address} (press Ctrl-C to stop)")
        out.print("Anyone with this link can vote, add and remove items until then.")

    serve_run(
        run,
        port=_free_port() if port is None else port,
        originals=True,
        sync_sources=open_run.sync_paths(run, sources),
        sync_seconds=_SYNC_SECONDS,
        on_sync=lambda result: _print_sync(run, result, shown),
        open_browser=browser and _has_browser(),
        on_ready=print_address,
    )


def _print_sync(run: Path, result: SyncResult, shown: list[dict[str, str]]) -> None:
    """Print skipped files, if they are not those shown before, and the changes."""
    problems = read_json(run / "skipped.json") if result.skipped else []
    # Other kinds of files are no surprise in a folder of images; a broken image is one.
    problems.sort(key=lambda problem: "by its extension" in problem["reason"])
    if problems != shown:
        print_problems(problems, run / "skipped.json")
        shown[:] = problems
    if result.error is not None:  # was logged
        return
    changes = [
        f"{name} {number:,}"
        for name in ("added", "updated", "removed", "skipped")
        if (number := getattr(result, name))
    ]
    items = count(result.added + result.updated + result.unchanged, "item")
    out.print(f"Up to date with {items}: {', '.join(changes) or 'no changes'}.")


def _free_port() -> int:
    """Return the usual port, or 0 if it is in use."""
    with socket.socket() as probe:
        if sys.platform != "win32":  # there it would share a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _PORT))
        except OSError:
            return 0
    return _PORT


def _has_browser() -> bool:
    """Return whether a browser has a screen: else a text browser would fill the terminal."""
    return sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
