"""Write src/transhash/features/concepts.json: ImageNet classes with names and definitions.

    python benchmarks/make_concepts.py --downloads DOWNLOADS
    python benchmarks/make_concepts.py --downloads DOWNLOADS --statistics

Needs pip and Debian's apt-get and dpkg-deb. The order of the 1,000 classes comes from the timm
wheel (Apache-2.0); names, definitions and the nodes above the classes come from WordNet 3.0. A node
is written if it has 2 to 250 classes below it. Of nodes with the same classes the lowest is kept.

With --statistics, write concept_statistics.safetensors instead: mean and mean distance from it of
the features of freely licensed photographs in Debian packages, for a fit without images.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from third_party_photographs import gcompris
from third_party_sources import Package, WordNet, open_wordnet, unpack

from transhash.features.concepts import ImageStatistics
from transhash.features.images import image_features
from transhash.features.stream import extract_all
from transhash.storage import write_tensors

TIMM = "timm==1.0.31"
CLASS_ORDER = "timm/data/_info/imagenet_synsets.txt"
OUT = Path(__file__).resolve().parent.parent / "src/transhash/features/concepts.json"
STATISTICS = OUT.with_name("concept_statistics.safetensors")
WALLPAPERS = {  # folder with photographs in each package
    Package(
        "lomiri-wallpapers-16.04",
        "20.04.0-2",
        "a99ff6a3bfe451e4cc0682ecb3cc82e71740626d59e4845ae34a0a0e45421eab",
    ): "backgrounds",
    Package(
        "lomiri-wallpapers-20.04",
        "20.04.0-2",
        "d44e89b8473aafe64a5b678f014862dc31335aaaf18665c544d985d854f1a709",
    ): "backgrounds",
    Package(
        "mate-backgrounds",
        "1.26.0-1",
        "7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
    ): "backgrounds/mate/nature",
    Package(
        "palapeli-data",
        "4:22.12.3-1",
        "69a15dce2ac25ed8708ac518cd0cee5f4eb0c70ed15da2fdb8899a19ac0ee058",
    ): "palapeli/collection",
}
MIN_MEMBERS, MAX_MEMBERS = 2, 250


def class_order(downloads: Path) -> list[str]:
    """Return the WordNet offset of each class, in the order of ImageNet classifiers."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(downloads)]
    subprocess.run([*command, TIMM], check=True)
    wheel = next(downloads.glob(f"{TIMM.replace('==', '-')}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return [name[1:] for name in archive.read(CLASS_ORDER).decode().split()]


def wordnet_license(wordnet: WordNet) -> str:
    """Return the license at the beginning of each WordNet file."""
    lines = (wordnet.folder / "data.noun").read_text("utf-8").splitlines()
    words = [line.split()[1:] for line in lines if line.startswith("  ")]
    return " ".join(word for line in words for word in line)


def describe(wordnet: WordNet, sense: str) -> dict[str, Any]:
    """Return id, names and definition, without WordNet's example sentences."""
    definition = wordnet.glosses[sense].partition('; "')[0].strip()
    return {"id": f"n{sense}", "names": wordnet.words(sense), "definition": definition}


def group_members(wordnet: WordNet, classes: list[str]) -> dict[str, list[int]]:
    """Map each node above 2 to 250 classes to their rows, from few to many."""
    members: dict[str, set[int]] = defaultdict(set)
    depth: dict[str, int] = defaultdict(int)  # longest way down to a class
    for row, sense in enumerate(classes):
        level, steps = {sense}, 0
        while level:
            for node in level:
                members[node].add(row)
                depth[node] = max(depth[node], steps)
            level, steps = {above for node in level for above in wordnet.wider(node)}, steps + 1
    lowest: dict[tuple[int, ...], str] = {}
    for node in sorted(members, key=lambda node: (depth[node], node)):
        rows = tuple(sorted(members[node]))
        if node not in classes and MIN_MEMBERS <= len(rows) <= MAX_MEMBERS:
            lowest.setdefault(rows, node)
    return {node: list(rows) for rows, node in sorted(lowest.items(), key=lambda x: len(x[0]))}


def photographs(downloads: Path) -> list[bytes]:
    """Return the photographs of GCompris, wallpapers of two desktops, and those of a puzzle."""
    drawings = "lang/"
    files = [x for name, x in gcompris(downloads).items() if not name.startswith(drawings)]
    for package, folder in WALLPAPERS.items():
        top = unpack(package, downloads) / "usr/share" / folder
        files += [path.read_bytes() for path in sorted(top.glob("*.jpg"))]
    return files


def write_statistics(downloads: Path) -> None:
    files = photographs(downloads)
    tensors: dict[str, np.ndarray] = {}
    for name in ("efficientnet-lite0", "efficientnet-lite2"):
        vectors, unreadable = extract_all(image_features(name), files)
        assert not unreadable
        statistics = ImageStatistics.from_features(vectors)
        tensors[f"{name}.mean"] = statistics.mean.astype(np.float16)
        tensors[f"{name}.distance"] = np.array([statistics.distance], np.float32)
        print(f"{name}: {len(files)} photographs, mean distance {statistics.distance:.2f}")
    write_tensors(STATISTICS, tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--downloads", type=Path, default=Path("downloads"))
    parser.add_argument("--statistics", action="store_true")
    options = parser.parse_args()
    if options.statistics:
        write_statistics(options.downloads)
        return
    classes, wordnet = class_order(options.downloads), open_wordnet(options.downloads)
    groups = group_members(wordnet, classes)
    content = {
        "license": wordnet_license(wordnet),
        "classes": [describe(wordnet, sense) for sense in classes],
        "groups": [describe(wordnet, s) | {"members": rows} for s, rows in groups.items()],
    }
    lines = json.dumps(content, ensure_ascii=False).replace('}, {"id"', '},\n{"id"')
    OUT.write_text(lines + "\n", encoding="utf-8")
    print(f"{len(classes)} classes and {len(groups)} groups in {OUT}")


if __name__ == "__main__":
    main()
