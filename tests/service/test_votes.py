"""Votes on results: with the key only, on disk before the reply, shown with the results."""

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

from .small_run import LOCAL, picture


@pytest.fixture
def voter(own_run: Path) -> Iterator[TestClient]:
    engine = SearchEngine.open(own_run, writable=True)
    app = create_app(engine, writable=True, api_key="key")
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        client.headers = {"X-API-Key": "key"}  # type: ignore[assignment]
        yield client
    engine.close()


def pictures_of(client: TestClient, words: str = "a boat") -> list[Any]:
    return list(client.get("/api/search/text", params={"q": words}).json()["hits"])


def test_a_vote_on_a_picture_for_typed_words_is_kept_replaced_and_taken_back(
    voter: TestClient, own_run: Path
) -> None:
    first, second = pictures_of(voter)[:2]
    assert first["vote"] is None
    for vote in (1, 0):
        given = {"image": first["number"], "text": {"text": " a boat "}, "vote": vote}
        reply = voter.post("/api/votes", json=given)
        assert reply.status_code == 200
        assert reply.json() == {"image": first["number"], "text": "a boat", "vote": vote}
        (kept,) = FeedbackStore(own_run).all()
        assert (kept.text, kept.vote, kept.text_id) == ("a boat", vote, None)
        assert kept.image.id == first["id"]
        assert kept.image.thumbnail == voter.get(first["thumbnail"]).content
        assert [hit["vote"] for hit in pictures_of(voter)[:2]] == [vote, None]
    assert [hit["vote"] for hit in pictures_of(voter, "a cat")] == [None] * 24
    voter.post("/api/votes", json=given | {"image": second["number"]})
    asked = {"image": first["number"], "text": "a boat"}
    for _ in range(2):  # nothing to take back is no error
        assert voter.delete("/api/votes", params=asked).json()["vote"] is None
    assert [hit["vote"] for hit in pictures_of(voter)[:2]] == [None, 0]


def test_votes_between_items_are_shown_from_both_sides(voter: TestClient, own_run: Path) -> None:
    text = voter.get("/api/search/text", params={"q": "a boat", "modality": "texts"}).json()[
        "hits"
    ][0]
    image = pictures_of(voter)[0]
    given = {"image": image["number"], "text": {"number": text["number"]}, "vote": 1}
    assert voter.post("/api/votes", json=given).json()["text"] == text["text"]
    assert FeedbackStore(own_run).all()[0].text_id == text["id"]

    def voted(number: int, modality: str) -> dict[int, Any]:
        asked = {"modality": modality, "k": 200}
        found = voter.get(f"/api/items/{number}/similar", params=asked).json()["hits"]
        return {hit["number"]: hit["vote"] for hit in found}

    assert voted(image["number"], "texts")[text["number"]] == 1
    assert voted(text["number"], "images")[image["number"]] == 1
    assert set(voted(text["number"], "texts").values()) == {None}
    asked = {"image": image["number"], "number": text["number"]}
    assert voter.delete("/api/votes", params=asked).status_code == 200
    assert FeedbackStore(own_run).all() == []


def test_a_vote_outlives_the_items_it_was_on(voter: TestClient, own_run: Path) -> None:
    added = voter.post("/api/items/images", files={"image": picture()}, data={"id": "mine"}).json()
    number = added["items"][0]["number"]
    given = {"image": number, "text": {"text": "a square"}, "vote": 1}
    assert voter.post("/api/votes", json=given).status_code == 200
    assert voter.delete(f"/api/items/{number}").status_code == 200
    (kept,) = FeedbackStore(own_run).all()
    assert kept.image.thumbnail[:2] == b"\xff\xd8"
    assert voter.post("/api/votes", json=given).status_code == 404
    again = voter.post("/api/items/images", files={"image": picture()}, data={"id": "other"}).json()
    asked = {"q": "a square", "k": 200}
    hits = voter.get("/api/search/text", params=asked).json()["hits"]
    number = again["items"][0]["number"]
    assert next(hit["vote"] for hit in hits if hit["number"] == number) == 1  # the same picture


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
def test_what_is_no_vote_is_refused_in_a_sentence(
    voter: TestClient, own_run: Path, change: dict[str, Any], status: int
) -> None:
    image = pictures_of(voter)[0]["number"]
    given = {"image": image, "text": {"text": "a boat"}, "vote": 1} | change
    reply = voter.post("/api/votes", json=given)
    assert reply.status_code == status
    assert reply.json()["error"]
    assert not (own_run / VOTES_FILE).exists()


def test_a_vote_needs_an_image_and_a_text(voter: TestClient) -> None:
    image = pictures_of(voter)[0]["number"]
    text = voter.get("/api/search/text", params={"q": "a", "modality": "texts"}).json()["hits"][0]
    swapped = {"image": text["number"], "text": {"number": image}, "vote": 1}
    twice = {"image": image, "text": {"number": image}, "vote": 1}
    for given, said in ((swapped, "is a text"), (twice, "is an image")):
        reply = voter.post("/api/votes", json=given)
        assert reply.status_code == 404
        assert said in reply.json()["error"]
    for asked in ({"image": image}, {"image": image, "text": "a", "number": 1}):
        reply = voter.delete("/api/votes", params=asked)
        assert reply.status_code == 422
        assert "one of the two" in reply.json()["error"]


def test_votes_need_the_key(voter: TestClient, own_run: Path) -> None:
    given = {"image": 1, "text": {"text": "a boat"}, "vote": 1}
    voter.headers = {"X-API-Key": "wrong"}  # type: ignore[assignment]
    assert voter.post("/api/votes", json=given).status_code == 401
    assert voter.delete("/api/votes", params={"image": 1, "text": "a"}).status_code == 401
    assert not (own_run / VOTES_FILE).exists()


def test_a_read_only_service_takes_and_shows_no_votes(client: TestClient) -> None:
    given = {"image": 1, "text": {"text": "a boat"}, "vote": 1}
    assert client.post("/api/votes", json=given).status_code == 404
    assert client.delete("/api/votes", params={"image": 1, "text": "a"}).status_code == 404
    assert "/api/votes" not in client.get("/openapi.json").json()["paths"]


def test_damaged_votes_stop_no_search_and_are_told_by_verify(
    voter: TestClient, own_run: Path
) -> None:
    image = pictures_of(voter)[0]["number"]
    given = {"image": image, "text": {"text": "a boat"}, "vote": 1}
    voter.post("/api/votes", json=given)
    assert verify_run(own_run) == []
    path = own_run / VOTES_FILE
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"a boat", b"a goat"))
    assert [finding.part for finding in verify_run(own_run)] == ["votes"]
    path.write_bytes(b"no votes" * 100)
    assert len(pictures_of(voter)) == 24
    assert voter.post("/api/votes", json=given).status_code == 422
    assert [finding.part for finding in verify_run(own_run)] == ["votes"]
