"""Tables, figures and one offline page from the results.jsonl of an experiment."""

from __future__ import annotations

import io
from pathlib import Path

from transhash.report.figures import build_figures, figure_style, pyplot
from transhash.report.formats import build_page, latex, markdown
from transhash.report.summary import Summary
from transhash.report.tables import build_tables
from transhash.storage import write_bytes

__all__ = ["Summary", "write_report"]


def write_report(folder: Path) -> Path:
    """Write report.html, tables.md, tables.tex and figures/*.png and *.svg."""
    folder = Path(folder)
    summary = Summary.read(folder)
    tables = build_tables(summary)
    # First: tables are written even without matplotlib.
    write_bytes(folder / "tables.md", "\n".join(map(markdown, tables)).encode())
    write_bytes(folder / "tables.tex", "\n".join(map(latex, tables)).encode())
    drawings = {}
    with figure_style():
        for name, caption, figure in build_figures(summary):
            svg, png = io.BytesIO(), io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            figure.savefig(png, format="png", dpi=160, facecolor="white")
            pyplot().close(figure)
            write_bytes(folder / "figures" / f"{name}.svg", svg.getvalue())
            write_bytes(folder / "figures" / f"{name}.png", png.getvalue())
            drawings[name] = (caption, svg.getvalue().decode())
    write_bytes(folder / "report.html", build_page(summary, tables, drawings).encode())
    return folder / "report.html"
