"""The notebooks run from top to bottom, and show what they are there to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="pip install ipykernel")

FOLDER = Path(__file__).parents[2] / "notebooks"


def shown(name: str, work: Path) -> list[dict[str, Any]]:
    """What each cell shows, by kind of content."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return [out.get("data", {"text/plain": out.get("text", "")}) for out in outputs]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
def test_own_files_are_learned_searched_and_shown(tmp_path: Path) -> None:
    found = shown("own-files.ipynb", tmp_path)
    sheets = [data["text/html"] for data in found if "<pre" not in data.get("text/html", "<pre")]
    boats, _, cats = sheets
    assert boats.count("<img") == 8
    assert boats.count("boat-") >= 6
    assert cats.count("cat-") >= 4
    said = "".join(data.get("text/plain", "") for data in found)
    assert "held-out captions" in said


@pytest.mark.slow
def test_the_papers_tables_have_every_method_and_a_curve(tmp_path: Path) -> None:
    found = shown("papers-tables.ipynb", tmp_path)
    (tables,) = [data["text/markdown"] for data in found if "text/markdown" in data]
    for method in ("IMH", "CVH", "QCH", "HTH", "DCMH", "THN-ip", "THN-D", "THN-Q", "THN", "chance"):
        assert f"| {method} " in tables  # followed by the rest of its label
    assert any("image/svg+xml" in data for data in found)
