"""Measure `transhash open`: time until the first search, and until all images are indexed.

    python benchmarks/open.py PHOTOS --runs 3

Each run has an empty cache and data folder. Prints seconds and CPU seconds, with the processes that
decode. Wall time depends on what else the machine does; CPU time hardly does.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process and its children so far."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own = int(stat.parent.name) == process
        if own or int(fields[1]) == process:
            total += sum(map(int, fields[11:13])) / _TICKS
        if own:  # of children that have ended
            total += sum(map(int, fields[13:15])) / _TICKS
    return total


def measure(photos: Path, query: str) -> dict[str, tuple[float, float]]:
    """Return seconds and CPU seconds until the page, the first search and the end of indexing."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"TRANSHASH_CACHE": f"{folder}/cache", "XDG_DATA_HOME": f"{folder}/data"}
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "transhash", "open", str(photos), "--no-browser", "--port", "0"],
            stdout=subprocess.PIPE, text=True, env=os.environ | variables,
        )  # fmt: skip
        assert process.stdout is not None
        times = {}
        for line in process.stdout:
            if address := re.search(r"http://[\d.:]+/", line):
                times["page"] = time.perf_counter() - start, cpu_seconds(process.pid)
                url = f"{address[0]}api/search/text?q={quote(query)}"
                while True:
                    try:
                        urllib.request.urlopen(url).read()
                        break
                    except urllib.error.HTTPError as error:  # the model is still being loaded
                        if error.code != 503:
                            raise
                        time.sleep(0.1)
                times["first search"] = time.perf_counter() - start, cpu_seconds(process.pid)
            if line.startswith("Up to date"):
                times["all indexed"] = time.perf_counter() - start, cpu_seconds(process.pid)
                process.send_signal(signal.SIGTERM)
        process.wait()
        return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--query", default="a dog on the beach")
    options = parser.parse_args()
    results = [measure(options.photos, options.query) for _ in range(options.runs)]
    for name in results[0]:
        for unit, column in (("seconds", 0), ("CPU seconds", 1)):
            values = [result[name][column] for result in results]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}: {statistics.mean(values):.1f} {unit} (standard deviation {spread:.1f})")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"peak memory {usage.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
