"""A run's model as ONNX files, and in words and numbers what has to come before them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transhash.errors import DataError
from transhash.features import named_library
from transhash.hashers.modules import OUTPUTS, image_graph, text_graph
from transhash.model.encoder import Encoder
from transhash.model.files import model_digest
from transhash.storage import atomic_folder, write_bytes, write_json

_NOTE = "preprocessing.json"
_FEATURES_INPUT = "features: float32 (n, d), the precomputed ones of the training"
_TEXT_FILES = ("vocabulary.json", "text.safetensors")


def export_onnx(run: str | Path, folder: str | Path) -> list[str]:
    """image.onnx, text.onnx and how their inputs are made; the names of what was written."""
    run, folder = Path(run), Path(folder)
    if folder.exists() and not (
        folder.is_dir() and ((folder / _NOTE).is_file() or not any(folder.iterdir()))
    ):
        raise DataError(f"{folder} is there and no export wrote it; give a new or an empty folder")
    encoder = Encoder.load(run)
    graphs = {
        "image.onnx": image_graph(encoder.hasher, encoder.image_features),
        "text.onnx": text_graph(encoder.hasher),
    }
    note = {
        "format": "transhash-onnx",
        "method": encoder.method,
        "bits": encoder.bits,
        "model": model_digest(run),
        "outputs": {
            OUTPUTS[0]: f"float32 (n, {encoder.bits}); its signs are the code",
            OUTPUTS[1]: f"uint8 (n, {encoder.bits // 8}); bit 1 where a projection is above 0, "
            "the first bit in the highest place",
        },
        "image.onnx": _image_note(encoder),
        "text.onnx": _text_note(encoder),
    }
    with atomic_folder(folder) as draft:
        for name, graph in graphs.items():
            write_bytes(draft / name, graph)
        if encoder.text_features is not None:
            for name in _TEXT_FILES:
                shutil.copyfile(run / name, draft / name)
        write_json(draft / _NOTE, note)
        write_bytes(draft / "README.md", _readme(note).encode())
    return sorted(path.name for path in folder.iterdir())


def _image_note(encoder: Encoder) -> dict[str, Any]:
    features = encoder.image_features
    if features is None:
        return {"input": _FEATURES_INPUT}
    return {
        "input": f"pixels: uint8 (n, {features.size}, {features.size}, 3)",
        "network": features.name,
        "colour": "RGB, 0 to 255, upright as EXIF says, transparent parts on white",
        "resize": [features.size, features.size],
        "filter": "bilinear with antialiasing: Pillow's BILINEAR with reducing_gap=2.0; a JPEG "
        "is decoded by Pillow's draft() of that size first",
        "crop": None,
        "mean_and_deviation": "in the graph",
    }


def _text_note(encoder: Encoder) -> dict[str, Any]:
    features = encoder.text_features
    if features is None:
        return {"input": _FEATURES_INPUT}
    return {
        "input": f"features: float32 (n, {features.transform(['']).shape[1]})",
        "features": features.name,
        **({} if named_library(features.name) else {"vocabulary": _ordered(features.name)}),
        "made_by": 'transhash.load(RUN).text_features.transform(["a sentence"])',
    }


def _ordered(features: str) -> str:
    along = "columns" if features == "bag-of-words" else "rows"
    return f"vocabulary.json, in the order of the {along} of components in text.safetensors"


_PICTURES = """The whole picture, upright, in RGB, made {size} x {size} without a crop; mean and
deviation are inside the graph.

```python
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("image.onnx")
picture = Image.open("photo.jpg")
picture.draft("RGB", ({size}, {size}))   # decodes a JPEG no larger than needed
picture = ImageOps.exif_transpose(picture).convert("RGB")
picture = picture.resize(({size}, {size}), Image.Resampling.BILINEAR, reducing_gap=2.0)
projections, code = session.run(None, {{"pixels": np.asarray(picture)[None]}})
```"""
_TEXTS = """`text.onnx` takes the features `{features}` of texts, which
`transhash.load(RUN).text_features.transform` makes."""
_WORDS = """They are sums of rows of a table: `vocabulary.json` lists the words in the order of the
table, `text.safetensors` holds it (`components`) and how rare each word is (`rarity`). A word of a
text counts rarity x log2(1 + times said); the counts are scaled to unit length together and
multiplied by the table. Unknown words fall back on known ones that are spelt alike."""
_FEATURES_README = "`{}` takes the features that the model was trained on."


def _readme(note: dict[str, Any]) -> str:
    image, text = note["image.onnx"], note["text.onnx"]
    texts = _TEXTS.format(**text) if "features" in text else _FEATURES_README.format("text.onnx")
    if text.get("features") == "words":
        texts = f"{texts} {_WORDS}"
    return f"""# A {note["method"]} model of {note["bits"]} bits for ONNX Runtime

Both graphs take any number of rows and give `projections`, real numbers, and `code`, their signs
packed into bytes as `numpy.packbits` does. Codes of pictures and texts are compared by Hamming
distance. `{_NOTE}` says the same to programs.

## Pictures

{_PICTURES.format(size=image["resize"][0]) if "resize" in image else _FEATURES_README.format("image.onnx")}

## Texts

{texts}
"""
