"""Measure the HTTP service under load: latency, sustained rate, and large uploads.

    python benchmarks/serve.py                       # one million texts, random 32-bit codes
    python benchmarks/serve.py --items 100000 --seconds 10
    python benchmarks/serve.py --learned --bits 64   # resampled codes of THN
    python benchmarks/serve.py --run RUN [--index URL]   # your own run

Client and server are two processes on one machine and compete for its cores, so a remote client is
faster. Random codes are the hardest case: codes of real items repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
from search_engines import resampled

from transhash.codes import Codes
from transhash.datasets.synthetic import CLASSES, make_synthetic
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.index import open_index
from transhash.model.query_encoder import QueryEncoder
from transhash.search.catalog import Catalog, NewItem
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data

SERVER = """
import sys
from pathlib import Path
from transhash.service import serve_run
url = sys.argv[2] if len(sys.argv) > 2 else None
serve_run(Path(sys.argv[1]), port=0, index_url=url, on_ready=lambda url: print(url, flush=True))
"""
WORDS = ("small", "blue", "old", "by the door", "in the rain", "at night", "with sails", "asleep")


def build_run(folder: Path, items: int, bits: int = 32, *, learned: bool = False) -> Path:
    """Build a run of the synthetic data set with `items` texts of random or learned codes."""
    run = folder / f"run-{items}-{bits}{'-learned' * learned}"
    if (run / "complete").exists():
        return run
    if run.exists():
        shutil.rmtree(run)
    print(f"building a run of {items:,} texts in {run} ...", flush=True)
    data = make_synthetic(folder / "synthetic", per_class=8)
    inputs = read_fit_data(data / "auxiliary.tsv", data / "images.tsv", data / "texts.tsv")
    method = "THN" if learned else "CVH"
    hasher = make_hasher(method, bits=bits)
    Fit(hasher, method, run, image_features("efficientnet-lite0")).run_files(inputs)
    rng = random.Random(0)
    if learned:
        projections = QueryEncoder(run).project_texts([random_text(rng) for _ in range(5000)])
        codes = resampled(Codes.from_projections(projections).packed, items, 0)
    else:
        codes = np.random.default_rng(0).integers(0, 256, (items, bits // 8), dtype=np.uint8)
    catalog = Catalog(run / "catalog.sqlite")
    numbers: list[int] = []
    for start in range(0, items, 50_000):
        block = codes[start : start + 50_000]
        stored = catalog.add(
            "texts",
            [
                NewItem(
                    f"text-{start + i}", row.tobytes(), text=f"{random_text(rng)} ({start + i})"
                )
                for i, row in enumerate(block)
            ],
        )
        numbers += [item.number for item in stored]
        catalog.mark_done("", numbers[start:])
    catalog.close()
    for modality, ids, packed in (("texts", numbers, codes), ("images", [], codes[:0])):
        index = open_index(f"grouped:{run / 'index' / modality}", bits)
        index.update(np.array(ids, dtype=np.int64), Codes(packed, bits))
        index.close()
    (run / "complete").touch()
    return run


def random_text(rng: random.Random) -> str:
    return f"a {rng.choice(CLASSES)} {rng.choice(WORDS)}, and a {rng.choice(CLASSES)}"


@contextmanager
def serving(run: Path, index: str | None = None) -> Iterator[tuple[int, int]]:
    """Run the service in another process, and yield its port and process id."""
    command = [sys.executable, "-c", SERVER, str(run), *([index] if index else [])]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline().strip().rstrip("/").rpartition(":")[2]), server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


class Client:
    """One keep-alive connection; an HTTP library would need more time than the server."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def request(self, head: str, body: bytes = b"") -> int:
        """Return the status, or 0 if the connection failed."""
        try:
            # The server closes idle connections.
            if self.writer is None or self.reader is None or self.reader.at_eof():
                self.close()
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            host = f"Host: {self.host}:{self.port}\r\n"
            self.writer.write(f"{head} HTTP/1.1\r\n{host}{length}".encode())
            content_type = b"Content-Type: multipart/form-data; boundary=x\r\n" if body else b""
            self.writer.write(content_type + b"\r\n" + body)
            await self.writer.drain()
            reply = await self.reader.readuntil(b"\r\n\r\n")
            headers = reply.decode("latin-1").lower()
            size = int(headers.split("content-length:")[1].split("\r\n")[0])
            await self.reader.readexactly(size)
            if "connection: close" in headers:
                self.close()
            return int(headers.split(" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


class RequestLog:
    """Statuses and seconds of the requests of one phase."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []

    async def time(self, client: Client, head: str, body: bytes = b"") -> None:
        start = time.perf_counter()
        self.statuses[await client.request(head, body)] += 1
        self.seconds.append(time.perf_counter() - start)

    def report(self, name: str, wall: float, **extra: object) -> dict[str, object]:
        p50, p95, p99 = np.percentile(np.array(self.seconds) * 1000, (50, 95, 99))
        row = {
            "phase": name,
            "requests": len(self.seconds),
            "per_second": round(len(self.seconds) / wall, 1),
            "p50_ms": round(float(p50), 2),
            "p95_ms": round(float(p95), 2),
            "p99_ms": round(float(p99), 2),
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            **extra,
        }
        print(json.dumps(row), flush=True)
        return row


def text_query(rng: random.Random, search: str) -> str:
    return f"GET /api/search/text?modality=texts&k=24&search={search}&q={quote(random_text(rng))}"


async def closed_loop(
    port: int, clients: int, seconds: float, name: str, search: str = "hybrid"
) -> dict[str, object]:
    """Let every client send the next request as soon as it has a response."""
    log, start = RequestLog(), time.perf_counter()

    async def run_client(seed: int) -> None:
        client, rng = Client("127.0.0.1", port), random.Random(seed)
        while time.perf_counter() - start < seconds:
            await log.time(client, text_query(rng, search))
        client.close()

    await asyncio.gather(*(run_client(seed) for seed in range(clients)))
    return log.report(name, time.perf_counter() - start, clients=clients)


async def open_loop(
    port: int, rate: float, seconds: float, name: str, search: str = "hybrid"
) -> dict[str, object]:
    """Send requests at a fixed rate, whether answered or not."""
    log, rng, idle = RequestLog(), random.Random(0), [Client("127.0.0.1", port) for _ in range(64)]

    async def send(head: str) -> None:
        client = idle.pop() if idle else Client("127.0.0.1", port)
        await log.time(client, head)
        idle.append(client)

    start, tasks = time.perf_counter(), []
    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + i / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(send(text_query(rng, search))))
    await asyncio.gather(*tasks)
    return log.report(name, time.perf_counter() - start, requests_per_second=rate)


async def large_uploads(
    port: int, process: int, clients: int, seconds: float, size: int, search: str = "hybrid"
) -> list[dict[str, object]]:
    """Upload large images from many clients, some too large, and search texts meanwhile."""
    uploads, texts, start = RequestLog(), RequestLog(), time.perf_counter()
    bodies = [upload(noise_image(size)), upload(bytes(size + (4 << 20)))]

    async def sender(seed: int) -> None:
        client = Client("127.0.0.1", port)
        while time.perf_counter() - start < seconds:
            await uploads.time(client, "POST /api/search/image?k=5", bodies[seed % 4 == 0])
        client.close()

    async def reader() -> None:
        client, rng = Client("127.0.0.1", port), random.Random(0)
        while time.perf_counter() - start < seconds:
            await texts.time(client, text_query(rng, search))
            await asyncio.sleep(0.05)
        client.close()

    before = memory(process, "VmRSS")
    await asyncio.gather(reader(), *(sender(seed) for seed in range(clients)))
    wall = time.perf_counter() - start
    extra = {"clients": clients, "rss_before_mib": before, "rss_peak_mib": memory(process, "VmHWM")}
    return [
        uploads.report("large uploads", wall, **extra),
        texts.report("text searches meanwhile", wall),
    ]


def noise_image(size: int) -> bytes:
    """Return an image file of about `size` bytes; noise does not compress."""
    import io

    from PIL import Image

    side = int((size / 3.1) ** 0.5)
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def upload(data: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    return head + data + b"\r\n--x--\r\n"


def memory(process: int, field: str) -> int | None:
    """Return MiB, or None on systems without /proc."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field))


async def measure(port: int, process: int, options: argparse.Namespace) -> list[dict[str, object]]:
    client = Client("127.0.0.1", port)
    for _ in range(600):  # until the model is loaded
        if await client.request("GET /ready") == 200:
            break
        await asyncio.sleep(0.1)
    await closed_loop(port, 2, 2, "warm-up", options.search)
    rows = [
        await closed_loop(port, 1, min(10.0, options.seconds), "one client", options.search),
        await open_loop(port, options.rate, options.seconds, "sustained", options.search),
        await closed_loop(port, options.clients, options.seconds, "closed loop", options.search),
    ]
    rows += await large_uploads(
        port, process, options.uploads, min(20.0, options.seconds), 9 << 20, options.search
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--learned", action="store_true", help="use resampled codes of THN")
    parser.add_argument("--run", type=Path, help="serve this run instead of building one")
    parser.add_argument("--index", help="index URL of --run")
    parser.add_argument("--search", default="hybrid", help="hybrid, codes or keywords")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--uploads", type=int, default=64, help="clients with large images")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "transhash")
    parser.add_argument("--json", type=Path, help="output file for the rows")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = options.run or build_run(
        options.folder, options.items, options.bits, learned=options.learned
    )
    with serving(run, options.index) as (port, process):
        rows = asyncio.run(measure(port, process, options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), "utf-8")


if __name__ == "__main__":
    main()
