"""Cut the power of a process: drop what it did not sync. Nothing acknowledged may be lost.

    python tests/fault_injection/power_loss.py --states 200

A process changes an index and votes, fits, exports or makes backups, and reports each finished
step. strace records its file operations. From the recording, the disk is built as it may be after a
power failure at a random call: with what was synced, and a random part of everything else (pages of
4 KiB, sizes, names). The product then opens it: what was reported is there, and nothing is corrupt
without an error. strace is a Debian package.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backup_faults import change, found_in, state_after, texts_in
from file_recording import Call, Disk, descriptor, record, strings, write_files

from small_run import copy_small_run
from transhash.data.collection import Collection
from transhash.errors import TranshashError
from transhash.export import export_items
from transhash.features.images import image_features
from transhash.hashers import make_hasher
from transhash.model.encoder import Encoder
from transhash.search.backup import backup_run, restore_run
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage
from transhash.search.verify import verify_run
from transhash.storage import file_digest
from transhash.training.fit import Fit, read_fit_data

SHARES = (0.0, 0.1, 0.5, 0.9)  # of what was not synced
Report = Callable[[str], object]


class Tally(NamedTuple):
    states: int
    calls: int
    acknowledged: int
    refused: int  # states that the product refused with a message, before anything was reported


# ---- what the process does, and what must hold for every state of its disk ----


def change_index(disk: Path, report: Report) -> None:
    """Change a run that has no index yet; each step becomes a generation after a few."""
    with SearchEngine.open(disk / "run", writable=True) as engine:
        engine.indexes["texts"].flush_at = 25  # type: ignore[attr-defined]
        for step in range(30):
            texts, removed = change(step)
            if texts:
                engine.add_texts(Collection(list(texts), list(texts.values())))
            engine.remove("texts", removed)
            report(str(step))


def check_index(disk: Path, reported: list[str]) -> None:
    run, last = disk / "run", int(reported[-1]) if reported else -1
    possible = [state_after({}, 0, last), state_after({}, 0, last + 1)]
    if reported:
        with SearchEngine.open(run) as engine:
            seen = found_in(engine)
        kept = possible[0].items() & possible[1].items()  # whatever became of the step in progress
        assert kept <= seen.items(), f"a reader misses {len(kept - seen.items())} texts"
    with SearchEngine.open(run, writable=True) as engine:  # finishes what was in progress
        found = found_in(engine)
    texts = texts_in(run)
    assert texts in possible, f"{len(texts)} texts after step {last}"
    assert found.keys() == texts.keys(), "search and catalog differ"
    assert verify_run(run) == []


def vote(disk: Path, report: Report) -> None:
    store = FeedbackStore(disk / "run")
    for step in range(20):
        image = VotedImage(bytes([step % 12]) * 16, "red.png", None, b"small" * 500)
        store.put(StoredVote(image, "a red boat", step % 2))
        report(f"put {step % 12} {step % 2}")
        if step % 5 == 4:
            store.delete(bytes([step % 12]) * 16, "a red boat")
            report(f"delete {step % 12}")


def check_votes(disk: Path, reported: list[str]) -> None:
    expected: dict[int, int] = {}
    states = [dict(expected)]
    for step in range(20):  # all states in order, one per report
        expected[step % 12] = step % 2
        states.append(dict(expected))
        if step % 5 == 4:
            del expected[step % 12]
            states.append(dict(expected))
    store = FeedbackStore(disk / "run")
    votes = {vote.image.digest[0]: vote.vote for vote in store.all()}
    possible = states[len(reported) : len(reported) + 2]
    assert votes in possible, f"{votes} after {len(reported)} reports"
    assert store.find_corruption() == []


def fit(disk: Path, report: Report) -> None:
    inputs = read_fit_data(disk / "captions.csv")
    for number in range(2):  # the second time over the first
        hasher, features = make_hasher("CVH", bits=16), image_features("efficientnet-lite0")
        run = disk / "runs" / "new"
        Fit(hasher, "CVH", run, features, "bag-of-words", validate=False).run_files(inputs)
        report(str(number))


def check_fit(disk: Path, reported: list[str]) -> None:
    if (disk / "runs/new/config.json").exists() or reported:
        codes = Encoder.load(disk / "runs/new").encode_texts(["a red boat"])
        assert codes == Encoder.load(disk / "run").encode_texts(["a red boat"])


def export(disk: Path, report: Report) -> None:
    for store, name in (("npy", "codes"), ("faiss", "flat"), ("parquet", "codes.parquet")):
        for _ in range(2):  # the second time over the first
            export_items(disk / "run", store, str(disk / "exports" / name))
            report(name)


def check_export(disk: Path, reported: list[str]) -> None:
    reference = disk.parent / "reference"
    if not reference.exists():
        for store, name in (("npy", "codes"), ("faiss", "flat"), ("parquet", "codes.parquet")):
            export_items(disk / "run", store, str(reference / name))
    for name in {"codes", "flat", "codes.parquet"}:
        path, expected = disk / "exports" / name, reference / name
        assert path.exists() or name not in reported, f"{name} is missing"
        if path.is_dir():
            found = {file.name: file_digest(file) for file in path.iterdir()}
            assert found == {file.name: file_digest(file) for file in expected.iterdir()}, name
        elif path.exists():
            assert file_digest(path) == file_digest(expected), name


def back_up(disk: Path, report: Report) -> None:
    run, file = disk / "run", disk / "backups" / "mine.tar"
    backup_run(run, file)
    report("first")
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["a kite on a string"])
    backup_run(run, file)
    report("second")
    restore_run(file, disk / "restored" / "run")
    report("restored")


def check_backup(disk: Path, reported: list[str]) -> None:
    file, restored = disk / "backups" / "mine.tar", disk / "restored" / "run"
    assert file.exists() or not reported
    if file.exists():
        restore_run(file, disk / "again")
        has_new = len(SearchEngine.open(disk / "again")) > 5
        assert has_new or "second" not in reported
    assert restored.exists() or "restored" not in reported
    if restored.exists():
        assert verify_run(restored) == []


SCENARIOS = {
    "index": (change_index, check_index),
    "votes": (vote, check_votes),
    "fit": (fit, check_fit),
    "export": (export, check_export),
    "backup": (back_up, check_backup),
}


# ---- the power failures ----


def cut_power(base: Path, name: str, states: int, seed: int = 1) -> Tally:
    """Record a scenario once, then check `states` disks after a power failure."""
    _, check = SCENARIOS[name]
    disk, acknowledgments = base / "disk", base / "reports"
    copy_small_run(disk, indexed=name != "index")
    for path in disk.rglob("*-shm"):
        path.unlink()
    before = Disk(disk)
    command = [sys.executable, __file__, "--work", name, str(base)]
    calls = record(command, base, base / "log")
    chance, refused = random.Random(seed), 0
    reports = [number for number, call in enumerate(calls) if _report(call, acknowledgments)]
    assert reports, "nothing was reported"
    writes = [n for n, call in enumerate(calls) if call.name not in ("lseek",)]
    ends = chance.sample(writes, min(states - len(reports), len(writes)))
    ends = sorted([*ends, *(number + 1 for number in reports)])
    done, reported = 0, []
    for number, end in enumerate(ends):
        for call in calls[done:end]:
            if report := _report(call, acknowledgments):
                reported.append(report)
            else:
                before.apply(call)
        done = max(done, end)
        target = base / f"state-{number}"
        share = chance.choice(SHARES)
        write_files(target / "disk", before.after_power_loss(chance, share).items())
        try:
            check(target / "disk", reported)
        except TranshashError as error:
            if reported:
                raise AssertionError(f"{name}, call {end}, {share}: {error}") from None
            refused += 1
        except AssertionError as error:
            raise AssertionError(f"{name}, call {end}, share {share}: {error}") from None
        shutil.rmtree(target)
    for call in calls[done:]:
        if not _report(call, acknowledgments):
            before.apply(call)
    _check_recording(before, disk)
    return Tally(len(ends), len(calls), len(reports), refused)


def _report(call: Call, acknowledgments: Path) -> str:
    """Return what the process reported by this call, or nothing."""
    if call.name == "write" and descriptor(call.arguments[0])[1] == acknowledgments:
        return strings(call)[0].decode()
    return ""


def _check_recording(recorded: Disk, disk: Path) -> None:
    """Fail if the recording missed an operation."""
    actual = {
        path.relative_to(disk).as_posix(): path.read_bytes()
        for path in disk.rglob("*")
        if path.is_file()
    }
    files = recorded.files()
    for name in sorted(files.keys() | actual.keys()):
        if not name.endswith("-shm"):
            assert files.get(name) == actual.get(name), f"the recording of {name} is incomplete"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), action="append")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        name, base = options.work[0], Path(options.work[1])
        reports = os.open(base / "reports", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        SCENARIOS[name][0](base / "disk", lambda text: os.write(reports, text.encode()))
        return
    for name in options.scenario or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder).resolve()
            print(name, cut_power(base, name, options.states, options.seed), flush=True)


if __name__ == "__main__":
    main()
