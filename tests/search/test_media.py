"""A run on a read-only or full medium: it is searched, and a writer is told what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transhash.data.collection import Collection
from transhash.search.engine import SearchEngine

OWN_MOUNT = ("unshare", "--mount")
SCRIPT = """
import json, sys
from pathlib import Path
from transhash.errors import TranshashError
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run
run = Path(sys.argv[1])
engine = SearchEngine.open(run)
found = [hit.item.id for hit in engine.similar_to_text("a boat", 5, "texts")]
engine.close()
try:
    SearchEngine.open(run, writable=True)
except TranshashError as error:
    print(json.dumps([found, str(error), len(verify_run(run))]))
"""


INDEX = """
import sys
from transhash.cli import main
sys.argv = ["transhash", "index", sys.argv[1], "--texts", sys.argv[2]]
main()
"""


def can_mount() -> bool:
    try:
        return subprocess.run([*OWN_MOUNT, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own: run as root on Linux")
def test_a_run_on_a_read_only_medium_is_searched_and_a_writer_told_why(run: Path) -> None:
    engine = SearchEngine.open(run, writable=True)
    engine.add_texts(Collection(["boat", "cat"], ["a boat with sails", "the cat sleeps"]))
    engine.close()
    (run / "script.py").write_text(SCRIPT)
    mount = f"mount --bind {run} {run} && mount -o remount,ro,bind {run}"
    done = subprocess.run(
        [*OWN_MOUNT, "sh", "-c", f"{mount} && {sys.executable} {run}/script.py {run}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found, refusal, damage = json.loads(done.stdout)
    assert sorted(found) == ["boat", "cat"]
    assert "catalog.sqlite cannot be written" in refusal
    assert "permissions" in refusal
    assert "anew" not in refusal
    assert damage == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own: run as root on Linux")
def test_a_full_disk_stops_index_with_a_sentence_that_names_the_file(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(INDEX)
    rows = [f"note-{i},a boat with sails and much to say {'x' * 200} {i}" for i in range(6000)]
    (tmp_path / "notes.csv").write_text("\n".join(["id,text", *rows]))
    disk = tmp_path / "disk"
    disk.mkdir()
    index = f"{sys.executable} {tmp_path}/script.py {disk}/run {tmp_path}/notes.csv; echo $?"
    commands = (
        f"mount -t tmpfs -o size=1m tmpfs {disk} && cp -r {run} {disk}/run && {index}; "
        f"mount -o remount,size=30m {disk}; {index}"
    )
    done = subprocess.run([*OWN_MOUNT, "sh", "-c", commands], capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert "Traceback" not in said
    assert "catalog.sqlite cannot be written (database or disk is full)" in said
    codes = [word for word in done.stdout.split() if word in ("0", "1", "2")]
    assert codes[0] == "2"
    assert codes[-1] == "0"  # with more space the same command goes on
    assert "6,000 texts are searchable" in " ".join(done.stdout.split())
