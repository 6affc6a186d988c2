"""A small but complete run for service and browser tests."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from transhash.data.collection import Collection
from transhash.data.manifest import read_images, read_texts
from transhash.datasets.synthetic import make_synthetic
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.search.engine import SearchEngine
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data

LOCAL = "http://127.0.0.1:8000"
MARKUP_TEXTS = (
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script> a red boat",
    "</div><h1>boat & sail</h1> \" ' `",
)
RESULTS = [
    {
        "method": "CVH",
        "bits": 16,
        "image_to_text_map": 0.41,
        "text_to_image_map": 0.39,
        "chance": 0.083,
        "folder": "/home/somebody/secret",
    }
]
ITEMS = 48  # images, and as many texts


def build_run(base: Path) -> Path:
    """Return a run fitted with CVH, which is fast, on synthetic data; built once per session."""
    data = make_synthetic(base / "small-run-data", per_class=ITEMS // 12)
    run = base / "small-run"
    if (run / "results.json").exists():
        return run
    inputs = read_fit_data(data / "auxiliary.tsv", data / "images.tsv", data / "texts.tsv")
    features = image_features("efficientnet-lite0")
    Fit(make_hasher("CVH", bits=16), "CVH", run, features, "words").run_files(inputs)
    engine = SearchEngine.open(run, writable=True)
    assert not engine.add_images(read_images(data / "images.tsv")).problems
    engine.add_texts(read_texts(data / "texts.tsv"))
    engine.add_texts(Collection([f"markup-{i}" for i in range(len(MARKUP_TEXTS))], MARKUP_TEXTS))
    engine.close()
    (run / "results.json").write_text(json.dumps(RESULTS), "utf-8")
    return run


def image_bytes(file_format: str = "PNG", size: tuple[int, int] = (64, 48)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "steelblue").save(buffer, file_format)
    return buffer.getvalue()
