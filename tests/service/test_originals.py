"""Original files: only if allowed, and only if unchanged since indexing."""

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
from transhash.service.originals import OriginalNotAvailableError, open_original

from .server_process import ServerProcess
from .small_run import LOCAL, image_bytes


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """Return a large image with a name that must be escaped in a header."""
    path = tmp_path / "photos" / 'ein "Foto" über\r\nalles; x.PNG'
    path.parent.mkdir()
    path.write_bytes(image_bytes("PNG", (2400, 1200)))
    return path


@pytest.fixture
def item(run_copy: Path, photo: Path) -> Item:
    with SearchEngine.open(run_copy, writable=True) as engine:
        added = engine.add_images(photo.parent)
        return engine.catalog.get(added.numbers)[added.numbers[0]]


@pytest.fixture
def sharing(run_copy: Path, item: Item) -> Iterator[TestClient]:
    with SearchEngine.open(run_copy) as engine:
        app = create_app(engine, originals=True)
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
            yield client


def test_the_original_has_the_bytes_and_the_name_of_the_file(
    sharing: TestClient, item: Item, photo: Path
) -> None:
    reply = sharing.get(f"/api/items/{item.number}/original")
    assert reply.status_code == 200
    assert reply.content == photo.read_bytes()
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-content-type-options"] == "nosniff"
    name = "filename*=UTF-8''ein%20%22Foto%22%20%C3%BCber%0D%0Aalles%3B%20x.PNG"
    assert reply.headers["content-disposition"] == f"inline; {name}"
    download = sharing.get(f"/api/items/{item.number}/original", params={"download": "true"})
    assert download.headers["content-disposition"] == f"attachment; {name}"


def test_the_preview_has_no_metadata(sharing: TestClient, item: Item) -> None:
    reply = sharing.get(f"/api/items/{item.number}/preview")
    assert reply.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(reply.content)) as image:
        assert (image.format, image.size) == ("JPEG", (1600, 800))
        assert not image.getexif()
    tag = reply.headers["etag"]
    again = sharing.get(f"/api/items/{item.number}/preview", headers={"If-None-Match": tag})
    assert again.status_code == 304


def test_originals_are_refused_unless_allowed(client: TestClient) -> None:
    number = client.get("/api/examples").json()["images"][0]["number"]
    for route in ("original", "preview"):
        reply = client.get(f"/api/items/{number}/{route}")
        assert reply.status_code == 403
        assert "--originals" in reply.json()["error"]
    assert client.get("/api/about").json()["originals"] is False


@pytest.mark.parametrize("route", ["original", "preview"])
def test_a_changed_file_is_refused(
    sharing: TestClient, item: Item, photo: Path, route: str
) -> None:
    photo.write_bytes(image_bytes("PNG", (90, 90)))
    reply = sharing.get(f"/api/items/{item.number}/{route}")
    assert reply.status_code == 409
    assert "changed" in reply.json()["error"]
    assert str(photo.parent) not in reply.text


def test_a_missing_or_irregular_file_is_refused(
    sharing: TestClient, item: Item, photo: Path
) -> None:
    address = f"/api/items/{item.number}/original"
    photo.unlink()
    assert sharing.get(address).status_code == 410
    os.mkfifo(photo)  # reading would wait for a writer
    assert sharing.get(address).status_code == 410
    photo.unlink()
    photo.mkdir()
    reply = sharing.get(address)
    assert reply.status_code == 410
    assert "missing" in reply.json()["error"]
    assert str(photo.parent) not in reply.text


def test_a_file_that_grew_too_large_is_refused_without_reading_it(
    sharing: TestClient, item: Item, photo: Path
) -> None:
    with photo.open("r+b") as file:
        file.truncate(60 << 30)  # sparse: hashing it would take minutes
    for route in ("original", "preview"):
        reply = sharing.get(f"/api/items/{item.number}/{route}")
        assert reply.status_code == 409
        assert "changed" in reply.json()["error"]
    assert sharing.post("/api/search/image", files={"image": image_bytes()}).is_success


def test_a_download_has_the_bytes_that_were_compared(
    run_copy: Path, item: Item, photo: Path
) -> None:
    content = photo.read_bytes()
    with SearchEngine.open(run_copy) as engine:
        original = open_original(engine.catalog, item)
        photo.write_bytes(b"x" * len(content))
        assert b"".join(original.chunks()) == content
        original.close()


def test_a_long_copy_ends_when_the_service_stops(run_copy: Path, item: Item) -> None:
    with SearchEngine.open(run_copy) as engine:
        with pytest.raises(OriginalNotAvailableError, match="stops"):
            open_original(engine.catalog, item, lambda: True)
        open_original(engine.catalog, item, lambda: False).close()


def test_texts_and_unknown_numbers_have_no_original(sharing: TestClient) -> None:
    text = sharing.get("/api/examples").json()["texts"][0]["number"]
    assert sharing.get(f"/api/items/{text}/original").status_code == 404
    assert sharing.get("/api/items/999999/original").status_code == 404
    assert sharing.get("/api/items/..%2f..%2fetc%2fpasswd/original").status_code in (404, 422)


def test_an_item_has_its_file_name_without_the_folder(
    sharing: TestClient, item: Item, photo: Path
) -> None:
    fields = sharing.get(f"/api/items/{item.number}").json()
    assert fields["file"] == photo.name
    assert str(photo.parent) not in str(fields)


def test_protected_reads_need_the_key_for_originals(run_copy: Path, item: Item) -> None:
    with SearchEngine.open(run_copy) as engine:
        app = create_app(engine, originals=True, read_key="key")
        with TestClient(app, base_url=LOCAL) as client:
            address = f"/api/items/{item.number}/original"
            assert client.get(address).status_code == 401
            assert client.get(address, headers={"X-API-Key": "key"}).status_code == 200


def test_the_option_originals_shares_files(run_copy: Path, item: Item, photo: Path) -> None:
    with ServerProcess(run_copy, "--originals") as server:
        reply = httpx.get(f"{server.url}api/items/{item.number}/original", timeout=60)
    assert reply.content == photo.read_bytes()


def test_each_chunk_of_a_download_extends_its_deadline() -> None:
    deadlines: list[asyncio.Timeout] = []

    class RecordingRequests(ActiveRequests):
        def hold(self, deadline: asyncio.Timeout) -> AbstractContextManager[None]:
            deadlines.append(deadline)
            return super().hold(deadline)

    remaining: list[float] = []

    async def download(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, False):
            deadlines[0].reschedule(asyncio.get_running_loop().time() + 9)  # almost expired
            await send({"type": "http.response.body", "body": b"x", "more_body": more})
            remaining.append((deadlines[0].when() or 0) - asyncio.get_running_loop().time())

    async def send(message: Message) -> None:
        pass

    guard = Guard(
        download, metrics=RequestMetrics(), active_requests=RecordingRequests(1000), hosts=("*",)
    )
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    assert [seconds > 500 for seconds in remaining] == [True, True, False]
