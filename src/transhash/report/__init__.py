"""Tables, figures and one offline page out of a run's results.jsonl."""

from __future__ import annotations

import io
from pathlib import Path

from transhash.report.figures import drawing, figures, pyplot
from transhash.report.formats import latex, markdown
from transhash.report.page import page
from transhash.report.summary import Summary
from transhash.report.tables import tables
from transhash.storage import write_bytes

__all__ = ["Summary", "write_report"]


def write_report(folder: Path) -> Path:
    """report.html, with tables.md, tables.tex and figures/*.png and *.svg beside it."""
    folder = Path(folder)
    summary = Summary.of(folder)
    made = tables(summary)
    # First: they need no extra, and are there even where matplotlib is not.
    write_bytes(folder / "tables.md", "\n".join(map(markdown, made)).encode())
    write_bytes(folder / "tables.tex", "\n".join(map(latex, made)).encode())
    drawn = []
    with drawing():
        for name, caption, figure in figures(summary):
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            write_bytes(folder / "figures" / f"{name}.svg", buffer.getvalue())
            drawn.append((name, caption, buffer.getvalue().decode()))
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=160, facecolor="white")
            write_bytes(folder / "figures" / f"{name}.png", buffer.getvalue())
            pyplot().close(figure)
    write_bytes(folder / "report.html", page(summary, made, drawn).encode())
    return folder / "report.html"
