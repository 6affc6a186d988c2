"""The numbers in the documentation are what its code prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from transhash.evaluation import DEFINITIONS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "map.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_documentation_shows() -> None:
    code, shown = re.search(
        r"```python\n(import numpy.*?)```\s+```text\n(.*?)```", DOCUMENT, re.DOTALL
    ).groups()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == shown


def test_every_definition_is_in_the_table() -> None:
    table = DOCUMENT[DOCUMENT.index("## Definitions") : DOCUMENT.index("On one set")]
    assert set(re.findall(r"`([^`]+)`", table)) >= set(DEFINITIONS)
