"""Uploaded images are decoded in a process that may crash; the service answers and goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
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


def wait_for_an_image(server: ServerProcess) -> None:
    """Wait until the service has passed an image to a decoding process."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if "transhash-pixels" in str(file.readlink()) and file.stat().st_size:
                    return
        time.sleep(0.01)
    raise AssertionError("no image was passed to a decoding process")


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
        wait_for_an_image(server)
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
        wait_for_an_image(server)
        assert server.stop() == 0
        thread.join(60)
        assert not Path(f"/proc/{decoder}").exists()
