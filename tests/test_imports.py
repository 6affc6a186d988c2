"""Rules for the source tree: layers, optional packages, file sizes, names and words."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "transhash"
# Lower layers first; a module may import its own layer and those below.
LAYERS = (
    {"errors", "progress", ""},
    {"codes", "storage", "threads"},
    {"data"},
    {"datasets", "features", "index"},
    {"evaluation"},
    {"hashers"},
    {"model"},
    {"search"},
    {"training"},
    {"scoring", "export"},
    {"experiments"},
    {"service", "report", "plugins", "client"},
    {"cli", "__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY_IN = {
    "torch": {"features", "hashers", "experiments", "cli"},
    "faiss": {"index"},
    "pymilvus": {"index"},
    "fastapi": {"service"},
    "uvicorn": {"service"},
    "matplotlib": {"report"},
    "ray": {"model"},
    "mcp": {"plugins"},
    "langchain_core": {"plugins"},
    "llama_index": {"plugins"},
    "onnxruntime": {"features"},
    "typer": {"cli"},
}
MAX_FILES = 172
WARN_LINES, MAX_LINES = 500, 700
BANNED_WORDS = (
    "bridge", "verdict", "strangers", "asker", "holdings", "fed", "mend", "anew", "foretell",
    "picture", "pictures", "hardly", "beside",
)  # fmt: skip
# "There is no x" and "x is no longer" are English; "x is no y" is "x is not a y".
BANNED_PHRASES = ("kept aside", "so many", r"(?<!there )is no (?!longer)")
BANNED = re.compile(r"\b(?:{})\b".format("|".join((*BANNED_WORDS, *BANNED_PHRASES))), re.IGNORECASE)
# Words of the data, not of the program: riddles and captions of the synthetic data set.
DATA_FILES = {"datasets/synthetic/objects.py", "datasets/synthetic/__init__.py"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_its_own_layer_and_lower_ones(path: Path) -> None:
    own = package(path)
    if own == "":
        return  # names what users import, lazily
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "transhash" and len(parts) > 1:
            assert LEVEL[parts[1]] <= LEVEL[own], f"{own} imports {name}"
        elif parts[0] in ONLY_IN:
            assert own in ONLY_IN[parts[0]], f"{own} imports {name}"


def test_source_files_are_few_and_short() -> None:
    assert len(modules()) <= MAX_FILES
    lines = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in modules()}
    if long := {name: number for name, number in lines.items() if number > WARN_LINES}:
        warnings.warn(f"longer than {WARN_LINES} lines: {long}", stacklevel=1)
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}


def public_names(path: Path) -> Iterator[str]:
    for node in tree(path).body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (name for name in names if not name.startswith("_"))


def test_a_public_name_is_defined_once_per_package() -> None:
    homes: dict[tuple[str, str], set[str]] = {}
    for path in modules():
        for name in public_names(path):
            homes.setdefault((package(path), name), set()).add(name_of(path))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def identifiers(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.keyword | ast.alias):
            yield (node.arg if isinstance(node, ast.keyword) else node.name) or ""


def strings(path: Path) -> Iterator[str]:
    """Yield messages, help texts and docstrings; the parts of an f-string one by one."""
    yield from (
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def words(identifier: str) -> list[str]:
    """Split snake_case, CamelCase and dotted names into words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_.]", " ", identifier).lower().split()


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_identifier_or_message_uses_a_banned_word(path: Path) -> None:
    in_names = {name for name in identifiers(path) if set(BANNED_WORDS) & set(words(name))}
    in_names |= {path.stem} & set(BANNED_WORDS)
    assert in_names == set()
    if name_of(path) in DATA_FILES:
        return
    assert {text for text in strings(path) if BANNED.search(text)} == set()


PAGES = [
    *ROOT.parents[1].glob("*.md"),
    *ROOT.parents[1].glob("docs/*.md"),
    *(page for kind in ("html", "js", "css") for page in ROOT.glob(f"web/*.{kind}")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_a_banned_word(page: Path) -> None:
    # "bridge" is also a class of the data.
    text = page.read_text(encoding="utf-8").replace("cat, bridge, horses", "")
    assert {match[0] for match in BANNED.finditer(text)} == set()
