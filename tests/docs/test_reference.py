"""Each public name has an example above its entry, and the examples run from top to bottom."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import transhash
from transhash.datasets.synthetic import make_synthetic

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", transhash.__all__)
def test_a_public_name_has_an_example_above_its_entry(name: str) -> None:
    before = PAGE[: PAGE.index(f"::: transhash.{name}\n")]
    section = before[before.rindex("```python\n") :]
    assert ":::" not in section
    uses = {"Encoder": "encoder", "THN": "transhash.THN"}.get(name, f"transhash.{name}")
    assert uses in section


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = make_synthetic(tmp_path / "prepared", per_class=4)
    shutil.copy(data / "auxiliary.tsv", "aux.tsv")
    shutil.copytree(data / "auxiliary", "auxiliary")
    shutil.copytree(data / "images", "photos")
    shutil.copy(data / "texts.tsv", "notes.csv")
    text = Path("notes.csv").read_text("utf-8")
    rows = [line.split("\t")[:2] for line in text.splitlines()]
    Path("notes.csv").write_text("\n".join(f'{a},"{b}"' for a, b in rows) + "\n", "utf-8")
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(example, names)
    names["engine"].close()
    assert names["scores"].map > 2 * names["scores"].chance
    assert names["codes"].bits == 32
