"""Uploaded images are decoded in a process that may crash; the service answers and goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from .server_process import ServerProcess
from .small_run import image_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def decoder_of(server: ServerProcess) -> int:
    """Return the process that decodes images for the service."""
    parent = str(server.process.pid)
    for _ in range(1000):
        for folder in Path("/proc").iterdir():
            try:
                is_child = (folder / "stat").read_text().rpartition(")")[2].split()[1] == parent
                if is_child and b"spawn_main" in (folder / "cmdline").read_bytes():
                    return int(folder.name)
            except (OSError, IndexError):
                continue
        time.sleep(0.02)
    raise AssertionError("the service has no decoding process")


@pytest.mark.slow
@pytest.mark.parametrize("route", ["/api/search/image", "/api/items/images"])
def test_an_upload_that_crashes_its_decoder_gets_a_reason_and_the_next_one_a_result(
    run_copy: Path, route: str
) -> None:
    key = {"X-API-Key": "a-write-key"}
    with ServerProcess(run_copy, "--writable", write_key=key["X-API-Key"]) as server:
        client = httpx.Client(base_url=server.url, headers=key, timeout=60)
        upload = {"image": ("a.png", image_bytes())}
        assert client.post(route, files=upload).is_success
        decoder = decoder_of(server)
        os.kill(decoder, signal.SIGSTOP)
        replies: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: replies.append(client.post(route, files=upload)))
        thread.start()
        while "transhash_pending" not in (text := httpx.get(f"{server.url}metrics").text) or (
            'pool="images"} 0' in text and 'pool="changes"} 0' in text
        ):
            time.sleep(0.01)
        time.sleep(0.2)  # the image is on its way to the decoder
        os.kill(decoder, signal.SIGKILL)
        thread.join(60)
        assert replies[0].status_code == 422
        assert "SIGKILL" in replies[0].json()["error"]
        assert client.post(route, files=upload).is_success
        assert decoder_of(server) != decoder
        assert server.stop() == 0
        assert "Traceback" not in server.stderr()


@pytest.mark.slow
def test_a_hanging_decoder_does_not_keep_the_service_from_stopping(run_copy: Path) -> None:
    with ServerProcess(run_copy) as server:
        upload = {"image": ("a.png", image_bytes())}
        assert httpx.post(f"{server.url}api/search/image", files=upload, timeout=60).is_success
        decoder = decoder_of(server)
        os.kill(decoder, signal.SIGSTOP)

        def search() -> None:
            try:
                httpx.post(f"{server.url}api/search/image", files=upload, timeout=60)
            except httpx.HTTPError:
                return

        thread = threading.Thread(target=search)
        thread.start()
        while 'pool="images"} 0' in httpx.get(f"{server.url}metrics").text:
            time.sleep(0.01)
        assert server.stop() == 0
        thread.join(60)
        assert not Path(f"/proc/{decoder}").exists()
