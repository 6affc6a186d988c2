"""A service that syncs its sources, on request and by itself, while it is searched and changed."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from scale.command import Command
from transhash.errors import EngineError
from transhash.search.engine import SearchEngine
from transhash.search.verify import verify_run
from transhash.service import create_app, search_service, sync_job
from transhash.service.limits import ChangeLock
from transhash.service.schemas import SyncResult
from transhash.service.search_service import ReloadingEngine, SearchService
from transhash.service.sync_job import SyncJob

from .server_process import ServerProcess
from .small_run import LOCAL

KEY = {"X-API-Key": "write-key"}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"a boat and {number} cats")
    return folder


def start(run: Path, *sources: Path, seconds: float | None = None) -> Iterator[TestClient]:
    with SearchEngine.open(run, writable=True) as engine:
        app = create_app(engine, write_key="write-key", sync_sources=sources, sync_seconds=seconds)
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
            yield client


@pytest.fixture
def client(run_copy: Path, notes: Path, tmp_path: Path) -> Iterator[TestClient]:
    yield from start(run_copy, notes, tmp_path / "photos")


@pytest.fixture
def watching(run_copy: Path, notes: Path) -> Iterator[TestClient]:
    yield from start(run_copy, notes, seconds=0.05)


def wait(client: TestClient, is_met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        status: dict[str, Any] = client.get("/api/sync").json()
        if is_met(status):
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.01)


def texts(client: TestClient) -> set[str]:
    query = {"q": "a boat", "modality": "texts", "k": 200}
    return {hit["id"] for hit in client.get("/api/search/text", params=query).json()["hits"]}


def test_the_service_syncs_when_it_starts_and_on_request(
    client: TestClient, notes: Path, tmp_path: Path
) -> None:
    status = wait(client, lambda status: status["syncs"] == 1)
    assert status["sources"] == ["notes", "photos"]
    assert (status["last"]["added"], status["last"]["removed"]) == (3, 0)
    assert status["last"]["error"].startswith("photos does not exist")
    assert str(tmp_path) not in str(status)
    assert {"0.txt", "1.txt", "2.txt"} <= texts(client)

    (tmp_path / "photos").mkdir()
    Image.new("RGB", (24, 16), "red").save(tmp_path / "photos" / "new.png")
    (notes / "0.txt").unlink()
    (notes / "1.txt").write_text("something else, but a boat")
    assert client.post("/api/sync").status_code == 401
    assert client.post("/api/sync", headers=KEY).status_code == 202
    last = wait(client, lambda status: status["syncs"] == 2)["last"]
    assert {name: last[name] for name in ("added", "updated", "removed", "error")} == {
        "added": 1, "updated": 1, "removed": 1, "error": None,
    }  # fmt: skip
    assert "0.txt" not in texts(client)


def test_a_changed_folder_is_noticed_without_a_request(watching: TestClient, notes: Path) -> None:
    wait(watching, lambda status: status["syncs"] == 1)
    (notes / "new.txt").write_text("a new boat")
    (notes / "0.txt").unlink()
    # Not by the result: another sync, which removes nothing, may follow at once.
    names = {"new.txt", "0.txt"}
    wait(watching, lambda _: texts(watching) & names == {"new.txt"})


def test_an_emptied_folder_removes_nothing_and_says_so(watching: TestClient, notes: Path) -> None:
    wait(watching, lambda status: status["syncs"] == 1)
    hidden = notes.with_name("hidden")
    notes.rename(hidden)
    status = wait(watching, lambda status: status["last"]["error"] is not None)
    assert "--allow-shrink" in status["last"]["error"]
    assert {"0.txt", "1.txt", "2.txt"} <= texts(watching)
    hidden.rename(notes)
    assert wait(watching, lambda status: status["last"]["error"] is None)


def test_a_bad_source_is_reported_and_does_not_stop_the_others(
    run_copy: Path, notes: Path, tmp_path: Path
) -> None:
    cut, photos, more = tmp_path / "cut.csv", tmp_path / "photos", tmp_path / "more.csv"
    broken, table = tmp_path / "broken", tmp_path / "table.parquet"
    photos.mkdir()
    broken.mkdir()
    for number in range(6):
        Image.new("RGB", (24, 16), (40 * number, 9, 90)).save(photos / f"{number}.png")
    rows = ["id,text", *(f"c{number},a cat and {number} boats" for number in range(9))]
    cut.write_text("\n".join(rows) + "\n")
    more.write_text("id,text\nmore,a boat\n")
    sources = (notes, photos, cut, more, broken, table)
    for client in start(run_copy, *sources):
        before = wait(client, lambda status: status["syncs"] == 1)["last"]
        assert before["added"] == 3 + 6 + 9 + 1
        shutil.rmtree(notes)
        cut.write_text("\n".join(rows)[:-30])  # the disk was full
        for number in range(4):
            (photos / f"{number}.png").unlink()
        (broken / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        table.write_bytes(b"PAR1 cut off")
        more.write_text("id,text\nnew,a boat at night\n")
        client.post("/api/sync", headers=KEY)
        last = wait(client, lambda status: status["syncs"] == 2)["last"]
        assert (last["added"], last["removed"]) == (1, 1)
        for name in ("notes is missing", "photos lost 4 of 6", "cut.csv may be cut", "table.parq"):
            assert name in last["error"]
        assert "None of the 1 images can be read" in last["error"]
        assert str(tmp_path) not in last["error"]
        assert {"0.txt", "c8", "new"} <= texts(client)
        assert "more" not in texts(client)
    assert verify_run(run_copy) == []


def test_a_file_that_moved_to_a_source_that_is_not_synced_is_not_removed(
    run_copy: Path, notes: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number in range(4):
        (other / f"o{number}.txt").write_text(f"a cat and {number} boats")
    for client in start(run_copy, notes, other):
        wait(client, lambda status: status["syncs"] == 1)
        (notes / "2.txt").rename(other / "2.txt")
        for number in range(3):
            (other / f"o{number}.txt").unlink()
        client.post("/api/sync", headers=KEY)
        last = wait(client, lambda status: status["syncs"] == 2)["last"]
        assert "other lost 2 of 4" in last["error"]
        assert (last["added"], last["removed"]) == (0, 0)
        assert {"0.txt", "1.txt", "2.txt", "o0.txt"} <= texts(client)


def test_votes_and_texts_are_accepted_during_a_sync(
    run_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, proceed, track = tmp_path / "many.csv", threading.Event(), SyncJob.track
    rows = [f"m{number},a boat and {number} cats" for number in range(3000)]
    many.write_text("\n".join(["id,text", *rows]) + "\n")

    def track_and_wait(
        self: SyncJob, items: Any, description: str, total: int | None = None, start: int = 0
    ) -> Any:
        for done, item in enumerate(track(self, items, description, total, start)):
            if "indexing" in description and done == 2000:  # between two batches
                assert proceed.wait(60)
            yield item

    monkeypatch.setattr(SyncJob, "track", track_and_wait)
    for client in start(run_copy, many):
        wait(client, lambda status: status["running"] and (status["done"] or 0) >= 2000)
        assert client.get("/api/sync").json()["total"] == 3000
        hits = client.get("/api/search/text", params={"q": "a boat"}).json()["hits"]
        vote = {"image": hits[0]["number"], "text": {"text": "a boat"}, "vote": 1}
        assert client.post("/api/votes", json=vote, headers=KEY).status_code == 200
        new = {"texts": [{"text": "a boat at night", "id": "mine"}]}
        added = client.post("/api/items/texts", json=new, headers=KEY)
        assert added.status_code == 201
        number = added.json()["items"][0]["number"]
        assert client.delete(f"/api/items/{number}", headers=KEY).status_code == 200
        assert client.get("/api/sync").json()["running"]
        proceed.set()
        last = wait(client, lambda status: status["syncs"] == 1)["last"]
        assert (last["added"], last["error"]) == (3000, None)
    assert verify_run(run_copy) == []


def test_a_service_without_sources_has_no_sync(client: TestClient, run: Path) -> None:
    assert client.get("/api/about").json()["sync"] is True
    with SearchEngine.open(run) as engine, TestClient(create_app(engine), LOCAL) as other:
        assert other.get("/api/about").json()["sync"] is False
        assert other.get("/api/sync").status_code == 404


def test_a_change_inside_a_change_excludes_others_until_both_have_ended() -> None:
    lock, order = ChangeLock(), []

    def change() -> None:
        with lock.write():
            order.append("other")

    with lock.write():
        with lock.write():
            thread = threading.Thread(target=change)
            thread.start()
        time.sleep(0.05)
        order.append("outer")
    thread.join()
    assert order == ["outer", "other"]


@pytest.mark.slow
def test_commands_that_change_a_served_run_say_which_process_serves_it(
    run_copy: Path,
    notes: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = Command(capsys, monkeypatch)
    with ServerProcess(run_copy, "--sync", str(notes), write_key="write-key") as server:
        for arguments in (
            ("sync", run_copy, notes),
            ("index", run_copy, "--texts", notes),
            ("remove", run_copy, "--texts", "0.txt"),
            ("serve", run_copy, "--port", "0", "--writable"),
        ):
            message = command.refused(*arguments)
            assert f"served by process {server.process.pid} at {server.url}" in message
            assert "stop it" in message
        with pytest.raises(EngineError, match="served by process"):
            SearchEngine.open(run_copy, writable=True)
        SearchEngine.open(run_copy).close()  # reading is allowed
        server.kill()
    command("sync", run_copy, notes)  # a killed service does not hold the run
    assert os.path.exists(run_copy / "service.lock")


def test_a_sync_that_failed_is_repeated_at_the_next_interval(
    run_copy: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_items, failures = sync_job.add_items, [EngineError("the disk is full")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return add_items(*arguments)

    monkeypatch.setattr(sync_job, "add_items", fail_once)
    for client in start(run_copy, notes, seconds=0.05):
        status = wait(client, lambda status: status["syncs"] == 2)
        assert (status["last"]["added"], status["last"]["error"]) == (3, None)
        time.sleep(0.3)
        assert client.get("/api/sync").json()["syncs"] == 2  # and not again


def test_a_sync_that_keeps_failing_is_repeated_less_and_less_often(
    run_copy: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise EngineError("the disk is full")

    monkeypatch.setattr(sync_job, "add_items", fail)
    for client in start(run_copy, notes, seconds=0.02):
        wait(client, lambda status: status["syncs"] >= 3)
        time.sleep(0.8)
        assert client.get("/api/sync").json()["syncs"] <= 7  # of 40 intervals


def test_a_sync_that_was_stopped_is_continued_when_the_service_starts_again(
    run_copy: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_sync, begun, results = sync_job.plan_sync, threading.Event(), queue.Queue[SyncResult]()

    def plan_until_stopped(*arguments: Any) -> Any:
        begun.set()
        while not job._stopping:
            time.sleep(0.01)
        return plan_sync(*arguments)

    with SearchEngine.open(run_copy, writable=True) as engine:
        service = SearchService(ReloadingEngine(engine))
        job = SyncJob(service, [notes], None, results.put)
        monkeypatch.setattr(sync_job, "plan_sync", plan_until_stopped)
        job.start()
        assert begun.wait(60)
        job.stop()
        assert results.empty()
        assert not job.status().running
        monkeypatch.setattr(sync_job, "plan_sync", plan_sync)
        job.start()
        assert results.get(timeout=60).added == 3
        job.stop()
        service.close()


def test_a_restored_run_is_synced_again(
    run_copy: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_service, "_RETRY_SECONDS", 0.0)
    backup = Path(shutil.copytree(run_copy, run_copy.with_name("backup")))
    reopen = partial(SearchEngine.open, run_copy, writable=True)
    with reopen() as engine:
        app = create_app(
            engine, write_key="write-key", sync_sources=[notes], sync_seconds=0.05, reopen=reopen
        )
        with TestClient(app, base_url=LOCAL) as client:
            wait(client, lambda status: status["syncs"] >= 1)
            run_copy.rename(run_copy.with_name("away"))
            backup.rename(run_copy)
            last = wait(client, lambda status: not status["last"]["error"] and status["syncs"] > 1)
            assert last["last"]["added"] == 3
            assert "0.txt" in texts(client)
