"""verify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.markup import escape

from transhash.cli import app, err, out
from transhash.errors import DataError


@app.command("verify")
def verify_command(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    repair: bool = typer.Option(False, help="Make the index agree with the catalog again."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Check a run: model, catalog and index, byte by byte, and that they belong together.

    Example: `transhash verify runs/mine --repair`

    Run it while nothing is written there. Exit code 2 if there is damage that was not repaired. A
    damaged index is made anew from the codes in the catalog, the old one kept beside it.
    """
    from transhash.runs.verify import verify_run

    if not run.is_dir():
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    findings = verify_run(run, repair=repair)
    left = [finding for finding in findings if not finding.repaired]
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"run": str(run), "whole": not left, "findings": rows}))
    else:
        for finding in findings:
            word = "[yellow]repaired:[/yellow]" if finding.repaired else "[red]damage:[/red]"
            line = f"{word} {finding.part}: {escape(finding.problem)}"
            err.print(line, soft_wrap=True, markup=True)
        if not left:
            out.print(f"{run}: model, catalog and index are whole and belong together")
        elif not repair:
            err.print(f"what can be is mended by: transhash verify {run} --repair", soft_wrap=True)
    if left:
        raise typer.Exit(2)
