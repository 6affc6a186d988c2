"""The page on installation lists the SHA-256 digests that the code checks."""

from __future__ import annotations

import re
from pathlib import Path

from transhash.features import efficientnet, embedders

PAGE = Path(__file__).parents[2] / "docs" / "install.md"


def published_rows() -> list[str]:
    """Return the rows of the table, from the digests in the code."""
    rows = [
        f"| {name} | weights | `{digest}` |" for name, (*_, digest) in efficientnet._WHEELS.items()
    ]
    files = embedders._PUBLISHED.items()
    return rows + [f"| {embedders.MINILM} | {name} | `{digest}` |" for name, digest in files]


def test_the_page_lists_every_file_whose_digest_is_checked() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.search(r"`[0-9a-f]{64}` \|$", line)] == published_rows()
