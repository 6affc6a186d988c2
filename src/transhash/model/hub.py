"""Encoders that travel: a folder with a model card, on disk or on the Hugging Face Hub.

The folder is a run's without its items: JSON and safetensors, no pickle. The card and the report in
it say how the model was made, and leave out what names the owner's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transhash.errors import DataError, EngineError
from transhash.features.pretrained import JointModelTextFeatures, PretrainedFeatures
from transhash.features.texts import CombinedTextFeatures, SentenceTransformerEmbedder
from transhash.storage import atomic_folder, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from transhash.model.encoder import Encoder

_CARD, _REPORT = "README.md", "report.json"
_MARK = "library_name: transhash"
_FILES = ["*.json", "*.safetensors", _CARD]  # in folders, too
# Of report.json: no problems, which name files, and no settings, which stand in config.json.
_TOLD = ("method", "bits", "image_features", "text_features", "auxiliary", "target", "codes",
         "alignment", "alarms", "training_seconds")  # fmt: skip


def save_with_model_card(encoder: Encoder, folder: Path) -> None:
    """The encoder and its card, in a new folder or in place of an earlier one."""
    texts = encoder.text_features
    if (
        isinstance(texts, CombinedTextFeatures)
        and isinstance(texts.meaning, SentenceTransformerEmbedder)
        and not texts.meaning.carried
    ):
        raise DataError(
            f"this encoder reads texts by the model {texts.meaning.name}, which stands elsewhere "
            "on this machine and would be missing; fit with words or a static model to pass it on"
        )
    for features in (encoder.image_features, texts):
        if isinstance(features, PretrainedFeatures | JointModelTextFeatures) and features.in_folder:
            raise DataError(
                f"this encoder reads by {features.name}, a folder of this machine that would be "
                "missing elsewhere; fit with the model's name to pass it on"
            )
    card = folder / _CARD
    earlier = card.is_file() and _MARK in card.read_text("utf-8", "replace")
    if folder.exists() and not earlier and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder} is there and holds other things; give a new or an empty folder")
    report = _report(encoder)
    with atomic_folder(folder) as draft:
        encoder.save(draft)
        write_json(draft / _REPORT, report)
        write_bytes(draft / _CARD, model_card(report).encode())


def fetch(
    name: str | Path,
    revision: str | None,
    token: str | None,
    cache_dir: str | Path | None,
    local_files_only: bool,
) -> Path:
    """The folder of that name, or a copy of what the Hub has under it."""
    if Path(name).is_dir():
        return Path(name)
    with _hub(f"{name} is not a folder and cannot be fetched from the Hub") as hub:
        found = hub.snapshot_download(
            str(name), revision=revision, token=token, cache_dir=cache_dir,
            local_files_only=local_files_only, allow_patterns=_FILES,
        )  # fmt: skip
    return Path(found)


def upload(
    encoder: Encoder,
    name: str,
    private: bool | None,
    token: str | None,
    branch: str | None,
    message: str,
) -> str:
    """The address of the commit."""
    with TemporaryDirectory() as folder:
        save_with_model_card(encoder, Path(folder) / "encoder")
        with _hub(f"the encoder could not be sent to {name}") as hub:
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
    """What a reader has to know before using the model, from the report of its fit."""
    facts = [
        ("method", report.get("method")),
        ("bits", report.get("bits")),
        ("image features", report.get("image_features")),
        ("text features", report.get("text_features")),
        *((f"{part} {kind}", report[part].get(kind)) for part in ("auxiliary", "target")
          if part in report for kind in ("images", "texts")),
    ]  # fmt: skip
    if "codes" in report:
        codes = report["codes"]
        facts.append(("distinct codes", f"{codes['distinct']:,} of {codes['items']:,} items"))
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts if value is not None)
    said = "".join(f"\n{sentence}\n" for sentence in report.get("said", ()))
    alarms = "".join(f"\nWarning while training: {one}\n" for one in report.get("alarms", ()))
    return f"""---
{_MARK}
tags:
- hashing
- cross-modal-retrieval
---

# Images and texts as {report["bits"]}-bit codes, by {report["method"]}

Turns images and texts into binary codes whose Hamming distance says how related they are. Learned
from auxiliary images and texts that are related, for target ones that never were.

```python
from pathlib import Path

from transhash import Encoder

encoder = Encoder.from_pretrained("THIS REPOSITORY OR FOLDER")
encoder.encode_texts(["a red boat"]).packed       # (1, {report["bits"] // 8}) bytes
encoder.encode_image(Path("photo.jpg")).packed
```

## How it was made

| | |
|---|---|
{rows}
{said}{alarms}
`config.json` has every setting, `report.json` what was measured. `vocabulary.json`, where it is
there, lists words of the training texts.
"""


def _report(encoder: Encoder) -> dict[str, Any]:
    """What may be told of the fit; of an encoder that no run wrote, what it says itself."""
    path = None if encoder.folder is None else encoder.folder / _REPORT
    whole = read_json(path) if path is not None and path.is_file() else {}
    told = {name: whole[name] for name in _TOLD if name in whole}
    verdict = whole.get("verdict") or {}
    if verdict.get("held_out"):
        told["said"] = verdict["said"][:1]  # how well held-out captions find their pictures
    elif "said" in whole:
        told["said"] = whole["said"]
    return {**told, "method": encoder.method, "bits": encoder.bits}


@contextmanager
def _hub(failed: str) -> Iterator[Any]:
    """The library, and what goes wrong in it as a sentence."""
    try:
        import huggingface_hub
    except ImportError:
        raise DataError(
            f"{failed}: huggingface_hub is not installed; pip install 'transhash[hub]'"
        ) from None
    try:
        yield huggingface_hub
    except Exception as error:  # of the network, the Hub or the name, each in its own class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EngineError(f"{failed} ({reason})") from None
