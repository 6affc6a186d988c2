"""Functions, tests, public names, files and headings that the pages name exist."""

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


def test_the_map_has_every_equation_of_the_paper() -> None:
    rows = re.findall(
        r"^\| .+tests/.+\|$", (DOCS / "equations.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == len(EQUATIONS)
    named = " ".join(name for name, *_ in EQUATIONS)
    assert all(f"({number})" in named for number in range(1, 11))


@pytest.mark.parametrize(("function", "file", "test"), [row[1:] for row in EQUATIONS])
def test_an_equation_has_its_function_and_test(function: str, file: str, test: str) -> None:
    assert _resolve(function) is not None
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _resolve(dotted: str) -> object:
    """Return the object of a dotted name: the longest module in it, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            value = getattr(value, name)
        return value
    raise AssertionError(dotted)


REFERENCE = re.findall(
    r"^::: (\S+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("name", transhash.__all__)
def test_a_public_name_has_a_docstring_and_is_on_the_reference_page(name: str) -> None:
    public = getattr(transhash, name)
    assert any(_resolve(entry) is public for entry in REFERENCE), f"{name} is not in reference.md"
    own = vars(public).get("__doc__") if isinstance(public, type) else public.__doc__
    assert own, f"{name} has no docstring"
    assert not own.startswith(f"{name}("), f"{name} has only what dataclass writes"


@pytest.mark.parametrize("name", ["SearchEngine", "Encoder", "Codes", "TrainingSet"])
def test_every_public_method_has_a_docstring(name: str) -> None:
    public = getattr(transhash, name)
    for member, value in inspect.getmembers(public, inspect.isroutine):
        if not member.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{member} has no docstring"


@cache
def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site make of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in headings(target), f"{page.name} links to {link}"


def test_the_navigation_lists_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def pages(entries: list[object]) -> list[str]:
        names: list[str] = []
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                names += pages(value) if isinstance(value, list) else [str(value)]
        return names

    notebooks = [f"{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    written = [page.name for page in DOCS.glob("*.md")]
    assert sorted(pages(nav)) == sorted(["index.md", *notebooks, *written])


MAX_WORDS, MAX_WORDS_README = 32_000, 1_000
NOT_READ = {"results-tables.md", "cli.md"}  # looked up; the second is generated from the help


def test_the_docs_are_short() -> None:
    pages = [page for page in DOCS.glob("*.md") if page.name not in NOT_READ]
    words = {page.name: len(page.read_text("utf-8").split()) for page in pages}
    longest = sorted(words, key=lambda name: -words[name])[:5]
    assert sum(words.values()) <= MAX_WORDS, f"cut repetition, for example in {longest}"
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= MAX_WORDS_README


SOURCES = ROOT / "src" / "transhash"
PATHS = re.findall(
    r"^\*\*(\w+):\*\*.*?$(.*?)(?=^\*\*|^`tests/)",
    (DOCS / "architecture.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def _files(text: str) -> list[Path]:
    """Return the files that a code path names; a bare name is in the folder named before it."""
    files: list[Path] = []
    for name in re.findall(r"`([\w/]+\.py)`", text):
        folder = SOURCES if "/" in name else files[-1].parent
        files.append(folder / name)
    return list(dict.fromkeys(files))


def _imported(path: Path) -> set[Path]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = (SOURCES.parent / module.replace(".", "/") for module in modules)
    return {file for p in paths for file in (p.with_suffix(".py"), p / "__init__.py")}


@pytest.mark.parametrize(("name", "text"), PATHS, ids=[name for name, _ in PATHS])
def test_a_code_path_has_at_most_18_files_that_import_each_other(name: str, text: str) -> None:
    files = _files(text)
    assert 10 <= len(files) <= 18
    reached, queue = {files[0]}, [files[0]]
    while queue:
        for path in _imported(queue.pop()) - reached:
            if path.exists():
                reached.add(path)
                queue.append(path)
    assert set(files) <= reached


CHANGES = re.findall(
    r"^\| (.+) \| (.+) \|$",
    (DOCS / "architecture.md").read_text("utf-8").partition("| change | files |")[2],
    re.MULTILINE,
)[1:]


def test_ten_likely_changes_are_listed() -> None:
    assert len(CHANGES) >= 10


@pytest.mark.parametrize(("change", "files"), CHANGES, ids=[change for change, _ in CHANGES])
def test_a_likely_change_needs_one_or_two_files_that_exist(change: str, files: str) -> None:
    names = re.findall(r"`([\w./]+)`", files)
    paths = [SOURCES / name for name in names if "/" in name or "." in name]
    assert 1 <= len(paths) <= 2
    assert all(path.exists() for path in paths)
    text = "".join(path.read_text("utf-8") for path in paths if path.is_file())
    assert all(name in text for name in names if "/" not in name and "." not in name)


def test_the_documented_code_paths_are_fit_search_and_experiment() -> None:
    assert [name for name, _ in PATHS] == ["fit", "search", "experiment"]


def test_pages_that_the_sources_name_exist() -> None:
    for path in SOURCES.rglob("*.py"):
        for name in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path.name} names {name}"
