"""feedback."""

from __future__ import annotations

from pathlib import Path

import typer

from transhash.cli import app, out, print_json
from transhash.errors import DataError


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
    from transhash.runs.catalog import Catalog
    from transhash.runs.feedback import Votes, export_votes, gone_votes

    if not run.is_dir():
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    kept = Votes(run)
    votes = kept.all()
    gone = []
    if votes and (run / "catalog.sqlite").exists():
        catalog = Catalog(run / "catalog.sqlite", read_only=True)
        try:
            gone = gone_votes(votes, catalog)
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
