"""What the pages name is there: functions, tests, public names, files, headings, pages."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import transhash

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
EQUATIONS = re.findall(
    r"^\| (.+?) \| .+ \| `(transhash\.[\w.]+)` \| `(tests/[\w/]+\.py)::(\w+)` \|$",
    (DOCS / "equations.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_every_row_of_the_map_is_read() -> None:
    """The numbered equations of the paper are all there, and no row is written another way."""
    rows = re.findall(
        r"^\| .+tests/.+\|$", (DOCS / "equations.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == len(EQUATIONS)
    named = " ".join(name for name, *_ in EQUATIONS)
    assert all(f"({number})" in named for number in range(1, 11))


@pytest.mark.parametrize(("function", "file", "test"), [row[1:] for row in EQUATIONS])
def test_an_equation_has_the_function_and_the_test_named_beside_it(
    function: str, file: str, test: str
) -> None:
    assert _found(function) is not None
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _found(dotted: str) -> object:
    """What the dotted name means: the longest module in it, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)


REFERENCE = re.findall(
    r"^::: (\S+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("name", transhash.__all__)
def test_a_public_name_is_on_the_reference_page_and_says_what_it_is(name: str) -> None:
    public = getattr(transhash, name)
    assert any(_found(entry) is public for entry in REFERENCE), f"{name} is not in reference.md"
    own = vars(public).get("__doc__") if isinstance(public, type) else public.__doc__
    assert own, f"{name} has no docstring"
    assert not own.startswith(f"{name}("), f"{name} has only what dataclass writes"


@pytest.mark.parametrize("name", ["SearchEngine", "Encoder", "Codes", "TrainingSet"])
def test_every_method_of_what_people_use_says_what_it_does(name: str) -> None:
    public = getattr(transhash, name)
    for member, value in inspect.getmembers(public, inspect.isroutine):
        if not member.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{member} has no docstring"


@cache
def headings(page: Path) -> set[str]:
    """As GitHub and the site make anchors of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in headings(target), f"{page.name} links to {link}"


def test_the_site_has_every_page_and_no_other() -> None:
    # The rest of the file is for MkDocs alone and plain YAML.
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def pages(entries: list[object]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                found += pages(value) if isinstance(value, list) else [str(value)]
        return found

    assert sorted(pages(nav)) == sorted(["index.md", *(page.name for page in DOCS.glob("*.md"))])
