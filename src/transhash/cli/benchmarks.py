"""prepare, experiment, report."""

from __future__ import annotations

from pathlib import Path

import typer

from transhash.cli import app, out
from transhash.datasets.prepare import SOURCES
from transhash.progress import bar


@app.command(help=f"Turn raw public data into a three-part benchmark folder.\n\n{SOURCES}")
def prepare(
    protocol: str = typer.Argument(..., help="nus-wide or imagenet-yahooqa."),
    root: Path = typer.Option(..., help="The folder that holds the raw data."),
    to: Path = typer.Option(..., "--out", help="The three-part folder to write."),
) -> None:
    from transhash.datasets.prepare import prepare_folder

    done = prepare_folder(protocol, root=root, out=to, track=bar)
    counts = ", ".join(f"{number:,} rows in {part}.tsv" for part, number in done.counts.items())
    left = f"; {sum(done.problems.values()):,} left out, see problems.tsv" if done.problems else ""
    out.print(f"written to {done.folder}: {counts}{left}")


@app.command()
def experiment(
    file: Path = typer.Argument(..., help="A TOML file; see experiments/."),
    root: Path | None = typer.Option(None, help="The benchmark's folder, raw or prepared."),
    to: Path = typer.Option(..., "--out", help="Where results.jsonl grows."),
    jobs: int = typer.Option(1, help="Cells at a time, in processes of their own."),
    device: str = typer.Option("cpu", help="Where backbones compute: cpu or cuda."),
) -> None:
    """Run methods x bits x seeds on one benchmark; a killed run goes on where it stopped.

    Example: `transhash experiment experiments/quick.toml --out runs/quick`
    """
    from transhash.experiments import run_experiment
    from transhash.hashers.deep import check_device

    check_device(device)
    run_experiment(file, root, to, jobs=jobs, device=device)


@app.command()
def report(folder: Path = typer.Argument(..., help="Where an experiment wrote.")) -> None:
    """Tables, curves and a page from results.jsonl.

    Example: `transhash report runs/quick`
    """
    from transhash.report import write_report

    out.print(f"written to {write_report(folder)}")
