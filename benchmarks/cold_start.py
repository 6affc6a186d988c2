"""A command from a cold start: how long, and how much memory, beside another checkout.

    python benchmarks/cold_start.py RUN
    python benchmarks/cold_start.py RUN --beside CHECKOUT --repeats 5

RUN is a run folder with an index that reads texts by words (`make demo` writes runs/demo); with
--beside, CHECKOUT/.venv is asked the same about its own CHECKOUT/runs/demo. Interleaved; seconds
of the wall and the largest resident size, mean and deviation. The service is ready when
/api/about answers.
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

QUESTION = "a red boat"


def searched(python: Path, run: Path) -> tuple[float, float]:
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "transhash", "search", run, "--text", QUESTION], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{python} could not search {run}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def served(python: Path, run: Path) -> tuple[float, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "transhash", "serve", run, "--port", str(port)],
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
                    raise SystemExit(f"{python} could not serve {run}") from None
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
    parser.add_argument("--beside", type=Path, help="a checkout that `make demo` ran in")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    asked = {"this": (Path(sys.executable), arguments.run)}
    if arguments.beside:
        other = arguments.beside.absolute()
        asked[other.name] = other / ".venv" / "bin" / "python", other / "runs" / "demo"
    for what, measure in (("search --text", searched), ("serve", served)):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
        for repeat in range(arguments.repeats + 1):
            for name, (python, run) in asked.items():
                one = measure(python, run)
                if repeat:  # the first warms the disk cache
                    found[name].append(one)
        for name, each in found.items():
            columns = list(zip(*each))
            shown = [f"{mean(c):.2f} ± {stdev(c) if len(c) > 1 else 0:.2f}" for c in columns]
            print(f"{what:14} {name:12} {shown[0]} s  {shown[1]} MB", flush=True)


if __name__ == "__main__":
    main()
