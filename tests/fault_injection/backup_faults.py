"""Back up a run while a process writes to it, and kill backups and restores.

    python tests/fault_injection/backup_faults.py --rounds 30

A writer adds, replaces and removes texts all the time and reports each finished step. A backup must
be the run after one step that was in progress meanwhile. Every second backup, and every second
restore, is killed: the older backup stays until a new one is complete, and a run folder appears
complete or not at all.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_run import copy_small_run
from transhash.data.collection import Collection
from transhash.search.backup import backup_run, restore_run
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run

WORDS = ("boat", "cat", "car", "tree", "house", "fish", "sails", "red", "blue", "sleeps")
IDS = 60


class Tally(NamedTuple):
    backups: int
    kills: int
    steps: int


def text_of(item: int, step: int) -> str:
    return " ".join(WORDS[(item * 7 + step * 3 + k * (step + 1)) % len(WORDS)] for k in range(4))


def change(step: int) -> tuple[dict[str, str], list[str]]:
    """Return the texts that a step adds or replaces, and the ids that it removes."""
    chance = random.Random(step)
    if step % 5 == 4:
        return {}, [f"t{chance.randrange(IDS)}"]
    items = chance.sample(range(IDS), chance.choice((1, 3, 20)))
    return {f"t{item}": f"{text_of(item, step)} {step}" for item in items}, []


def write_forever(run: Path, finished: int) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.indexes["texts"].flush_at = 50  # type: ignore[attr-defined]  # many generations
        for step in range(1_000_000):
            texts, removed = change(step)
            if texts:
                engine.add_texts(Collection(list(texts), list(texts.values())))
            engine.remove("texts", removed)
            os.pwrite(finished, step.to_bytes(8, "little"), 0)


def state_after(state: dict[str, str], first: int, last: int) -> dict[str, str]:
    """Return the texts after steps first to last."""
    state = dict(state)
    for step in range(first, last + 1):
        texts, removed = change(step)
        state |= texts
        for item in removed:
            state.pop(item, None)
    return state


def texts_in(run: Path) -> dict[str, str]:
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        rows = catalog.sources.list_items("texts")
        return {row.id: row.text or "" for row in rows if row.id.startswith("t")}


def found_in(engine: SearchEngine) -> dict[str, str | None]:
    """Return id and text of all texts that a search returns, the same in both search modes."""
    codes = engine.similar_to_text("a boat", 10**6, "texts", search="codes", collapse=False)
    texts = {hit.item.id: hit.item.text for hit in codes}
    hybrid = engine.similar_to_text("a boat", 10**6, "texts")
    copies = {item.id: item.text for hit in hybrid for item in (hit.item, *hit.duplicates)}
    # Of a change in progress, only the keyword index may have the item.
    assert texts.items() <= copies.items(), f"hybrid misses {texts.keys() - copies.keys()}"
    return texts


def start(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def run_and_kill(work: Callable[[], object], seconds: float | None) -> bool:
    """Do the work in a process and return whether it ended by itself."""
    pid = start(work)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"exit code {code}"
    return code == 0


def check_backups(folder: Path, rounds: int, seed: int = 3) -> Tally:
    run, file = copy_small_run(folder), folder / "backup.tar"
    chance, kills, duration = random.Random(seed), 0, 0.5
    steps = (folder / "steps").open("w+b")
    os.pwrite(steps.fileno(), (2**63).to_bytes(8, "little"), 0)
    writer = start(lambda: write_forever(run, steps.fileno()))

    def last_step() -> int:
        return int.from_bytes(os.pread(steps.fileno(), 8, 0), "little")

    try:
        while last_step() == 2**63:
            time.sleep(0.01)
        state: dict[str, str] = {}
        counted = -1
        earlier: bytes | None = None
        for number in range(rounds):
            state, counted = state_after(state, counted + 1, before := last_step()), before
            begin = time.monotonic()
            seconds = chance.uniform(0, duration) if number % 2 else None
            completed = run_and_kill(lambda: backup_run(run, file), seconds)
            after = last_step() + 1  # it may have been stored, but not reported yet
            kills += not completed
            if completed:
                duration = time.monotonic() - begin
            if not completed and file.exists() and file.read_bytes() == earlier:
                continue  # the older one is untouched
            assert file.exists() or not completed
            if not file.exists():
                continue
            earlier = file.read_bytes()
            restored = folder / f"restored-{number}"
            seconds = chance.uniform(0, 0.1) if number % 2 else None
            kills += not run_and_kill(partial(restore_run, file, restored), seconds)
            if not restored.exists():
                restore_run(file, restored)
            found = verify_run(restored)
            assert found == [], f"round {number}: {found}"
            possible = [state_after(state, before + 1, step) for step in range(before, after + 1)]
            assert texts_in(restored) in possible, f"round {number}: not a state of the run"
            with SearchEngine.open(restored) as engine:
                assert found_in(engine).keys() >= texts_in(restored).keys()
            shutil.rmtree(restored)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        steps.close()
    backup_run(run, file)  # removes what killed backups left over
    left = [path.name for path in folder.iterdir() if path.name.startswith(".backup.tar")]
    assert left == [], left
    return Tally(rounds, kills, last_step_of(folder))


def last_step_of(folder: Path) -> int:
    return int.from_bytes((folder / "steps").read_bytes(), "little")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(check_backups(Path(folder), options.rounds, options.seed))


if __name__ == "__main__":
    main()
