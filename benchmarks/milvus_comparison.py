"""Compare a `grouped:` index with a Milvus server: time, memory, results and HTTP service.

    python tests/scale/milvus_server.py FOLDER       # prints URL and token; or use your own server
    export MILVUS_TOKEN=...
    python benchmarks/milvus_comparison.py milvus:http://127.0.0.1:PORT/codes --items 1e7

Builds a run with learned codes of texts (like benchmarks/serve.py --learned), copies its codes to
the server with `transhash copy`, searches both indexes with single queries and batches, and loads
the HTTP service with each index. An existing run is used again.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from serve import Client, build_run, closed_loop, open_loop, serving

from transhash.codes import Codes
from transhash.index import Index, open_index

K = 24


def server_memory() -> int:
    """Return the resident size in MiB of all processes named milvus."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if lines["Name"].strip() == "milvus":
            total += int(lines["VmRSS"].split()[0])
    return total // 1024


def search(index: Index, queries: Codes, repeats: int) -> tuple[list[np.ndarray], list[float]]:
    """Return rankings, and mean and deviation of ms per query, single and in batches of 50."""
    index.search(queries[:1], K)
    singles, batches, rankings = [], [], []
    for _ in range(repeats):
        start = time.perf_counter()
        rankings = [index.search(queries[i : i + 1], K) for i in range(len(queries))]
        singles.append(1e3 * (time.perf_counter() - start) / len(queries))
        start = time.perf_counter()
        for i in range(0, len(queries), 50):
            index.search(queries[i : i + 50], K)
        batches.append(1e3 * (time.perf_counter() - start) / len(queries))
    rows = [np.concatenate((ranking.ids[0], ranking.distances[0])) for ranking in rankings]
    return rows, [float(f(times)) for times in (singles, batches) for f in (np.mean, np.std)]


def load_service(run: Path, url: str | None, seconds: float, rate: float) -> None:
    async def measure(port: int) -> None:
        client = Client("127.0.0.1", port)
        while await client.request("GET /ready") != 200:
            await asyncio.sleep(0.1)
        name = f"service with {url or 'grouped:'}"
        await closed_loop(port, 1, 3, f"{name}, warm-up")
        await open_loop(port, rate, seconds, f"{name}, {rate:g} requests per second")
        await closed_loop(port, 8, seconds / 3, f"{name}, 8 clients")

    with serving(run, url) as (port, _):
        asyncio.run(measure(port))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="milvus:http://HOST:PORT/NAME")
    parser.add_argument("--items", type=lambda text: int(float(text)), default=10**7)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--rates", type=float, nargs=2, default=(50, 2), help="requests per second to each index"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "transhash")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = build_run(options.folder, options.items, options.bits, learned=True)
    grouped = open_index(f"grouped:{run / 'index' / 'texts'}", read_only=True)
    ids, codes = grouped.export()
    print(f"{len(ids):,} codes of {codes.bits} bits, {codes.distinct():,} distinct", flush=True)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        start = time.perf_counter()
        copy = open_index(f"grouped:{folder}/index", codes.bits)
        copy.ingest(ids, codes)
        copy.close()
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    print(
        f"grouped: filled in {seconds:.1f} s ({len(ids) / seconds:,.0f} codes per second), "
        f"{size / 2**20:,.0f} MiB of mapped files"
    )
    idle, start = server_memory(), time.perf_counter()
    command = ["copy", str(run), "--from", f"grouped:{run / 'index'}", "--to", options.url]
    subprocess.run([sys.executable, "-m", "transhash", *command], check=True)
    seconds = time.perf_counter() - start
    print(f"server: filled in {seconds:.0f} s ({len(ids) / seconds:,.0f} codes per second), "
          f"{idle:,} MiB of memory before, {server_memory():,} after", flush=True)  # fmt: skip

    rng = np.random.default_rng(1)
    flips = np.packbits(rng.random((options.queries, codes.bits)) < 0.05, axis=1)
    chosen = codes.packed[rng.integers(0, len(ids), options.queries)]
    queries = Codes(chosen ^ flips, codes.bits)
    rankings = {}
    for name, index in (
        ("grouped", grouped),
        ("server", open_index(f"{options.url}#texts", read_only=True)),
    ):
        rankings[name], (single, single_sd, batch, batch_sd) = search(
            index, queries, options.repeats
        )
        print(f"{name}: {single:.2f} ± {single_sd:.2f} ms per query, {batch:.3f} ± {batch_sd:.3f} "
              f"in batches of 50, {options.repeats} runs", flush=True)  # fmt: skip
        index.close()
    same = sum(np.array_equal(*pair) for pair in zip(*rankings.values()))
    print(f"same ids in the same order in {same} of {options.queries} rankings")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"server {server_memory():,} MiB; peak of this process {own:,} MiB")
    load_service(run, None, options.seconds, options.rates[0])
    load_service(run, options.url, options.seconds, options.rates[1])
    print(f"server {server_memory():,} MiB")


if __name__ == "__main__":
    main()
