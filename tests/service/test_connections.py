"""Misbehaving clients of a real server process do not affect others."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from transhash.service.guard import MAX_UPLOADS

from .server_process import ServerProcess, wait_until_ready
from .small_run import image_bytes

pytestmark = pytest.mark.slow
FILES = 200
HEAD_SECONDS = 1.0
PARTIAL_HEADERS = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PARTIAL_UPLOAD = (
    b"POST /api/search/image HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc'
)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[ServerProcess]:
    with ServerProcess(run, files=FILES, head=HEAD_SECONDS, stall=25) as server:
        wait_until_ready(server.url)
        yield server
        assert "Traceback" not in server.stderr()


def connect(server: ServerProcess, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(sent)
    return client


def reply(client: socket.socket) -> bytes:
    """Return all that the server sends before it closes the connection."""
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def wait_for_earlier_requests(server: ServerProcess) -> None:
    """Wait until the server works on all requests sent so far: it accepts and reads in order."""
    for _ in range(3):
        assert httpx.get(f"{server.url}health", timeout=60).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /hea", PARTIAL_HEADERS])
def test_a_connection_without_a_request_is_closed(server: ServerProcess, sent: bytes) -> None:
    with connect(server, sent) as client:
        assert reply(client) == b""


def test_headers_sent_slowly_do_not_extend_the_timeout(server: ServerProcess) -> None:
    with connect(server, PARTIAL_HEADERS) as client:
        for _ in range(200):
            readable, _, _ = select.select([client], [], [], 0.1)
            if readable:
                break
            client.sendall(b"X: y\r\n")
        assert readable
        assert reply(client) == b""


def test_the_next_request_on_a_connection_has_the_same_timeout(server: ServerProcess) -> None:
    with connect(server, PARTIAL_HEADERS + b"\r\n") as client:
        data = b""
        while not data.endswith(b"}"):
            data += client.recv(65536)
        client.sendall(PARTIAL_HEADERS)
        assert reply(client) == b""


def test_idle_connections_beyond_the_file_limit_do_not_block_others(server: ServerProcess) -> None:
    with ExitStack() as stack:
        for i in range(FILES * 2):
            stack.enter_context(connect(server, PARTIAL_HEADERS if i % 2 else b""))
            if i % 50 == 0:
                assert httpx.get(f"{server.url}health", timeout=60).status_code == 200
        result = httpx.get(f"{server.url}api/search/text", params={"q": "a boat"}, timeout=60)
        assert result.json()["hits"]


def test_stalled_uploads_do_not_block_complete_ones(server: ServerProcess) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server, PARTIAL_UPLOAD)) for _ in range(MAX_UPLOADS)]
        wait_for_earlier_requests(server)  # all of them have a slot
        result = httpx.post(
            f"{server.url}api/search/image", files={"image": image_bytes()}, timeout=60
        )
        assert result.status_code == 200
        evicted, _, _ = select.select(slow, [], [], 0)
        refused = reply(evicted[0])
        assert b"408 Request Timeout" in refused
        assert b"too slowly" in refused


def test_a_stopping_server_replies_to_requests_in_progress(run: Path) -> None:
    with ServerProcess(run) as server:
        wait_until_ready(server.url)
        with connect(server, PARTIAL_UPLOAD) as client, connect(server) as idle:
            wait_for_earlier_requests(server)
            assert server.stop(signal.SIGTERM) == 0
            refused = reply(client)
            assert b"503 Service Unavailable" in refused
            assert b"is stopping" in refused
            assert reply(idle) == b""
        assert "Traceback" not in server.stderr()
