"""Messages that the troubleshooting page quotes are those of the sources."""

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
    """Every string of the package as it reads when joined, with … for what is put in."""
    found = []
    for path in sorted((ROOT / "src" / "transhash").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_that_is_printed(message: str) -> None:
    parts = [part.strip(" ()") for part in message.split("…")]
    assert any(parts), message
    for part in parts:
        assert part in texts(), part


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 20
