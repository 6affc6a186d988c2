"""A run on a read-only or full disk can be searched, and writing to it fails with a clear error."""

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
with SearchEngine.open(run) as engine:
    hits = [hit.item.id for hit in engine.similar_to_text("a boat", 5, "texts")]
try:
    SearchEngine.open(run, writable=True)
except TranshashError as error:
    print(json.dumps([hits, str(error), len(verify_run(run))]))
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
def test_a_run_on_a_read_only_disk_can_be_searched_but_not_written(run: Path) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection(["boat", "cat"], ["a boat with sails", "the cat sleeps"]))
    (run / "script.py").write_text(SCRIPT)
    mount = f"mount --bind {run} {run} && mount -o remount,ro,bind {run}"
    result = subprocess.run(
        [*OWN_MOUNT, "sh", "-c", f"{mount} && {sys.executable} {run}/script.py {run}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    hits, message, findings = json.loads(result.stdout)
    assert sorted(hits) == ["boat", "cat"]
    assert "catalog.sqlite cannot be written" in message
    assert "permissions" in message
    assert findings == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own: run as root on Linux")
def test_index_on_a_full_disk_fails_with_an_error_that_names_the_file(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(INDEX)
    rows = [f"note-{i},a boat with sails {'x' * 200} {i}" for i in range(6000)]
    (tmp_path / "notes.csv").write_text("\n".join(["id,text", *rows]))
    disk = tmp_path / "disk"
    disk.mkdir()
    index = f"{sys.executable} {tmp_path}/script.py {disk}/run {tmp_path}/notes.csv; echo $?"
    commands = (
        f"mount -t tmpfs -o size=1m tmpfs {disk} && cp -r {run} {disk}/run && {index}; "
        f"mount -o remount,size=30m {disk}; {index}"
    )
    result = subprocess.run([*OWN_MOUNT, "sh", "-c", commands], capture_output=True, text=True)
    stderr = " ".join(result.stderr.split())
    assert "Traceback" not in stderr
    assert "catalog.sqlite cannot be written (database or disk is full)" in stderr
    codes = [word for word in result.stdout.split() if word in ("0", "1", "2")]
    assert codes[0] == "2"
    assert codes[-1] == "0"  # with more space the same command succeeds
    assert "6,000 texts" in " ".join(result.stdout.split())
