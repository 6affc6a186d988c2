"""The notebooks run from top to bottom, show what they are there to show, and have outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="pip install ipykernel")

import nbformat

from docs.notebooks import FOLDER, execute


def outputs(notebook: Any) -> list[dict[str, Any]]:
    """Return what the cells show, by kind of content."""
    cells = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [out.get("data", {"text/plain": out.get("text", "")}) for out in cells]


def shown(name: str, work: Path) -> list[dict[str, Any]]:
    return outputs(execute(FOLDER / name, work))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_kept_with_its_outputs_and_without_paths_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert len(outputs(notebook)) >= 3
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    text = path.read_text("utf-8")
    assert "/tmp" not in text
    assert "/home" not in text
    assert len(text) < 400_000


@pytest.mark.slow
def test_own_files_are_learned_searched_and_shown(tmp_path: Path) -> None:
    found = shown("own-files.ipynb", tmp_path)
    # Bars need ipywidgets; without it progress is lines, which are not stored.
    assert not any("ipywidgets" in str(data) for data in found)
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
