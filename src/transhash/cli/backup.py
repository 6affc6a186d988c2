"""The commands backup and restore."""

from __future__ import annotations

from pathlib import Path

import typer

from transhash.cli import RUN, app, count, out
from transhash.progress import progress_bar


@app.command()
def backup(
    run: Path = RUN,
    file: Path = typer.Argument(..., help="Backup file to write, e.g. mine.tar."),
) -> None:
    """Write one file with everything in a run: model, index, catalog and votes.

    Services and other commands may use and change the run meanwhile: the backup is the run at one
    moment. It is a tar file with SHA-256 checksums in backup.json, verified before it replaces an
    older file. Your images are not in it, only their thumbnails.

    Example: `transhash backup runs/mine mine.tar`
    """
    from transhash.search.backup import backup_run

    files = backup_run(run, file, progress_bar)
    size = sum(member.bytes for member in files)
    out.print(f"{file}: saved {run}, {count(len(files), 'file')}, {size / 1e6:,.1f} MB")


@app.command()
def restore(
    file: Path = typer.Argument(..., help="File written by `transhash backup`."),
    run: Path = typer.Argument(..., help="Run folder to create; must not exist or be empty."),
) -> None:
    """Create a run folder from a backup, after checking all of its checksums.

    Example: `transhash restore mine.tar runs/restored`
    """
    from transhash.search.backup import restore_run

    files = restore_run(file, run, progress_bar)
    size = sum(member.bytes for member in files)
    out.print(f"{run}: restored from {file}, {count(len(files), 'file')}, {size / 1e6:,.1f} MB")
