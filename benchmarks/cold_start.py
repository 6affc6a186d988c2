"""Measure time and memory of `transhash search` and `transhash serve` from a cold start.

    python benchmarks/cold_start.py RUN --repeats 5
    python benchmarks/cold_start.py --text-features all-MiniLM-L6-v2 --repeats 5

RUN is a run folder with an index and any text features (`make demo` creates runs/demo). With
`--text-features` a run is fitted on the synthetic data set in a temporary folder. Prints wall time,
CPU time and the largest resident size, mean and deviation over the repeats: of a search, of a
search with a word that no training text has, and of a server until `/api/about` and until `/ready`
respond. Then the time of one request to that server, median of 100 different texts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from statistics import mean, median, stdev

COMMAND = (sys.executable, "-m", "transhash")
COLUMNS = ("wall s", "CPU s", "MB")


def search(run: Path, text: str) -> tuple[float, float, float]:
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, "search", run, "--text", text], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"Searching {run} failed. Pass a run folder with an index.")
    seconds = time.perf_counter() - start
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def usage_of(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Return CPU seconds and the largest resident size in MB of a running process."""
    folder = Path("/proc", str(process.pid))
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    lines = (folder / "status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024


def serve(run: Path) -> list[tuple[float, float, float]]:
    """Return the columns until /api/about and until /ready, and those of one text request."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "serve", run, "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return bytes(reply.read())

    def wait_for(path: str) -> tuple[float, float, float]:
        while True:
            try:
                get(path)
                return time.perf_counter() - start, *usage_of(process)
            except OSError:  # also 503
                if process.poll() is not None:
                    raise SystemExit(f"Serving {run} failed. Pass a run folder.") from None
                time.sleep(0.01)

    try:
        rows = [wait_for("/api/about"), wait_for("/ready")]
        texts = [f"a red boat with zebu{i} and a house" for i in range(100)]
        before, walls = usage_of(process)[0], []
        for text in texts:
            begin = time.perf_counter()
            hits = json.loads(get(f"/api/search/text?q={urllib.parse.quote(text)}"))["hits"]
            walls.append(time.perf_counter() - begin)
            assert hits
        cpu, peak = usage_of(process)
        return [*rows, (median(walls), (cpu - before) / len(texts), peak)]
    finally:
        process.terminate()
        process.wait()


def fit(folder: Path, text_features: str) -> None:
    import transhash
    from transhash.datasets.synthetic import make_synthetic

    data = make_synthetic(folder / "synthetic", per_class=60)
    parts = (data / f"{name}.tsv" for name in ("auxiliary", "images", "texts"))
    transhash.fit(*parts, out=folder / "run", text_features=text_features).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--text-features", default="words")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = options.run or Path(name, "run")
        if options.run is None:
            # In another process: Linux counts the memory of the process that starts a command.
            arguments = Path(name), options.text_features
            fitting = multiprocessing.get_context("spawn").Process(target=fit, args=arguments)
            fitting.start()
            fitting.join()
        results: dict[str, list[tuple[float, float, float]]] = {}
        for repeat in range(options.repeats + 1):
            rows = [
                search(run, "a red boat"),
                search(run, "a red boat with zebus and an umbrellalike thing"),
                *serve(run),
            ]
            names = ("search", "search, unknown word", "serve", "serve, ready", "one request")
            for label, row in zip(names, rows, strict=True):
                if repeat:  # the first warms the disk cache
                    results.setdefault(label, []).append(row)
    for label, rows in results.items():
        cells = [
            f"{mean(values):8.3f} ± {stdev(values) if len(values) > 1 else 0:.3f} {unit}"
            for unit, values in zip(COLUMNS, zip(*rows), strict=True)
        ]
        print(f"{label:22}", *cells, flush=True)


if __name__ == "__main__":
    main()
