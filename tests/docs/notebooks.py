"""Execute the notebooks and store their outputs: python tests/docs/notebooks.py [NAME ...]"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parents[2] / "notebooks"


def execute(path: Path, work: Path) -> Any:
    """Return the notebook with the outputs of a run in `work`, without logs and machine paths."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [_clean(out) for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def _clean(output: Any) -> Any:
    if "data" in output:
        output.data = {kind: _without_folder(text) for kind, text in output.data.items()}
    else:
        output.text = _without_folder(output.text)
    return output


def _without_folder(text: str) -> str:
    return re.sub(re.escape(tempfile.gettempdir()) + r"/[^\s/<>\"']+", "…", text)


if __name__ == "__main__":
    names = sys.argv[1:]
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as work:
                nbformat.write(execute(path, Path(work)), path)
