"""The run's folder goes away, the disk fills up, the engine is slow: said, and over when it is."""

from __future__ import annotations

import asyncio
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.service import create_app, server

from .small_run import EACH, LOCAL, picture


@contextmanager
def client_of(run: Path, *, writable: bool) -> Iterator[TestClient]:
    """As serve_run puts it together."""
    reopen = partial(SearchEngine.open, run, writable=writable)
    engine = reopen()
    app = create_app(engine, writable=writable, api_key="key", reopen=reopen)
    headers = {"X-API-Key": "key"}
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False, headers=headers) as client:
        yield client
    engine.close()


def add(client: TestClient, item_id: str) -> httpx.Response:
    return client.post("/api/items/texts", json={"texts": [{"text": "a boat", "id": item_id}]})


def stored(run: Path, item_id: str) -> bool:
    """Whether a service started now would find it."""
    engine = SearchEngine.open(run)
    item = engine.catalog.find("texts", item_id)
    found = item is not None and item.number in engine.indexes["texts"].export()[0]
    engine.close()
    return found


@pytest.mark.parametrize("writable", [False, True])
def test_a_folder_that_is_moved_away_makes_it_unready_until_it_is_back(
    own_run: Path, writable: bool
) -> None:
    with client_of(own_run, writable=writable) as client:
        assert client.get("/ready").status_code == 200
        away = own_run.rename(own_run.with_name("away"))
        for path in ("/ready", "/api/search/text?q=boat", "/api/items/1", "/api/about"):
            refused = client.get(path)
            assert refused.status_code == 503
            assert "files of this run are gone" in refused.json()["error"]
            assert str(own_run) not in refused.text
        assert client.get("/health").status_code == 200
        away.rename(own_run)
        assert client.get("/ready").status_code == 200
        assert client.get("/api/search/text?q=boat").json()["hits"]


def test_nothing_is_acknowledged_that_went_into_a_deleted_folder(own_run: Path) -> None:
    with client_of(own_run, writable=True) as client:
        number = add(client, "before").json()["items"][0]["number"]
        shutil.rmtree(own_run)
        assert add(client, "lost").status_code == 503
        assert client.post("/api/items/images", files={"image": picture()}).status_code == 503
        assert client.delete(f"/api/items/{number}").status_code == 503
        assert not own_run.exists()


@pytest.mark.parametrize("gone", ["catalog.sqlite", "index", "index/texts/index.json"])
def test_a_part_that_is_gone_is_noticed_too(own_run: Path, gone: str) -> None:
    with client_of(own_run, writable=True) as client:
        (own_run / gone).rename(own_run / "away")
        assert add(client, "lost").status_code == 503
        assert client.get("/ready").status_code == 503
        (own_run / "away").rename(own_run / gone)
        assert client.get("/ready").status_code == 200
        assert add(client, "kept").status_code == 201
    assert stored(own_run, "kept")


@pytest.mark.parametrize("writable", [False, True])
def test_a_folder_that_is_replaced_is_opened_anew(
    run: Path, own_run: Path, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AGAIN", 0.0)
    with client_of(own_run, writable=writable) as client:
        assert client.get("/api/about").json()["images"] == EACH
        shutil.rmtree(own_run)
        assert client.get("/ready").status_code == 503
        half = shutil.copytree(run, own_run)
        (half / "hasher.safetensors").unlink()
        assert client.get("/ready").status_code == 503
        shutil.copy(run / "hasher.safetensors", half)
        assert client.get("/ready").status_code == 200
        assert client.get("/api/about").json()["images"] == EACH
        if writable:
            assert add(client, "kept").status_code == 201
            assert stored(own_run, "kept")


def test_the_first_files_are_opened_anew_after_others_in_their_place_were_refused(
    own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AGAIN", 0.0)
    with client_of(own_run, writable=True) as client:
        catalog = own_run / "catalog.sqlite"
        away = catalog.rename(own_run / "away")
        catalog.touch()
        assert client.get("/ready").status_code == 503
        away.replace(catalog)
        assert client.get("/ready").status_code == 200
        assert add(client, "kept").status_code == 201
    assert stored(own_run, "kept")


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow: what a full disk does, without filling one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_sentence_and_nothing_is_acknowledged(own_run: Path) -> None:
    with client_of(own_run, writable=True) as client:
        add(client, "before")
        with full_disk():
            refused = add(client, "lost")
            searched = client.get("/api/search/text?q=boat")
        assert refused.status_code == 503
        assert "cannot do this now" in refused.json()["error"]
        assert searched.status_code == 200
        assert add(client, "after").status_code == 201
    assert stored(own_run, "before")
    assert not stored(own_run, "lost")
    assert stored(own_run, "after")


class SlowToCount:
    """An index whose server takes its time to count."""

    def __init__(self, index: object, release: threading.Event) -> None:
        self._index, self._release = index, release

    def __len__(self) -> int:
        self._release.wait(30)
        return len(self._index)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._index, name)


def test_a_slow_count_holds_up_nobody_else(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    slow = SlowToCount(engine.indexes["images"], release)
    monkeypatch.setitem(engine.indexes, "images", slow)  # type: ignore[arg-type]
    app = create_app(engine)

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            waiting = [asyncio.create_task(client.get("/api/about")) for _ in range(100)]
            while not app.state.service.counting.pending:
                await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/api/search/text?q=cat&among=texts")).status_code == 200
            figures = await client.get("/metrics")  # without the count, rather than not at all
            assert "transhash_http_requests_total{" in figures.text
            assert "transhash_items{" not in figures.text
            assert not any(task.done() for task in waiting)
            release.set()
            replies = await asyncio.gather(*waiting)
            assert {reply.json()["images"] for reply in replies} == {EACH}

    asyncio.run(ask())


def test_invented_methods_and_paths_do_not_make_the_figures_grow(engine: SearchEngine) -> None:
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
