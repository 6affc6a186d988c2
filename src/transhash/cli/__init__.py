"""The command `transhash`: thin, it reads arguments, calls the library and prints."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from transhash.errors import TranshashError

app = typer.Typer(
    name="transhash",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Search images by text and texts by image when the two were never paired.",
)
# Names of files are printed as they are; what is styled says markup=True and escapes them.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
_WIDE = 10_000


def main() -> None:
    """Run the command; an error meant for the user is one sentence and exit code 2."""
    from transhash.cli import benchmark, demo, diagnose, encode, fit, items, search  # noqa: F401

    warnings.filterwarnings("ignore", module=r"PIL\b")  # of odd metadata in people's pictures
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end it
            stream.reconfigure(errors="backslashreplace")
    for console in (out, err):  # in a pipe or a log lines are not broken, so that names stay whole
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDE
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
    )
    try:
        app()
    except TranshashError as error:
        exit_with_error(str(error))
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        exit_with_error(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        # torch's own errors are of several kinds, and importing it costs a second
        if not isinstance(error, MemoryError) and "out of memory" not in str(error).lower():
            raise
        exit_with_error(
            "there is not enough memory, of this machine or of its GPU; run with fewer --jobs, "
            "smaller batches or other programs closed. What was finished is kept"
        )
    except SystemExit as ended:
        if ended.code == 130:  # typer's answer to Ctrl-C
            err.print("interrupted; what was finished is kept, the same command goes on from there")
        raise


def print_json(content: Any) -> None:
    """One line of JSON, with escapes where the terminal is not one of Unicode."""
    plain = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    print(json.dumps(content, ensure_ascii=plain))


def truncate(text: str, letters: int = 160) -> str:
    """A text as a table shows it: one line, its end left out where it is long."""
    line = " ".join(text[: 4 * letters].split())
    return line if len(line) <= letters and len(text) <= 4 * letters else f"{line[:letters]}..."


def exit_with_error(sentence: str) -> None:
    err.print(f"[red]error:[/red] {escape(sentence)}", soft_wrap=True, markup=True)
    sys.exit(2)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if show:
        from transhash import __version__

        out.print(__version__)
        raise typer.Exit
