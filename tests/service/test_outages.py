"""Missing run folders, full disks and slow indexes: reported, and recovered from."""

from __future__ import annotations

import asyncio
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.search.hits import Hits
from transhash.service import create_app, search_service

from .small_run import ITEMS, LOCAL, image_bytes


@contextmanager
def client_of(run: Path, *, writable: bool) -> Iterator[TestClient]:
    """Yield a client of the application that serve_run would start."""
    reopen = partial(SearchEngine.open, run, writable=writable)
    engine = reopen()
    app = create_app(engine, writable=writable, write_key="key", reopen=reopen)
    headers = {"X-API-Key": "key"}
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False, headers=headers) as client:
        yield client
    engine.close()


def add(client: TestClient, item_id: str) -> httpx.Response:
    return client.post("/api/items/texts", json={"texts": [{"text": "a boat", "id": item_id}]})


def is_stored(run: Path, item_id: str) -> bool:
    """Return whether a service started now would find the item."""
    engine = SearchEngine.open(run)
    item = engine.catalog.find("texts", item_id)
    is_indexed = item is not None and item.number in engine.indexes["texts"].export()[0]
    engine.close()
    return is_indexed


@pytest.mark.parametrize("writable", [False, True])
def test_a_missing_run_folder_makes_the_service_unready_until_it_is_restored(
    run_copy: Path, writable: bool
) -> None:
    with client_of(run_copy, writable=writable) as client:
        assert client.get("/ready").status_code == 200
        away = run_copy.rename(run_copy.with_name("away"))
        for path in ("/ready", "/api/search/text?q=boat", "/api/items/1", "/api/about"):
            refused = client.get(path)
            assert refused.status_code == 503
            assert "files are missing" in refused.json()["error"]
            assert str(run_copy) not in refused.text
        assert client.get("/health").status_code == 200
        away.rename(run_copy)
        assert client.get("/ready").status_code == 200
        assert client.get("/api/search/text?q=boat").json()["hits"]


def test_changes_to_a_deleted_folder_are_not_acknowledged(run_copy: Path) -> None:
    with client_of(run_copy, writable=True) as client:
        number = add(client, "before").json()["items"][0]["number"]
        shutil.rmtree(run_copy)
        assert add(client, "lost").status_code == 503
        assert client.post("/api/items/images", files={"image": image_bytes()}).status_code == 503
        assert client.delete(f"/api/items/{number}").status_code == 503
        assert not run_copy.exists()


@pytest.mark.parametrize("part", ["catalog.sqlite", "index", "index/texts/index.json"])
def test_a_missing_part_is_noticed(run_copy: Path, part: str) -> None:
    with client_of(run_copy, writable=True) as client:
        (run_copy / part).rename(run_copy / "away")
        assert add(client, "lost").status_code == 503
        assert client.get("/ready").status_code == 503
        (run_copy / "away").rename(run_copy / part)
        assert client.get("/ready").status_code == 200
        assert add(client, "added").status_code == 201
    assert is_stored(run_copy, "added")


@pytest.mark.parametrize("writable", [False, True])
def test_a_replaced_folder_is_opened_again(
    run: Path, run_copy: Path, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_service, "_RETRY_SECONDS", 0.0)
    with client_of(run_copy, writable=writable) as client:
        assert client.get("/api/about").json()["images"] == ITEMS
        shutil.rmtree(run_copy)
        assert client.get("/ready").status_code == 503
        half = shutil.copytree(run, run_copy)
        (half / "hasher.safetensors").unlink()
        assert client.get("/ready").status_code == 503
        shutil.copy(run / "hasher.safetensors", half)
        assert client.get("/ready").status_code == 200
        assert client.get("/api/about").json()["images"] == ITEMS
        if writable:
            assert add(client, "added").status_code == 201
            assert is_stored(run_copy, "added")


def test_restored_files_are_opened_again_after_wrong_ones_were_refused(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_service, "_RETRY_SECONDS", 0.0)
    with client_of(run_copy, writable=True) as client:
        catalog = run_copy / "catalog.sqlite"
        away = catalog.rename(run_copy / "away")
        catalog.touch()
        assert client.get("/ready").status_code == 503
        away.replace(catalog)
        assert client.get("/ready").status_code == 200
        assert add(client, "added").status_code == 201
    assert is_stored(run_copy, "added")


def test_a_search_during_which_the_run_was_replaced_is_repeated(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run_copy, run_copy.with_name("copy")))
    search = SearchEngine.similar_to_codes
    with client_of(run_copy, writable=True) as client:
        assert client.get("/ready").status_code == 200
        service = client.app.state.service  # type: ignore[attr-defined]

        def replace_run_and_search(engine: SearchEngine, *args: Any, **settings: Any) -> list[Hits]:
            if copy.exists():
                run_copy.rename(run_copy.with_name("away"))
                copy.rename(run_copy)
                assert service.engine is not engine
            return search(engine, *args, **settings)

        monkeypatch.setattr(SearchEngine, "similar_to_codes", replace_run_and_search)
        reply = client.get("/api/search/text?q=boat")
        assert reply.status_code == 200, reply.text
        assert reply.json()["hits"]


@contextmanager
def full_disk() -> Iterator[None]:
    """Keep files from growing, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_changes_are_not_acknowledged(run_copy: Path) -> None:
    with client_of(run_copy, writable=True) as client:
        add(client, "before")
        with full_disk():
            refused = add(client, "lost")
            searched = client.get("/api/search/text?q=boat")
        assert refused.status_code == 503
        assert "not available" in refused.json()["error"]
        assert searched.status_code == 200
        assert add(client, "after").status_code == 201
    assert is_stored(run_copy, "before")
    assert not is_stored(run_copy, "lost")
    assert is_stored(run_copy, "after")


class SlowIndex:
    """An index that takes long to count its items."""

    def __init__(self, index: object, release: threading.Event) -> None:
        self._index, self._release = index, release

    def __len__(self) -> int:
        self._release.wait(30)
        return len(self._index)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._index, name)


def test_a_slow_count_does_not_delay_other_requests(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    slow = SlowIndex(engine.indexes["images"], release)
    monkeypatch.setitem(engine.indexes, "images", slow)  # type: ignore[arg-type]
    app = create_app(engine)

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            waiting = [asyncio.create_task(client.get("/api/about")) for _ in range(100)]
            while not app.state.service.counting.pending:
                await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/api/search/text?q=cat&modality=texts")).status_code == 200
            metrics = await client.get("/metrics")  # without the count
            assert "transhash_http_requests_total{" in metrics.text
            assert "transhash_items{" not in metrics.text
            assert not any(task.done() for task in waiting)
            release.set()
            replies = await asyncio.gather(*waiting)
            assert {reply.json()["images"] for reply in replies} == {ITEMS}

    asyncio.run(ask())


def test_unknown_methods_and_paths_do_not_add_metrics(engine: SearchEngine) -> None:
    app = create_app(engine)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        for path in ("/health", "/nowhere", "/api/items/1"):
            client.request("OTHER", path)
        client.get("/metrics")
        before = len(client.get("/metrics").text.splitlines())
        for i in range(200):
            client.request(f"X{i}", ("/health", f"/nowhere/{i}", f"/api/items/{i}")[i % 3])
        after = client.get("/metrics").text
    assert len(after.splitlines()) == before
    assert 'method="other"' in after
