"""examples/space, started as on Hugging Face and called by Gradio's client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="pip install 'gradio>=6.31,<7'")

from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from small_run import copy_small_run
from transhash.search.engine import SearchEngine

APP = Path(__file__).parents[2] / "examples" / "space" / "app.py"
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_small_run(tmp_path)


@pytest.fixture
def client(run: Path) -> Iterator[Any]:
    environment = os.environ | {
        "TRANSHASH_RUN": str(run), "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, str(APP)], env=environment, stdout=subprocess.PIPE, text=True
    ) as app:
        try:
            assert app.stdout is not None
            addresses = (re.search(r"http://\S+", line) for line in app.stdout)
            address = next(filter(None, addresses))
            yield Client(address[0], verbose=False)
        finally:
            app.terminate()


def test_the_space_finds_images_and_texts(client: Any, run: Path) -> None:
    photo = run.parent / "photos" / "red.png"
    with SearchEngine.open(run) as engine:
        images = engine.similar_to_text("a red boat")
        texts = engine.similar_to_image(photo)
    found = client.predict("a red boat", api_name="/search_images")
    assert [one["caption"] for one in found] == [hit.item.id for hit in images]
    found = client.predict(handle_file(str(photo)), api_name="/search_texts")
    assert found["data"] == [[hit.item.text, hit.distance] for hit in texts]
    with pytest.raises(AppError, match="empty"):
        client.predict(" ", api_name="/search_images")
