"""Votes on results: with the key only, on disk before the reply, shown with results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.search.feedback import VOTES_FILE, FeedbackStore
from transhash.search.verify import verify_run
from transhash.service import create_app

from .small_run import LOCAL, image_bytes


@pytest.fixture
def voter(run_copy: Path) -> Iterator[TestClient]:
    engine = SearchEngine.open(run_copy, writable=True)
    app = create_app(engine, writable=True, write_key="key")
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        client.headers = {"X-API-Key": "key"}  # type: ignore[assignment]
        yield client
    engine.close()


def search(client: TestClient, text: str = "a boat") -> list[Any]:
    return list(client.get("/api/search/text", params={"q": text}).json()["hits"])


def test_a_vote_on_an_image_for_a_typed_text_is_stored_replaced_and_removed(
    voter: TestClient, run_copy: Path
) -> None:
    first, second = search(voter)[:2]
    assert first["vote"] is None
    for vote in (1, 0):
        request = {"image": first["number"], "text": {"text": " a boat "}, "vote": vote}
        reply = voter.post("/api/votes", json=request)
        assert reply.status_code == 200
        assert reply.json() == {"image": first["number"], "text": "a boat", "vote": vote}
        (stored,) = FeedbackStore(run_copy).all()
        assert (stored.text, stored.vote, stored.text_id) == ("a boat", vote, None)
        assert stored.image.id == first["id"]
        assert stored.image.thumbnail == voter.get(first["thumbnail"]).content
        assert [hit["vote"] for hit in search(voter)[:2]] == [vote, None]
    assert [hit["vote"] for hit in search(voter, "a cat")] == [None] * 24
    voter.post("/api/votes", json=request | {"image": second["number"]})
    pair = {"image": first["number"], "text": "a boat"}
    for _ in range(2):  # removing a missing vote is allowed
        assert voter.delete("/api/votes", params=pair).json()["vote"] is None
    assert [hit["vote"] for hit in search(voter)[:2]] == [None, 0]


def test_votes_between_items_are_shown_for_either_item(voter: TestClient, run_copy: Path) -> None:
    text = voter.get("/api/search/text", params={"q": "a boat", "modality": "texts"}).json()[
        "hits"
    ][0]
    image = search(voter)[0]
    request = {"image": image["number"], "text": {"number": text["number"]}, "vote": 1}
    assert voter.post("/api/votes", json=request).json()["text"] == text["text"]
    assert FeedbackStore(run_copy).all()[0].text_id == text["id"]

    def votes_for(number: int, modality: str) -> dict[int, Any]:
        options = {"modality": modality, "k": 200}
        hits = voter.get(f"/api/items/{number}/similar", params=options).json()["hits"]
        return {hit["number"]: hit["vote"] for hit in hits}

    assert votes_for(image["number"], "texts")[text["number"]] == 1
    assert votes_for(text["number"], "images")[image["number"]] == 1
    assert set(votes_for(text["number"], "texts").values()) == {None}
    pair = {"image": image["number"], "number": text["number"]}
    assert voter.delete("/api/votes", params=pair).status_code == 200
    assert FeedbackStore(run_copy).all() == []


def test_a_vote_survives_the_removal_of_its_items(voter: TestClient, run_copy: Path) -> None:
    added = voter.post(
        "/api/items/images", files={"image": image_bytes()}, data={"id": "mine"}
    ).json()
    number = added["items"][0]["number"]
    request = {"image": number, "text": {"text": "a square"}, "vote": 1}
    assert voter.post("/api/votes", json=request).status_code == 200
    assert voter.delete(f"/api/items/{number}").status_code == 200
    (stored,) = FeedbackStore(run_copy).all()
    assert stored.image.thumbnail[:2] == b"\xff\xd8"
    assert voter.post("/api/votes", json=request).status_code == 404
    again = voter.post(
        "/api/items/images", files={"image": image_bytes()}, data={"id": "other"}
    ).json()
    query = {"q": "a square", "k": 200}
    hits = voter.get("/api/search/text", params=query).json()["hits"]
    number = again["items"][0]["number"]
    assert next(hit["vote"] for hit in hits if hit["number"] == number) == 1  # the same image


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"image": 10**9}, 404),
        ({"text": {"number": 10**9}}, 404),
        ({"image": -1}, 422),
        ({"vote": 2}, 422),
        ({"vote": None}, 422),
        ({"text": {"text": "  "}}, 422),
        ({"text": {"text": "a", "number": 1}}, 422),
        ({"text": "a boat"}, 422),
        ({"more": 1}, 422),
    ],
)
def test_an_invalid_vote_is_refused(
    voter: TestClient, run_copy: Path, change: dict[str, Any], status: int
) -> None:
    image = search(voter)[0]["number"]
    request = {"image": image, "text": {"text": "a boat"}, "vote": 1} | change
    reply = voter.post("/api/votes", json=request)
    assert reply.status_code == status
    assert reply.json()["error"]
    assert not (run_copy / VOTES_FILE).exists()


def test_a_vote_needs_an_image_and_a_text(voter: TestClient) -> None:
    image = search(voter)[0]["number"]
    text = voter.get("/api/search/text", params={"q": "a", "modality": "texts"}).json()["hits"][0]
    swapped = {"image": text["number"], "text": {"number": image}, "vote": 1}
    twice = {"image": image, "text": {"number": image}, "vote": 1}
    for request, phrase in ((swapped, "is a text"), (twice, "is an image")):
        reply = voter.post("/api/votes", json=request)
        assert reply.status_code == 404
        assert phrase in reply.json()["error"]
    for pair in ({"image": image}, {"image": image, "text": "a", "number": 1}):
        reply = voter.delete("/api/votes", params=pair)
        assert reply.status_code == 422
        assert "exactly one" in reply.json()["error"]


def test_votes_need_the_key(voter: TestClient, run_copy: Path) -> None:
    request = {"image": 1, "text": {"text": "a boat"}, "vote": 1}
    voter.headers = {"X-API-Key": "wrong"}  # type: ignore[assignment]
    assert voter.post("/api/votes", json=request).status_code == 401
    assert voter.delete("/api/votes", params={"image": 1, "text": "a"}).status_code == 401
    assert not (run_copy / VOTES_FILE).exists()


def test_a_read_only_service_has_no_votes(client: TestClient) -> None:
    request = {"image": 1, "text": {"text": "a boat"}, "vote": 1}
    assert client.post("/api/votes", json=request).status_code == 404
    assert client.delete("/api/votes", params={"image": 1, "text": "a"}).status_code == 404
    assert "/api/votes" not in client.get("/openapi.json").json()["paths"]


def test_corrupt_votes_do_not_stop_searches_and_are_reported_by_verify(
    voter: TestClient, run_copy: Path
) -> None:
    image = search(voter)[0]["number"]
    request = {"image": image, "text": {"text": "a boat"}, "vote": 1}
    voter.post("/api/votes", json=request)
    assert verify_run(run_copy) == []
    path = run_copy / VOTES_FILE
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a boat", b"a goat"))
    assert [finding.part for finding in verify_run(run_copy)] == ["votes"]
    path.write_bytes(b"not votes" * 100)
    assert len(search(voter)) == 24
    assert voter.post("/api/votes", json=request).status_code == 422
    assert [finding.part for finding in verify_run(run_copy)] == ["votes"]
