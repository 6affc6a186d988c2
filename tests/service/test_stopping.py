"""SIGTERM ends the service in seconds, whatever is running."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

from transhash.search.catalog import Catalog
from transhash.search.verify import verify_run

from .server_process import ServerProcess

pytestmark = pytest.mark.slow
BOUND = 5.0  # seconds from the signal to the end; without it, each of these takes minutes
SLACK = 5.0  # of a busy machine


def in_background(*requests: Callable[[], object]) -> list[threading.Thread]:
    def send(request: Callable[[], object]) -> None:
        with suppress(httpx.TransportError):  # the service ended
            request()

    threads = [threading.Thread(target=send, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    return threads


def stop(server: ServerProcess) -> None:
    server.process.terminate()
    assert server.process.wait(BOUND + SLACK) == 0
    assert "Traceback" not in server.stderr()


def large_png(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "steelblue").save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def test_image_searches_do_not_delay_the_end(run_copy: Path) -> None:
    image = large_png(9000)
    with ServerProcess(run_copy) as server:

        def search() -> object:
            url = f"{server.url}api/search/image"
            return httpx.post(url, files={"image": ("a.png", image)}, timeout=60)

        threads = in_background(*[search] * 8)
        time.sleep(1)
        stop(server)
        for thread in threads:
            thread.join()


def test_a_sync_does_not_delay_the_end_and_continues_afterwards(
    run_copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    image = large_png(4000)
    for number in range(60):
        (tmp_path / "photos" / f"{number}.png").write_bytes(image + b"%d" % number)
    with ServerProcess(run_copy, "--sync", str(tmp_path / "photos")) as server:
        while not httpx.get(f"{server.url}api/sync", timeout=60).json()["running"]:
            time.sleep(0.01)
        time.sleep(1)
        stop(server)
    assert verify_run(run_copy) == []


def test_reading_a_large_original_does_not_delay_the_end(run_copy: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), 200 << 30)  # sparse
    with Catalog(run_copy / "catalog.sqlite") as catalog:
        row = next(iter(catalog.sources.list_items("images")))
        assert row.path is not None
        catalog.sources.move(row.path, str(huge))
        item = catalog.find("images", row.id)
        assert item is not None
    with ServerProcess(run_copy, "--originals") as server:

        def download() -> object:
            return httpx.get(f"{server.url}api/items/{item.number}/original", timeout=60)

        threads = in_background(download)
        time.sleep(1)
        stop(server)
        for thread in threads:
            thread.join()
