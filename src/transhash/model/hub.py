"""Share encoders: a folder with a model card, on disk or on the Hugging Face Hub.

The folder is a run folder without items: JSON and safetensors, no pickle. The card and the report
in it describe the training and contain no file names of the owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transhash.errors import DataError, EngineError
from transhash.features import quiet_hub
from transhash.features.embedders import SentenceEmbedder
from transhash.features.pretrained import JointModelTextFeatures, PretrainedFeatures
from transhash.features.texts import CombinedTextFeatures
from transhash.storage import atomic_folder, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from transhash.model.encoder import Encoder

_CARD, _REPORT = "README.md", "report.json"
_MARK = "library_name: transhash"
_FILES = ["*.json", "*.safetensors", _CARD]  # in subfolders as well
# Not `problems`, which contain file names, and not `settings`, which are in config.json.
_REPORT_KEYS = ("method", "bits", "image_features", "text_features", "auxiliary", "target",
                "codes", "alignment", "warnings", "training_seconds", "summary")  # fmt: skip


def save_with_model_card(encoder: Encoder, folder: Path) -> None:
    """Write the encoder and its card to a new folder, or replace an earlier one."""
    texts = encoder.text_features
    if (
        isinstance(texts, CombinedTextFeatures)
        and isinstance(texts.embedder, SentenceEmbedder)
        and not texts.embedder.bundled
    ):
        raise DataError(
            f"The text model {texts.embedder.name} is outside this run and would be missing "
            "elsewhere. Fit with words or a model2vec model to share the encoder."
        )
    for features in (encoder.image_features, texts):
        if isinstance(features, PretrainedFeatures | JointModelTextFeatures) and features.in_folder:
            raise DataError(
                f"{features.name} is a local folder and would be missing elsewhere. Fit with the "
                "name of the model to share the encoder."
            )
    card = folder / _CARD
    is_earlier_card = card.is_file() and _MARK in card.read_text("utf-8", "replace")
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_earlier_card and not is_empty:
        raise DataError(f"{folder} contains other files. Choose a new or empty folder.")
    report = _public_report(encoder)
    with atomic_folder(folder) as draft:
        encoder.save(draft)
        write_json(draft / _REPORT, report)
        write_bytes(draft / _CARD, model_card(report).encode())


def fetch(name: str | Path, **options: Any) -> Path:
    """Return the folder of that name, or a local copy of the repository on the Hub."""
    if Path(name).is_dir():
        return Path(name)
    with _hub(f"{name} is not a folder and cannot be fetched from the Hub") as hub:
        return Path(hub.snapshot_download(str(name), allow_patterns=_FILES, **options))


def upload(
    encoder: Encoder,
    name: str,
    private: bool | None,
    token: str | None,
    branch: str | None,
    message: str,
) -> str:
    """Upload the encoder and return the URL of the commit."""
    with TemporaryDirectory() as folder:
        save_with_model_card(encoder, Path(folder) / "encoder")
        with _hub(f"The encoder could not be uploaded to {name}") as hub:
            api = hub.HfApi(token=token)
            repository = api.create_repo(name, private=private, exist_ok=True).repo_id
            if branch is not None:
                api.create_branch(repository, branch=branch, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository, folder_path=Path(folder) / "encoder", revision=branch,
                commit_message=message,
            )  # fmt: skip
    return str(commit.commit_url)


def model_card(report: dict[str, Any]) -> str:
    """Return the text of the model card."""
    facts = [
        ("method", report.get("method")),
        ("bits", report.get("bits")),
        ("image features", report.get("image_features")),
        ("text features", report.get("text_features")),
        *((f"{part} {modality}", report[part].get(modality)) for part in ("auxiliary", "target")
          if part in report for modality in ("images", "texts")),
    ]  # fmt: skip
    if "codes" in report:
        codes = report["codes"]
        facts.append(("distinct codes", f"{codes['distinct']:,} of {codes['items']:,} items"))
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts if value is not None)
    summary = "".join(f"\n{sentence}\n" for sentence in report.get("summary", ()))
    warnings = "".join(f"\nTraining warning: {text}\n" for text in report.get("warnings", ()))
    return f"""---
{_MARK}
tags:
- hashing
- cross-modal-retrieval
---

# {report["method"]}: {report["bits"]}-bit codes for images and texts

Encodes images and texts as binary codes. A small Hamming distance means that an image and a text
are related. Trained on related auxiliary images and texts, for unpaired target items.

```python
from pathlib import Path

from transhash import Encoder

encoder = Encoder.from_pretrained("THIS REPOSITORY OR FOLDER")
encoder.encode_texts(["a red boat"]).packed       # (1, {report["bits"] // 8}) bytes
encoder.encode_image(Path("photo.jpg")).packed
```

## Training

| | |
|---|---|
{rows}
{summary}{warnings}
`config.json` has all settings, `report.json` all measurements. `vocabulary.json`, if present, lists
words of the training texts.
"""


def _public_report(encoder: Encoder) -> dict[str, Any]:
    """Return the parts of the run's report that contain nothing private."""
    path = None if encoder.folder is None else encoder.folder / _REPORT
    report = read_json(path) if path is not None and path.is_file() else {}
    public = {name: report[name] for name in _REPORT_KEYS if name in report}
    validation = report.get("validation") or {}
    if validation.get("retrieval"):
        public["summary"] = validation["summary"][:1]  # the rest quotes words of the user's texts
    return {**public, "method": encoder.method, "bits": encoder.bits}


@contextmanager
def _hub(failure: str) -> Iterator[Any]:
    """Yield the huggingface_hub library; its errors begin with `failure`."""
    try:
        import huggingface_hub
    except ImportError:
        raise DataError(
            f"{failure}: huggingface_hub is not installed. Run: pip install 'transhash[hub]'"
        ) from None
    try:
        with quiet_hub():
            yield huggingface_hub
    except Exception as error:  # of the network, the Hub or the name, each with its own class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EngineError(f"{failure} ({reason}). Check the name and the network.") from None
