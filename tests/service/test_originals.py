"""Files of items: given where allowed, by number, and only while they are what was indexed."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from starlette.types import Message, Receive, Scope, Send

from transhash.search.catalog import Item
from transhash.search.engine import SearchEngine
from transhash.service import create_app
from transhash.service.diagnostics import RequestMetrics
from transhash.service.guard import ActiveRequests, Guard

from .served import Served
from .small_run import LOCAL, picture


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A large picture with metadata and a name that no header takes as it is."""
    path = tmp_path / "photos" / 'ein "Foto" über\r\nalles; x.PNG'
    path.parent.mkdir()
    path.write_bytes(picture("PNG", (2400, 1200)))
    return path


@pytest.fixture
def item(own_run: Path, photo: Path) -> Item:
    with SearchEngine.open(own_run, writable=True) as engine:
        done = engine.add_images(photo.parent)
        return engine.catalog.get(done.numbers)[done.numbers[0]]


@pytest.fixture
def giving(own_run: Path, item: Item) -> Iterator[TestClient]:
    with SearchEngine.open(own_run) as engine:
        app = create_app(engine, originals=True)
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
            yield client


def test_the_file_is_given_byte_by_byte_under_its_own_name(
    giving: TestClient, item: Item, photo: Path
) -> None:
    reply = giving.get(f"/api/items/{item.number}/original")
    assert reply.status_code == 200
    assert reply.content == photo.read_bytes()
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    name = "filename*=UTF-8''ein%20%22Foto%22%20%C3%BCber%0D%0Aalles%3B%20x.PNG"
    assert reply.headers["content-disposition"] == f"inline; {name}"
    kept = giving.get(f"/api/items/{item.number}/original", params={"download": "true"})
    assert kept.headers["content-disposition"] == f"attachment; {name}"


def test_the_larger_picture_has_its_pixels_and_nothing_else(giving: TestClient, item: Item) -> None:
    reply = giving.get(f"/api/items/{item.number}/picture")
    assert reply.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(reply.content)) as image:
        assert (image.format, image.size) == ("JPEG", (1600, 800))
        assert not image.getexif()
    tag = reply.headers["etag"]
    again = giving.get(f"/api/items/{item.number}/picture", headers={"If-None-Match": tag})
    assert again.status_code == 304


def test_without_permission_nothing_of_the_file_is_given(client: TestClient) -> None:
    number = client.get("/api/examples").json()["images"][0]["number"]
    for what in ("original", "picture"):
        reply = client.get(f"/api/items/{number}/{what}")
        assert reply.status_code == 403
        assert "--originals" in reply.json()["error"]
    assert client.get("/api/about").json()["originals"] is False


@pytest.mark.parametrize("what", ["original", "picture"])
def test_another_file_under_its_name_is_not_given(
    giving: TestClient, item: Item, photo: Path, what: str
) -> None:
    photo.write_bytes(picture("PNG", (90, 90)))
    reply = giving.get(f"/api/items/{item.number}/{what}")
    assert reply.status_code == 409
    assert "changed" in reply.json()["error"]
    assert str(photo.parent) not in reply.text


def test_a_file_that_is_gone_or_no_file_any_more_is_said_to_be(
    giving: TestClient, item: Item, photo: Path
) -> None:
    address = f"/api/items/{item.number}/original"
    photo.unlink()
    assert giving.get(address).status_code == 410
    os.mkfifo(photo)  # reading would wait for a writer
    assert giving.get(address).status_code == 410
    photo.unlink()
    photo.mkdir()
    reply = giving.get(address)
    assert reply.status_code == 410
    assert "gone" in reply.json()["error"]
    assert str(photo.parent) not in reply.text


def test_items_without_a_file_and_unknown_numbers_have_none(giving: TestClient) -> None:
    text = giving.get("/api/examples").json()["texts"][0]["number"]
    assert giving.get(f"/api/items/{text}/original").status_code == 404
    assert giving.get("/api/items/999999/original").status_code == 404
    assert giving.get("/api/items/..%2f..%2fetc%2fpasswd/original").status_code in (404, 422)


def test_an_item_tells_the_name_of_its_file_but_no_folder(
    giving: TestClient, item: Item, photo: Path
) -> None:
    shown = giving.get(f"/api/items/{item.number}").json()
    assert shown["file"] == photo.name
    assert str(photo.parent) not in str(shown)


def test_where_a_key_is_asked_of_readers_files_need_it_too(own_run: Path, item: Item) -> None:
    with SearchEngine.open(own_run) as engine:
        app = create_app(engine, originals=True, api_key="key", key_to_read=True)
        with TestClient(app, base_url=LOCAL) as client:
            address = f"/api/items/{item.number}/original"
            assert client.get(address).status_code == 401
            assert client.get(address, headers={"X-API-Key": "key"}).status_code == 200


def test_the_command_gives_files_where_told(own_run: Path, item: Item, photo: Path) -> None:
    with Served(own_run, "--originals") as served:
        reply = httpx.get(f"{served.url}api/items/{item.number}/original", timeout=60)
    assert reply.content == photo.read_bytes()


def test_every_piece_of_a_file_that_is_taken_gives_the_next_one_time() -> None:
    deadlines: list[asyncio.Timeout] = []

    class Watched(ActiveRequests):
        def hold(self, deadline: asyncio.Timeout) -> AbstractContextManager[None]:
            deadlines.append(deadline)
            return super().hold(deadline)

    given: list[float] = []

    async def pieces(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, False):
            deadlines[0].reschedule(asyncio.get_running_loop().time() + 9)  # nearly late
            await send({"type": "http.response.body", "body": b"x", "more_body": more})
            given.append((deadlines[0].when() or 0) - asyncio.get_running_loop().time())

    async def take(message: Message) -> None:
        pass

    guard = Guard(pieces, metrics=RequestMetrics(), in_work=Watched(1000), hosts=("*",))
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(guard(scope, None, take))  # type: ignore[arg-type]
    assert [seconds > 500 for seconds in given] == [True, True, False]
