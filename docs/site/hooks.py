"""MkDocs hooks: README and notebooks as pages, links from page names, addresses and previews."""

from __future__ import annotations

import ast
import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# A page name in prose, docs/data.md; code and links are not touched.
_NAMED = re.compile(r"(?<!\]\()(?<![\w/`\[])docs/([\w-]+)\.md(#[\w-]+)?(?![\w`\]])")
_FENCE = re.compile(r"^\s*(```|~~~)")
_SCRIPTS = "<!-- table of benchmarks/*.py -->"
_PREVIEW = "images/social.png"  # docs/site/social.html


def on_config(config: Any) -> Any:
    """Take the site's address from pyproject.toml, if there is one, and show the version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    urls = project.get("urls", {})
    config.repo_url = urls.get("Repository") or None
    source = (ROOT / "src" / "transhash" / "__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.+?)"', source, re.MULTILINE)
    if address := urls.get("Documentation"):
        config.site_url = f"{address.rstrip('/')}/{version}/"  # .ci/release.py site
    config.copyright = f"transhash {version} · Apache-2.0"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Use the README as the home page, and render the notebooks."""
    home = (ROOT / "README.md").read_text(encoding="utf-8")
    if config.repo_url:  # links that `.ci/release.py address` made absolute
        home = re.sub(rf"\]\({re.escape(config.repo_url)}/(?:blob|raw)/[^/]+/", "](", home)
    home = re.sub(r"\]\(docs/", "](", home)
    files.append(File.generated(config, "index.md", content=home))
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"{path.stem}.md", content=render_notebook(path)))
    return files


def render_notebook(path: Path) -> str:
    """Return the cells of a notebook with their stored outputs as Markdown."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "]("))
            continue
        parts.append(f"```python\n{source}\n```")
        parts += map(_render_output, cell["outputs"])
    # Lines that were printed one by one are one block.
    return "\n\n".join(parts).replace("\n```\n\n```text\n", "\n") + "\n"


def _render_output(output: dict[str, Any]) -> str:
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "text/markdown" in data:
        return data["text/markdown"].replace("\n# ", "\n### ").replace("\n## ", "\n#### ")
    if not data.get("text/html", "<pre").startswith("<pre"):  # of rich, which has its text as well
        html = " ".join(data["text/html"].split())  # Markdown ends HTML at an empty line
        return f'<div class="output">{html}</div>'
    if "image/svg+xml" in data:
        image = base64.b64encode(data["image/svg+xml"].encode()).decode()
        return f'<img class="output" alt="Figure" src="data:image/svg+xml;base64,{image}">'
    text = data.get("text/plain") or "".join(output.get("text", ()))
    return f"```text\n{text.rstrip()}\n```"


def list_scripts() -> str:
    """Return a table of the benchmark scripts, with the first paragraph of each."""
    rows = ["| script | what it does |", "|---|---|"]
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append(f"| `{path.name}` | {' '.join(text.partition(chr(10) * 2)[0].split())} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to files outside docs/ by plain names and page names by links."""
    markdown = markdown.replace("](../README.md", "](index.md")
    if _SCRIPTS in markdown:
        markdown = markdown.replace(_SCRIPTS, list_scripts())
    markdown = re.sub(r"\]\((?:\.\./)?notebooks/([\w-]+)\.ipynb\)", r"](\1.md)", markdown)
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


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Add what other sites show of a link; its image needs the address of the site."""
    tags = [("og:type", "website"), ("og:title", f"{page.title} - {config.site_name}"),
            ("og:description", config.site_description)]  # fmt: skip
    if config.site_url:
        address = config.site_url.rstrip("/")
        tags += [("og:url", f"{address}/{page.url}"), ("og:image", f"{address}/{_PREVIEW}"),
                 ("twitter:card", "summary_large_image")]  # fmt: skip
    lines = "".join(f'<meta property="{name}" content="{text}">\n' for name, text in tags)
    return output.replace("</head>", f"{lines}</head>", 1)
