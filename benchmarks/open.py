"""Measure `transhash open`: time until the first search, and until all images are indexed.

    python benchmarks/open.py PHOTOS --runs 3 [--create 1000 --downloads DOWNLOADS]

Each run has an empty cache and data folder. Prints seconds and CPU seconds, with the processes that
decode. Wall time depends on what else the machine does; CPU time hardly does.

--create writes PHOTOS first: the photographs of `make_concepts.py` and stamps of Tux Paint, and if
these are too few, ninths of the wallpapers; all are scaled to 12 megapixels, as a camera has them.
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
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from make_concepts import WALLPAPERS
from PIL import Image
from third_party_photographs import gcompris, stamps
from third_party_sources import unpack

_TICKS = os.sysconf("SC_CLK_TCK")


_PIXELS = 12_000_000


def photographs(downloads: Path) -> Iterator[Image.Image]:
    """Yield photographs from Debian packages, whole ones first."""
    wallpapers = [
        path
        for package, folder in WALLPAPERS.items()
        for path in sorted((unpack(package, downloads) / "usr/share" / folder).glob("*.jpg"))
    ]
    yield from map(Image.open, wallpapers)
    for content in [*gcompris(downloads).values(), *stamps(downloads).values()]:
        yield Image.open(BytesIO(content))
    for path in wallpapers:
        image = Image.open(path)
        width, height = image.width // 3, image.height // 3
        for n in range(9):
            left, top = n % 3 * width, n // 3 * height
            yield image.crop((left, top, left + width, top + height))


def create_photographs(folder: Path, count: int, downloads: Path) -> None:
    """Write photographs of the size of a camera's."""
    folder.mkdir(parents=True)
    for number, image in zip(range(count), photographs(downloads)):
        on_white = Image.new("RGBA", image.size, "white")
        on_white.alpha_composite(image.convert("RGBA"))
        factor = (_PIXELS / (image.width * image.height)) ** 0.5
        size = round(image.width * factor), round(image.height * factor)
        on_white.convert("RGB").resize(size).save(folder / f"IMG_{number:04d}.jpg", quality=90)


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
    parser.add_argument("--create", type=int, default=0, help="photographs to write first")
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    options = parser.parse_args()
    if options.create:
        create_photographs(options.photos, options.create, options.downloads)
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
