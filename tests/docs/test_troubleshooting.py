"""The troubleshooting page quotes messages of the sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| reason | do |") :]
QUOTED = [
    *re.findall(r"^> (.+)$", PAGE, re.MULTILINE),
    *re.findall(r"^\| (?!reason|-)(.+?) \| .+ \|$", TABLE, re.MULTILINE),
]


@cache
def texts() -> str:
    """Return every string of the package, with … for variable parts."""
    strings = []
    for path in sorted((ROOT / "src" / "transhash").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                strings.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
    return "\n".join(strings)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_sources(message: str) -> None:
    parts = [part.strip(" ()") for part in message.split("…")]
    assert any(parts), message
    for part in parts:
        assert part in texts(), part


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 15
