"""Imports point down, and heavy optional packages appear only where their job is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "transhash"
# Lower layers first; a module may import its own layer and those below.
LAYERS = (
    {"errors", "progress", ""},
    {"codes", "storage"},
    {"data"},
    {"datasets", "features", "index"},
    {"evaluation"},
    {"hashers"},
    {"runs"},
    {"experiments"},
    {"service", "report"},
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
    "ray": {"runs"},
    "onnxruntime": {"features"},
    "typer": {"cli"},
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def layer(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    own = layer(path)
    if own == "":
        return  # the package itself only names what users import, lazily
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "transhash" and len(parts) > 1:
            assert LEVEL[parts[1]] <= LEVEL[own], f"{own} imports {name}"
        elif parts[0] in ONLY_IN:
            assert own in ONLY_IN[parts[0]], f"{own} imports {name}"


def test_no_source_file_outgrows_its_room() -> None:
    long = {
        str(p.relative_to(ROOT)): n for p in modules() if (n := len(p.open().readlines())) > 350
    }
    assert not long


def public_names(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_public_name_has_two_meanings() -> None:
    homes: dict[str, set[str]] = {}
    for path in modules():
        for name in public_names(path):
            if not name.startswith("_"):
                homes.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
