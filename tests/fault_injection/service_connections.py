"""Crowds at the door of the service: many connections, half-open ones, half-sent uploads.

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

from service.served import Served
from service.small_run import build_run, picture

HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FEW = 160  # file descriptors, most of which the process needs for itself
HALVES = (
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


async def ask(connection: Connection, question: str, body: bytes = b"", kind: str = "") -> int:
    """The status of one question on an open connection; 0 where it broke."""
    reader, writer = connection
    length = f"Content-Length: {len(body)}\r\nContent-Type: {kind}\r\n" if body else ""
    try:
        writer.write(f"{HEAD.format(question)}{length}\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
        return int(head.split(" ", 2)[1])
    except (OSError, asyncio.IncompleteReadError):
        return 0


async def many(port: int, count: int) -> dict[str, Any]:
    """All connected at once and kept open; each asks whether it is well, then for a boat."""
    connections = [await connect(port) for _ in range(count)]
    start = time.perf_counter()
    health = await asyncio.gather(*(ask(one, "GET /health") for one in connections))
    seconds = time.perf_counter() - start
    found: Counter[int] = Counter()
    for part in range(0, count, 100):  # the lane of texts takes 256
        asked = (ask(one, "GET /api/search/text?q=boat&k=5") for one in connections[part:][:100])
        found.update(await asyncio.gather(*asked))
    for _, writer in connections:
        writer.close()
    return {
        "connections": count,
        "health": dict(Counter(health)),
        "health_seconds": round(seconds, 2),
        "search": dict(found),
    }


async def half_open(port: int, count: int, seed: int) -> dict[str, Any]:
    """Connections that ask nothing or half a thing stay open; honest clients come in between."""
    rng = random.Random(seed)
    idle: list[Connection] = []
    statuses: Counter[str] = Counter()
    longest = 0.0
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    form += picture() + b"\r\n--x--\r\n"
    for i in range(count):
        idle.append(await connect(port, rng.choice(HALVES)))
        if i % 25 == 24 or i == count - 1:
            honest = await connect(port)
            start = time.perf_counter()
            statuses[f"health {await ask(honest, 'GET /health')}"] += 1
            longest = max(longest, time.perf_counter() - start)
            statuses[f"search {await ask(honest, 'GET /api/search/text?q=boat')}"] += 1
            kind = "multipart/form-data; boundary=x"
            status = await ask(honest, "POST /api/search/image", form, kind)
            statuses[f"upload {status}"] += 1
            honest[1].close()
    for reader, _ in idle:  # until each of them is refused or closed
        try:
            while await reader.read(65536):
                pass
        except OSError:
            pass
    for _, writer in idle:
        writer.close()
    return {
        "half_open": count,
        "answers": dict(statuses),
        "slowest_health_ms": round(1000 * longest),
    }


def torture(
    run: Path, connections: int, half: int, rounds: int = 1, *, probe_budget: float = 10.0
) -> list[dict[str, Any]]:
    """One row a crowd, and the descriptors that are open when it has gone."""
    rows = []
    for files in (None, FEW):
        with Served(run, files=files, head=probe_budget, stall=probe_budget) as served:
            asyncio.run(until_ready(served.port))
            for i in range(rounds):
                before = served.descriptors()
                found = [asyncio.run(half_open(served.port, half, i))]
                if files is None:
                    found.append(asyncio.run(many(served.port, connections)))
                time.sleep(0.5)
                left = {"descriptors": [before, served.descriptors()], "allowed": files}
                rows += [{**row, **left} for row in found]
            assert served.stop() == 0
            assert "Traceback" not in served.complaints(), served.complaints()
    return rows


async def until_ready(port: int) -> None:
    connection = await connect(port)
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    form += picture() + b"\r\n--x--\r\n"
    assert await ask(connection, "GET /ready") == 200
    kind = "multipart/form-data; boundary=x"
    assert await ask(connection, "POST /api/search/image", form, kind) == 200
    connection[1].close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--half-open", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(Path(folder))
        for row in torture(run, options.connections, options.half_open, options.rounds):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
