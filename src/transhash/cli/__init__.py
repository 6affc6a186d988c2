"""The command `transhash`: read arguments, call the library, print the result."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from transhash.errors import DataError, TranshashError
from transhash.progress import show_progress
from transhash.threads import configure_libraries

if TYPE_CHECKING:
    from transhash.search.catalog import Catalog

app = typer.Typer(
    name="transhash",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Search images by text and texts by image when the two were never paired.",
)
# Characters that a terminal obeys or that change the order of others, but line ends and tabs.
_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class PlainConsole(Console):
    """Shows control characters in texts and names as escapes, such as \\x1b."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and _CONTROLS.search(segment.text):
                segment = Segment(escape_controls(segment.text), segment.style)
            yield segment


def escape_controls(text: str) -> str:
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


# File names may look like markup: only calls that escape them pass markup=True.
# Lines are wrapped by the terminal, so that a copied path is complete; tables are not.
out = PlainConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)
err = PlainConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
_PIPE_WIDTH = 10_000


class ConsoleHandler(logging.Handler):
    """Prints log records above a progress bar. That of rich pads lines to the width of a pipe."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"{record.levelname.lower()}: {self.format(record)}")


_COMMANDS = (
    "open", "fit", "index", "search", "items", "encode", "benchmark", "diagnose",
    "demo",
)  # fmt: skip

RUN = typer.Argument(..., help="Run folder created by `transhash fit`.")
INDEX = typer.Option(
    None,
    "--index",
    metavar="URL",
    help="Index URL, e.g. milvus:http://host:19530/photos.",
    show_default="the run's own index",
)
JSON_LINES = typer.Option(False, "--json", help="Print one JSON object per line.")
JSON_OBJECT = typer.Option(False, "--json", help="Print one JSON object.")


def load_commands() -> typer.Typer:
    """Import the modules that register commands; the help lists them in the order of _COMMANDS."""
    modules = [import_module(f"transhash.cli.{name}").__name__ for name in _COMMANDS]
    app.registered_commands.sort(key=lambda command: modules.index(command.callback.__module__))
    return app


def main() -> None:
    """Run the command. Errors meant for the user are printed and exit with code 2."""
    warnings.filterwarnings("ignore", module=r"PIL\b")  # about odd metadata in users' images
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack some characters
            stream.reconfigure(errors="backslashreplace")
    for console in (out, err):  # do not break lines, and the names in them, in pipes and logs
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _PIPE_WIDTH
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[ConsoleHandler()],
    )
    try:
        configure_libraries()  # before any of them is loaded
        load_commands()
        app()
    except TranshashError as error:
        exit_with_error(str(error))
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        reason = error.strerror or error
        exit_with_error(
            f"{error.filename or 'A file'} cannot be used ({reason}). "
            "Check the path, its permissions and the free disk space."
        )
    except (MemoryError, RuntimeError) as error:
        # torch raises several classes for this, and importing it takes a second
        if not isinstance(error, MemoryError) and "out of memory" not in str(error).lower():
            raise
        exit_with_error(
            "Out of memory (RAM or GPU). Use fewer --jobs or smaller batches. "
            "Finished work is saved."
        )
    except SystemExit as stop:
        if stop.code == 130:  # typer's exit code for Ctrl-C
            err.print("Interrupted. Finished work is saved. Rerun the same command to resume.")
        raise


def exit_with_error(message: str) -> None:
    err.print(f"[red]error:[/red] {escape(message)}", markup=True)
    sys.exit(2)


def warn(message: str) -> None:
    err.print(f"[yellow]warning:[/yellow] {escape(message)}", markup=True)


def print_json(content: Any) -> None:
    """Print one line of JSON, escaped unless standard output is UTF-8."""
    escaped = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    line = json.dumps(content, ensure_ascii=escaped)
    # Inside strings JSON allows these characters as they are, but a terminal may obey them.
    print(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", line))


def print_problems(
    problems: Sequence[dict[str, str]], list_file: Path, limit: int | None = 8
) -> None:
    """Print skipped rows and files; if there are more than `limit`, `list_file` gets all."""
    if not problems:
        return
    noun = "row or file" if len(problems) == 1 else "rows or files"
    err.print(f"[yellow]Skipped {len(problems):,} {noun}:[/yellow]", markup=True)
    for problem in problems[:limit]:
        err.print(f"  {_location(**problem)}: {problem['reason']}")
    if limit is not None and len(problems) > limit:
        if list_file.name != "report.json":  # a report already lists them
            from transhash.storage import write_json  # loads NumPy

            write_json(list_file, problems)
        err.print(f"  and {len(problems) - limit} more (full list: {list_file})")


def _location(source: str, location: str, reason: str) -> str:
    """Return the path of a file, or a table's path and the row."""
    if Path(source).is_dir():
        return str(Path(source) / location)
    is_file = source == location or Path(source).as_posix().endswith(f"/{location}")
    return source if is_file else f"{source}: {location}"


@contextmanager
def open_catalog(run: Path, *, read_only: bool = False) -> Iterator[Catalog]:
    """Open the catalog of a run folder that has indexed items."""
    from transhash.model.files import require_run
    from transhash.search.catalog import Catalog

    path = require_run(run) / "catalog.sqlite"
    if not path.exists():
        raise DataError(
            f"{run} has no indexed items. Run: transhash index {shlex.quote(str(run))} ..."
        )
    with Catalog(path, read_only=read_only) as catalog:
        yield catalog


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return a table without borders; columns in `right` are aligned right."""
    table = Table(box=None, pad_edge=False, show_header=bool(columns))
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values in two columns."""
    table = plain_table()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        if isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        table.add_row(name, Text(f"{value:,}" if isinstance(value, int) else str(value)))
    out.print(table, soft_wrap=False)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def truncate(text: str, length: int = 160) -> str:
    """Return a text as one line of at most `length` characters."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length and len(text) <= 4 * length else f"{line[:length]}..."


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    show: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if show:
        from transhash import __version__

        out.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand and os.environ.get("RANK", "0") == "0":  # of torchrun
        context.with_resource(show_progress(context.invoked_subcommand))
