"""Write the files that a release can read into tests/release-files/VERSION.tar.gz.

    python tests/release_files.py

Once per release that changes a format. tests/test_release_files.py reads the files of every
release since 0.2.0, from which on formats stay readable.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import transhash
from small_run import copy_small_run
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage

FOLDER = Path(__file__).parent / "release-files"
QUERIES = ("a red boat", "the cat sleeps")


def transhash_command(*arguments: str | Path, folder: Path) -> None:
    command = [sys.executable, "-m", "transhash", *map(str, arguments)]
    subprocess.run(command, cwd=folder, check=True)


def search(run: Path) -> dict[str, Any]:
    """Return what each query finds, images and texts, by id and distance."""
    with SearchEngine.open(run) as engine:
        return {
            query: {
                modality: [
                    [hit.item.id, hit.distance]
                    for hit in engine.similar_to_text(query, k=5, modality=modality)
                ]
                for modality in ("images", "texts")
            }
            for query in QUERIES
        }


def build(folder: Path) -> None:
    """Write a run of THN with index and votes, its backup, code shards and a saved hasher."""
    copy_small_run(folder)
    shutil.rmtree(folder / "run")
    options = ["--auxiliary", "captions.csv", "--bits", "16", "--no-concepts"]
    options += ["--text-features", "words"]
    for method, out in (("thn", "run"), ("cvh", "cvh")):
        inputs = ["--images", "photos", "--texts", "notes.txt"] if method == "thn" else []
        transhash_command("fit", method, *options, *inputs, "--out", out, folder=folder)
    items = ["--images", "captioned", "--images", "photos", "--texts", "notes.txt"]
    transhash_command("index", "run", *items, "--texts", "named.csv", folder=folder)
    transhash_command("remove", "run", "--images", "red-0.png", folder=folder)
    transhash_command("encode", "run", "--texts", "named.csv", "--out", "codes", folder=folder)
    with SearchEngine.open(folder / "run") as engine:
        image = next(iter(engine.similar_to_text(QUERIES[0], k=1))).item
        vote = StoredVote(VotedImage.from_item(engine.catalog, image), QUERIES[0], 1)
        FeedbackStore(folder / "run").put(vote)
    transhash_command("backup", "run", "run.tar", folder=folder)
    expected = {"version": transhash.__version__, "search": search(folder / "run")}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "files"
        build(folder)
        FOLDER.mkdir(exist_ok=True)
        path = FOLDER / f"{transhash.__version__}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, ".", filter=without_owner)
    print(f"{path.name}: {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
