"""Adding and removing items: with the key only, searchable and on disk before the reply."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import ITEMS, LOCAL, MARKUP_TEXTS, image_bytes

KEY = {"X-API-Key": "opensesame-π"}


@pytest.fixture
def writer(run_copy: Path) -> Iterator[TestClient]:
    engine = SearchEngine.open(run_copy, writable=True)
    app = create_app(engine, writable=True, write_key="opensesame-π")
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        # As bytes: httpx allows only ASCII in header strings.
        client.headers = {b"x-api-key": KEY["X-API-Key"].encode()}  # type: ignore[assignment]
        yield client
    engine.close()


def test_an_added_text_is_found_at_once_and_after_a_restart(
    writer: TestClient, run_copy: Path
) -> None:
    text = "a boat with sails and a boat with sails"
    added = writer.post("/api/items/texts", json={"texts": [{"text": text, "id": "new/1"}]})
    assert added.status_code == 201
    number = added.json()["items"][0]["number"]
    result = writer.get(
        "/api/search/text", params={"q": text, "modality": "texts", "k": 200}
    ).json()
    assert number in [hit["number"] for hit in result["hits"]]
    # As another process would open it while this one may write.
    reader = SearchEngine.open(run_copy)
    assert reader.similar_to_text(text, 200, "texts")
    assert reader.catalog.find("texts", "new/1") is not None
    assert number in [hit.item.number for hit in reader.similar_to_text(text, 200, "texts")]
    reader.close()


def test_an_added_image_is_found_and_has_a_thumbnail(writer: TestClient) -> None:
    added = writer.post("/api/items/images", files={"image": image_bytes()}, data={"id": "mine"})
    assert added.status_code == 201
    item = added.json()["items"][0]
    assert item["id"] == "mine"
    result = writer.post(
        "/api/search/image", params={"modality": "images", "k": 1}, files={"image": image_bytes()}
    ).json()
    assert result["hits"][0]["distance"] == 0
    assert writer.get(item["thumbnail"]).headers["content-type"] == "image/jpeg"


def test_adding_an_id_again_replaces_the_item(writer: TestClient) -> None:
    for text in ("a cat", "a fish with fins"):
        reply = writer.post("/api/items/texts", json={"texts": [{"text": text, "id": "one"}]})
    number = reply.json()["items"][0]["number"]
    assert writer.get(f"/api/items/{number}").json()["text"] == "a fish with fins"
    assert writer.get("/api/about").json()["texts"] == ITEMS + len(MARKUP_TEXTS) + 1


def test_a_removed_item_is_not_in_results_or_catalog(writer: TestClient) -> None:
    before = writer.get("/api/search/text", params={"q": "a cat"}).json()
    number = before["hits"][0]["number"]
    assert writer.delete(f"/api/items/{number}").json() == {"removed": 1}
    after = writer.get("/api/search/text", params={"q": "a cat", "k": 200}).json()
    assert number not in [hit["number"] for hit in after["hits"]]
    assert after["total"] == before["total"] - 1
    assert writer.get(f"/api/items/{number}").status_code == 404
    assert writer.delete(f"/api/items/{number}").status_code == 404


def test_examples_follow_the_items(writer: TestClient) -> None:
    def examples() -> set[int]:
        return {
            item["number"] for part in writer.get("/api/examples").json().values() for item in part
        }

    before = examples()
    assert len(before) == 16
    for number in before:
        writer.delete(f"/api/items/{number}")
    assert examples()
    assert examples().isdisjoint(before)


@pytest.mark.parametrize("key", [None, "", "wrong", "opensesame-"])
def test_changes_need_the_key(writer: TestClient, key: str | None) -> None:
    writer.headers = {} if key is None else {"X-API-Key": key}  # type: ignore[assignment]
    for reply in (
        writer.post("/api/items/texts", json={"texts": [{"text": "a cat"}]}),
        writer.post("/api/items/images", files={"image": image_bytes()}),
        writer.delete("/api/items/1"),
    ):
        assert reply.status_code == 401
        assert "X-API-Key" in reply.json()["error"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [{"text": "   "}],
        [{"text": "a", "id": "line\nbreak"}],
        [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}],
        [{"text": "a", "extra": 1}],
        [{"text": "a" * 5000}],
    ],
)
def test_invalid_texts_are_refused_and_nothing_is_added(writer: TestClient, texts: object) -> None:
    before = writer.get("/api/about").json()["texts"]
    assert writer.post("/api/items/texts", json={"texts": texts}).status_code == 422
    assert writer.get("/api/about").json()["texts"] == before


def test_an_invalid_image_is_refused(writer: TestClient) -> None:
    reply = writer.post("/api/items/images", files={"image": b"GIF89a nonsense"})
    assert reply.status_code == 422
    assert "error" in reply.json()


def test_a_read_only_service_has_no_routes_for_changes(client: TestClient) -> None:
    reply = client.post("/api/items/texts", json={"texts": [{"text": "a"}]}, headers={})
    assert reply.status_code in (404, 405)


def test_an_item_is_never_missing_while_it_is_being_replaced(writer: TestClient) -> None:
    """Catalog and index change one after the other; no search may see only one of them."""

    def put(text: str) -> int:
        reply = writer.post("/api/items/texts", json={"texts": [{"text": text, "id": "one"}]})
        return int(reply.json()["items"][0]["number"])

    def replace() -> None:
        for i in range(40):
            put(("a cat in a house", "a fish with fins")[i % 2])

    number = put("a boat")
    searches = 0
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(replace)
        while not task.done():
            result = writer.get(
                "/api/search/text", params={"q": "boat", "modality": "texts", "k": 200}
            )
            assert number in [hit["number"] for hit in result.json()["hits"]]
            searches += 1
        task.result()
    assert searches > 10
