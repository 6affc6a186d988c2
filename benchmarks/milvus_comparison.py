"""The same learned codes in `grouped:` and in a Milvus server: time, memory, answers, the service.

    python tests/scale/milvus_server.py FOLDER       # prints URL and token; or a server of yours
    MILVUS_TOKEN=... python benchmarks/milvus_comparison.py milvus:http://127.0.0.1:PORT/codes --items 1e7

Builds a run of so many texts (benchmarks/serve.py --learned), copies its codes into the server as
`transhash index --from --into` does, asks both engines the same questions one by one and in
batches, and puts the service over each for --seconds. Goes on where it stopped.
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
    """MiB that processes named milvus hold now."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if lines["Name"].strip() == "milvus":
            total += int(lines["VmRSS"].split()[0])
    return total // 1024


def asked(index: Index, queries: Codes, repeats: int) -> tuple[list[np.ndarray], list[float]]:
    """Rankings of all queries, and ms a query one by one and in batches of 50, each repeat."""
    index.search(queries[:1], K)
    ones, batches, found = [], [], []
    for _ in range(repeats):
        start = time.perf_counter()
        found = [index.search(queries[i : i + 1], K) for i in range(len(queries))]
        ones.append(1e3 * (time.perf_counter() - start) / len(queries))
        start = time.perf_counter()
        for i in range(0, len(queries), 50):
            index.search(queries[i : i + 50], K)
        batches.append(1e3 * (time.perf_counter() - start) / len(queries))
    flat = [np.concatenate((one.ids[0], one.distances[0])) for one in found]
    return flat, [float(part(times)) for times in (ones, batches) for part in (np.mean, np.std)]


def served(run: Path, url: str | None, seconds: float, rate: float) -> None:
    async def ask(port: int) -> None:
        client = Client("127.0.0.1", port)
        while await client.ask("GET /ready") != 200:
            await asyncio.sleep(0.1)
        name = f"service over {url or 'grouped:'}"
        await closed_loop(port, 1, 3, f"{name}, warm-up")
        await open_loop(port, rate, seconds, f"{name}, {rate:g} a second offered")
        await closed_loop(port, 8, seconds / 3, f"{name}, as fast as it goes")

    with serving(run, url) as (port, _):
        asyncio.run(ask(port))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="milvus:http://HOST:PORT/NAME")
    parser.add_argument("--items", type=lambda text: int(float(text)), default=10**7)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rates", type=float, nargs=2, default=(50, 2), help="offered to each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "transhash")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = build_run(options.folder, options.items, options.bits, learned=True)
    grouped = open_index(f"grouped:{run / 'index' / 'texts'}", read_only=True)
    ids, codes = grouped.export()
    print(f"{len(ids):,} codes of {codes.bits} bits, {codes.distinct():,} distinct", flush=True)

    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        start = time.perf_counter()
        copy = open_index(f"grouped:{place}/index", codes.bits)
        copy.ingest(ids, codes)
        copy.close()
        filled = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    print(
        f"grouped: filled in {filled:.1f} s ({len(ids) / filled:,.0f} a second), "
        f"{size / 2**20:,.0f} MiB of files, which are mapped"
    )
    idle, start = server_memory(), time.perf_counter()
    command = ["index", str(run), "--from", f"grouped:{run / 'index'}", "--into", options.url]
    subprocess.run([sys.executable, "-m", "transhash", *command], check=True)
    filled = time.perf_counter() - start
    print(f"server: filled in {filled:.0f} s ({len(ids) / filled:,.0f} a second), "
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
        rankings[name], (one, one_sd, batch, batch_sd) = asked(index, queries, options.repeats)
        print(f"{name}: {one:.2f} ± {one_sd:.2f} ms a query, {batch:.3f} ± {batch_sd:.3f} in "
              f"batches of 50, {options.repeats} runs", flush=True)  # fmt: skip
        index.close()
    same = sum(np.array_equal(*pair) for pair in zip(*rankings.values()))
    print(f"same ids in the same order in {same} of {options.queries} rankings")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"server {server_memory():,} MiB; this process at most {own:,} MiB")
    served(run, None, options.seconds, options.rates[0])
    served(run, options.url, options.seconds, options.rates[1])
    print(f"server {server_memory():,} MiB")


if __name__ == "__main__":
    main()
