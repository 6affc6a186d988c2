"""Fault injection: many connections, half-open connections and incomplete uploads.

python tests/fault_injection/service_connections.py --connections 1000 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.server_process import ServerProcess, wait_until_ready
from service.small_run import build_run, image_bytes

HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FEW_FILES = 160  # file descriptors; the process needs most of them for itself
PARTIAL_REQUESTS = (
    b"",
    b"GET /hea",
    HEAD.format("GET /health").encode(),
    HEAD.format("POST /api/search/image").encode()
    + b"Content-Length: 900000\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n",
    HEAD.format("POST /api/search/batch").encode() + b"Content-Length: 900\r\n\r\n{",
)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, sent: bytes = b"") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def send(connection: Connection, request: str, body: bytes = b"", kind: str = "") -> int:
    """Return the status of a request on an open connection; 0 if the connection broke."""
    reader, writer = connection
    length = f"Content-Length: {len(body)}\r\nContent-Type: {kind}\r\n" if body else ""
    try:
        writer.write(f"{HEAD.format(request)}{length}\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
        return int(head.split(" ", 2)[1])
    except (OSError, asyncio.IncompleteReadError):
        return 0


async def many_connections(port: int, count: int) -> dict[str, Any]:
    """Open all connections at once; request the health, then a search on each."""
    connections = [await connect(port) for _ in range(count)]
    start = time.perf_counter()
    health = await asyncio.gather(*(send(one, "GET /health") for one in connections))
    seconds = time.perf_counter() - start
    searches: Counter[int] = Counter()
    for part in range(0, count, 100):  # the worker pool for texts accepts 256
        requests = (
            send(one, "GET /api/search/text?q=boat&k=5") for one in connections[part:][:100]
        )
        searches.update(await asyncio.gather(*requests))
    for _, writer in connections:
        writer.close()
    return {
        "connections": count,
        "health": dict(Counter(health)),
        "health_seconds": round(seconds, 2),
        "search": dict(searches),
    }


async def half_open(port: int, count: int, seed: int) -> dict[str, Any]:
    """Keep connections with partial requests open, with complete requests in between."""
    rng = random.Random(seed)
    idle: list[Connection] = []
    statuses: Counter[str] = Counter()
    longest = 0.0
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    form += image_bytes() + b"\r\n--x--\r\n"
    for i in range(count):
        idle.append(await connect(port, rng.choice(PARTIAL_REQUESTS)))
        if i % 25 == 24 or i == count - 1:
            client = await connect(port)
            start = time.perf_counter()
            statuses[f"health {await send(client, 'GET /health')}"] += 1
            longest = max(longest, time.perf_counter() - start)
            statuses[f"search {await send(client, 'GET /api/search/text?q=boat')}"] += 1
            kind = "multipart/form-data; boundary=x"
            status = await send(client, "POST /api/search/image", form, kind)
            statuses[f"upload {status}"] += 1
            client[1].close()
    for reader, _ in idle:  # until each is refused or closed
        try:
            while await reader.read(65536):
                pass
        except OSError:
            pass
    for _, writer in idle:
        writer.close()
    return {
        "half_open": count,
        "replies": dict(statuses),
        "slowest_health_ms": round(1000 * longest),
    }


def inject_faults(
    run: Path, connections: int, half: int, rounds: int = 1, *, timeout: float = 10.0
) -> list[dict[str, Any]]:
    """Return one row per round, with the file descriptors before and after it."""
    rows = []
    # Idle connections are closed after `timeout`. A busy machine may need that long to open all.
    for count, files, head in ((half, None, timeout), (half, FEW_FILES, timeout), (0, None, 60.0)):
        with ServerProcess(run, files=files, head=head, stall=timeout) as server:
            wait_until_ready(server.url)
            asyncio.run(upload_image(server.port))
            for i in range(rounds):
                before = server.descriptors()
                if count:
                    row = asyncio.run(half_open(server.port, count, i))
                else:
                    row = asyncio.run(many_connections(server.port, connections))
                after = descriptors_at_rest(server, before)
                rows.append({**row, "descriptors": [before, after], "allowed": files})
            assert server.stop() == 0
            assert "Traceback" not in server.stderr(), server.stderr()
    return rows


def descriptors_at_rest(server: ServerProcess, before: int) -> int:
    """Return the file descriptors when they are as few as before, or after 30 seconds."""
    end = time.monotonic() + 30
    while (after := server.descriptors()) > before and time.monotonic() < end:
        time.sleep(0.1)
    return after


async def upload_image(port: int) -> None:
    connection = await connect(port)
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    form += image_bytes() + b"\r\n--x--\r\n"
    kind = "multipart/form-data; boundary=x"
    assert await send(connection, "POST /api/search/image", form, kind) == 200
    connection[1].close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--half-open", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(Path(folder))
        for row in inject_faults(run, options.connections, options.half_open, options.rounds):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
