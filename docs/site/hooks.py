"""MkDocs hooks: make the README the home page and turn page names into links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# A page name in prose, docs/data.md; code and links are not touched.
_NAMED = re.compile(r"(?<!\]\()(?<![\w/`\[])docs/([\w-]+)\.md(#[\w-]+)?(?![\w`\]])")
_FENCE = re.compile(r"^\s*(```|~~~)")


def on_files(files: Files, config: Any) -> Files:
    """Use the README as the home page."""
    home = (ROOT / "README.md").read_text(encoding="utf-8")
    home = re.sub(r"\]\(docs/", "](", home)
    files.append(File.generated(config, "index.md", content=home))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to files outside docs/ by plain names and page names by links."""
    markdown = markdown.replace("](../README.md", "](index.md")
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)
    if page.file.src_uri == "index.md":
        markdown = re.sub(r"\[([^\]]+)\]\((?:[A-Z][\w.]*|notebooks/[^)]*)\)", r"\1", markdown)
    lines, fenced = [], False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            line = _NAMED.sub(lambda m: f"[{m[1]}]({m[1]}.md{m[2] or ''})", line)
        lines.append(line)
    return "\n".join(lines)
