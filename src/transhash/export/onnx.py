"""Exports a run's model as ONNX files with a description of their inputs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transhash.export.stores import check_output_folder
from transhash.features import named_library
from transhash.hashers.modules import OUTPUTS, image_graph, text_graph
from transhash.model.encoder import Encoder
from transhash.model.files import model_digest
from transhash.storage import atomic_folder, write_bytes, write_json

_METADATA_FILE = "preprocessing.json"
_TEXT_FILES = ("vocabulary.json", "text.safetensors")
_VOCABULARY = "vocabulary.json: words in the order of the rows of components in text.safetensors"


def export_onnx(run: str | Path, folder: str | Path) -> list[str]:
    """Write image.onnx, text.onnx and a description of their inputs; return the file names."""
    run, folder = Path(run), Path(folder)
    check_output_folder(folder, _METADATA_FILE)
    encoder = Encoder.load(run)
    graphs = {
        "image.onnx": image_graph(encoder.hasher, encoder.image_features),
        "text.onnx": text_graph(encoder.hasher),
    }
    metadata = {
        "format": "transhash-onnx",
        "method": encoder.method,
        "bits": encoder.bits,
        "model": model_digest(run),
        "outputs": {
            OUTPUTS[0]: f"float32 (n, {encoder.bits}); its signs are the code",
            OUTPUTS[1]: f"uint8 (n, {encoder.bits // 8}); bit 1 where a projection is above 0, "
            "first bit highest",
        },
        "image.onnx": _image_input(encoder, graphs["image.onnx"]),
        "text.onnx": _text_input(encoder, graphs["text.onnx"]),
    }
    with atomic_folder(folder) as draft:
        for name, graph in graphs.items():
            write_bytes(draft / name, graph)
        if encoder.text_features is not None:
            for name in _TEXT_FILES:
                shutil.copyfile(run / name, draft / name)
        write_json(draft / _METADATA_FILE, metadata)
        write_bytes(draft / "README.md", _readme(metadata).encode())
    return sorted(path.name for path in folder.iterdir())


def _feature_input(graph: bytes) -> str:
    import onnx

    shape = onnx.load_from_string(graph).graph.input[0].type.tensor_type.shape
    return f"features: float32 (n, {shape.dim[1].dim_value})"


def _image_input(encoder: Encoder, graph: bytes) -> dict[str, Any]:
    features = encoder.image_features
    if features is None:
        return {"input": _feature_input(graph), "features": "precomputed"}
    return {
        "input": f"pixels: uint8 (n, {features.size}, {features.size}, 3)",
        "network": features.name,
        "color": "RGB, 0 to 255, rotated according to EXIF, transparent parts on white",
        "resize": [features.size, features.size],
        "filter": "bilinear with antialiasing: Pillow's BILINEAR with reducing_gap=2.0; a JPEG "
        "is decoded by Pillow's draft() of that size first",
        "crop": None,
        "mean_and_deviation": "in the graph",
    }


def _text_input(encoder: Encoder, graph: bytes) -> dict[str, Any]:
    features = encoder.text_features
    if features is None:
        return {"input": _feature_input(graph), "features": "precomputed"}
    return {
        "input": _feature_input(graph),
        "features": features.name,
        **({} if named_library(features.name) else {"vocabulary": _VOCABULARY}),
        "computed_by": 'transhash.load(RUN).text_features.transform(["a text"])',
    }


_IMAGES = """Resize the complete image, rotated according to EXIF, in RGB, to {size} x {size}
without a crop. Mean and deviation are part of the graph.

```python
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("image.onnx")
image = Image.open("photo.jpg")
image.draft("RGB", ({size}, {size}))   # decodes a JPEG no larger than needed
image = ImageOps.exif_transpose(image).convert("RGB")
image = image.resize(({size}, {size}), Image.Resampling.BILINEAR, reducing_gap=2.0)
projections, code = session.run(None, {{"pixels": np.asarray(image)[None]}})
```"""
_TEXTS = """`text.onnx` takes the features `{features}` of texts, computed by
`transhash.load(RUN).text_features.transform`."""
_WORDS = """They are sums of rows of a table: `vocabulary.json` lists the words in the order of the
table, `text.safetensors` has the table (`components`) and the rarity of each word (`rarity`). A
word of a text weighs rarity x log2(1 + occurrences); the weights are normalized to unit length and
multiplied by the table. Unknown words are replaced by known words of similar spelling."""
_PRECOMPUTED = """`{name}` takes the kind of precomputed features that the model was trained
on. Its input is `{input}`.

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{name}")
features = np.load("features.npy").astype(np.float32)
projections, code = session.run(None, {{"features": features}})
```"""


def _readme(metadata: dict[str, Any]) -> str:
    sections = {}
    for name in ("image.onnx", "text.onnx"):
        described = metadata[name]
        if described.get("features") == "precomputed":
            sections[name] = _PRECOMPUTED.format(name=name, input=described["input"])
        elif name == "image.onnx":
            sections[name] = _IMAGES.format(size=described["resize"][0])
        else:
            sections[name] = _TEXTS.format(**described)
            if described["features"] == "words":
                sections[name] += f" {_WORDS}"
    return f"""# {metadata["method"]} model with {metadata["bits"]} bits for ONNX Runtime

Both graphs take any number of rows and return `projections`, real numbers, and `code`, their signs
packed into bytes like `numpy.packbits`. Compare codes of images and texts by Hamming distance.
`{_METADATA_FILE}` has the same information for programs.

## Images

{sections["image.onnx"]}

## Texts

{sections["text.onnx"]}
"""
