"""Measure time and memory of `transhash search` and `transhash serve` from a cold start.

    python benchmarks/cold_start.py RUN --repeats 5

RUN is a run folder with an index and `words` text features (`make demo` creates runs/demo). Prints
wall time and the largest resident size, mean and deviation. The server is ready when /api/about
responds.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import mean, stdev

COMMAND = (sys.executable, "-m", "transhash")


def search(run: Path) -> tuple[float, float]:
    """Return seconds and MB."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "search", run, "--text", "a red boat"], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"Searching {run} failed. Pass a run folder with an index.")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def serve(run: Path) -> tuple[float, float]:
    """Return seconds and MB."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "serve", run, "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/about", timeout=1):
                    seconds = time.perf_counter() - start
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"Serving {run} failed. Pass a run folder.") from None
                time.sleep(0.01)
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.terminate()
        process.wait()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for name, measure in (("search --text", search), ("serve", serve)):
        measure(options.run)  # warms the disk cache
        columns = zip(*(measure(options.run) for _ in range(options.repeats)))
        cells = [f"{mean(c):.2f} ± {stdev(c) if len(c) > 1 else 0:.2f}" for c in columns]
        print(f"{name:14} {cells[0]} s  {cells[1]} MB", flush=True)


if __name__ == "__main__":
    main()
