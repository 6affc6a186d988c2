"""A real process and clients that misbehave: whoever asks properly is answered."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from transhash.service.guard import UPLOADS_AT_ONCE

from .served import Served
from .small_run import picture

pytestmark = pytest.mark.slow
FILES = 200
HEAD = 1.0  # seconds for the head of a request
HALF_A_HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALF_AN_UPLOAD = (
    b"POST /api/search/image HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc'
)


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Served]:
    with Served(run, files=FILES, head=HEAD, stall=25) as served:
        assert httpx.get(f"{served.url}ready", timeout=60).status_code == 200
        yield served
        assert "Traceback" not in served.complaints()


def connect(served: Served, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    client.sendall(sent)
    return client


def reply(client: socket.socket) -> bytes:
    """All that the server says before it closes."""
    said = b""
    try:
        while part := client.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize("sent", [b"", b"GET /hea", HALF_A_HEAD])
def test_a_connection_that_does_not_ask_is_closed(served: Served, sent: bytes) -> None:
    with connect(served, sent) as client:
        assert reply(client) == b""


def test_a_head_that_drips_is_not_waited_for_longer(served: Served) -> None:
    with connect(served, HALF_A_HEAD) as client:
        for _ in range(200):
            readable, _, _ = select.select([client], [], [], 0.1)
            if readable:
                break
            client.sendall(b"X: y\r\n")
        assert readable
        assert reply(client) == b""


def test_after_a_reply_the_next_question_has_to_come_in_time(served: Served) -> None:
    with connect(served, HALF_A_HEAD + b"\r\n") as client:
        said = b""
        while not said.endswith(b'{"status":"ok"}'):
            said += client.recv(65536)
        client.sendall(HALF_A_HEAD)
        assert reply(client) == b""


def test_more_idle_connections_than_descriptors_keep_nobody_out(served: Served) -> None:
    with ExitStack() as stack:
        for i in range(FILES * 2):
            stack.enter_context(connect(served, HALF_A_HEAD if i % 2 else b""))
            if i % 50 == 0:
                assert httpx.get(f"{served.url}health").status_code == 200
        found = httpx.get(f"{served.url}api/search/text", params={"q": "a boat"})
        assert found.json()["hits"]


def test_half_sent_uploads_do_not_hold_the_places_of_whole_ones(served: Served) -> None:
    with ExitStack() as stack:
        slow = [
            stack.enter_context(connect(served, HALF_AN_UPLOAD)) for _ in range(UPLOADS_AT_ONCE)
        ]
        time.sleep(0.3)  # all of them have a place now
        found = httpx.post(f"{served.url}api/search/image", files={"image": picture()}, timeout=60)
        assert found.status_code == 200
        pushed_out, _, _ = select.select(slow, [], [], 0)
        refused = reply(pushed_out[0])
        assert b"408 Request Timeout" in refused
        assert b'{"error":"the request arrived too slowly; send it again"}' in refused


def test_what_is_in_flight_when_the_service_stops_is_answered(run: Path) -> None:
    with Served(run) as served:
        assert httpx.get(f"{served.url}ready", timeout=60).status_code == 200
        with connect(served, HALF_AN_UPLOAD) as client, connect(served) as idle:
            time.sleep(0.3)
            assert served.stop(signal.SIGTERM) == 0
            refused = reply(client)
            assert b"503 Service Unavailable" in refused
            assert b'{"error":"the service is stopping; try again later"}' in refused
            assert reply(idle) == b""
        assert "Traceback" not in served.complaints()
