"""Searches over HTTP and their replies."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from transhash.search.engine import SearchEngine

from .small_run import ITEMS, MARKUP_TEXTS, image_bytes


def test_text_search_returns_what_the_engine_finds(
    client: TestClient, engine: SearchEngine
) -> None:
    reply = client.get("/api/search/text", params={"q": "a boat with sails", "k": 5})
    assert reply.status_code == 200
    result = reply.json()
    hits = engine.similar_to_text("a boat with sails", 5, "images")
    assert [hit["number"] for hit in result["hits"]] == [hit.item.number for hit in hits]
    assert [hit["distance"] for hit in result["hits"]] == [hit.distance for hit in hits]
    assert result["total"] == ITEMS
    assert result["bits"] == 16
    assert "boat" in result["query"]["known_words"]


@pytest.mark.parametrize("ranking", ["weighted", "tiebreak", "hamming"])
def test_each_ranking_mode_orders_like_a_plain_sort(
    client: TestClient, engine: SearchEngine, ranking: str
) -> None:
    query = {"q": "a boat with sails", "k": ITEMS, "ranking": ranking, "search": "codes"}
    result = client.get("/api/search/text", params=query).json()
    z = engine.encoder.project_texts(["a boat with sails"])[0].astype(float)
    confidence = np.abs(np.tanh(z))
    confidence = np.rint(65535 * confidence / confidence.max())
    rows = []
    for hit in result["hits"]:
        cost, distance = sum(confidence[hit["differing_bits"]]), hit["distance"]
        keys = {
            "weighted": (cost, distance),
            "tiebreak": (distance, cost),
            "hamming": (distance,),
        }
        rows.append((*keys[ranking], hit["number"]))
    assert len(rows) == ITEMS
    assert rows == sorted(rows)
    assert result["ranking"] == ranking
    assert result["rerank_pool"] is None
    hits = engine.similar_to_text("a boat with sails", ITEMS, "images", ranking, search="codes")  # type: ignore[arg-type]
    assert [hit.item.number for hit in hits] == [row[-1] for row in rows]


def test_weighted_is_the_default_ranking_and_items_are_ranked_by_hamming_distance(
    client: TestClient,
) -> None:
    def numbers(**query: str) -> list[int]:
        result = client.get("/api/search/text", params={"q": "a fish", "k": 40, **query}).json()
        return [hit["number"] for hit in result["hits"]]

    assert numbers() == numbers(ranking="weighted") != numbers(ranking="hamming")
    upload = {"files": {"image": image_bytes()}}
    result = client.post(
        "/api/search/image", params={"k": 5, "ranking": "tiebreak"}, **upload
    ).json()
    assert result["ranking"] == "tiebreak"
    assert client.post("/api/search/image", **upload).json()["ranking"] == "weighted"
    item = result["hits"][0]["number"]
    assert client.get(f"/api/items/{item}/similar").json()["ranking"] == "hamming"
    refused = client.get("/api/search/text", params={"q": "a fish", "ranking": "cosine"})
    assert refused.status_code == 422
    assert "ranking" in refused.json()["error"]


@pytest.mark.parametrize("ranking", ["weighted", "tiebreak", "hamming"])
def test_a_batch_uses_the_requested_ranking_for_texts(
    client: TestClient, engine: SearchEngine, ranking: str
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    queries = [{"number": item.number}, {"text": "a cat"}]
    query = {"queries": queries, "k": 30, "modality": "texts", "ranking": ranking}
    result = client.post("/api/search/batch", json=query).json()
    single = {"q": "a cat", "k": 30, "modality": "texts", "ranking": ranking}
    assert result["results"][1] == client.get("/api/search/text", params=single).json()["hits"]
    options = {"k": 30, "modality": "texts"}
    similar = client.get(f"/api/items/{item.number}/similar", params=options).json()
    assert result["results"][0] == similar["hits"]
    assert result["ranking"] == ranking


def test_flipping_the_differing_bits_of_the_query_gives_the_code_of_the_hit(
    client: TestClient,
) -> None:
    result = client.get("/api/search/text", params={"q": "a fish", "k": 20}).json()
    for hit in result["hits"]:
        flipped = list(result["query"]["code"])
        for bit in hit["differing_bits"]:
            flipped[bit] = "1" if flipped[bit] == "0" else "0"
        assert "".join(flipped) == hit["code"]
        assert len(hit["differing_bits"]) == hit["distance"]


def test_a_text_finds_texts(client: TestClient) -> None:
    result = client.get("/api/search/text", params={"q": "a fish", "modality": "texts"}).json()
    assert {hit["modality"] for hit in result["hits"]} == {"texts"}
    assert all(hit["text"] for hit in result["hits"])


def test_unknown_words_are_listed_without_stop_words(client: TestClient) -> None:
    result = client.get("/api/search/text", params={"q": "xyzzy plugh"}).json()
    assert result["query"]["known_words"] == []
    assert result["query"]["unknown_words"] == ["xyzzy", "plugh"]
    some = client.get("/api/search/text", params={"q": "where is their boat of xyzzy"}).json()[
        "query"
    ]
    assert some["unknown_words"] == ["xyzzy"]
    assert "boat" in some["known_words"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_an_uploaded_image_finds_texts(client: TestClient, kind: str) -> None:
    reply = client.post("/api/search/image", params={"k": 3}, files={"image": image_bytes(kind)})
    assert reply.status_code == 200
    assert [hit["modality"] for hit in reply.json()["hits"]] == ["texts"] * 3


def test_an_indexed_image_finds_itself_at_distance_zero(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("images", 3)[1]
    assert item.path is not None
    with open(item.path, "rb") as file:
        reply = client.post(
            "/api/search/image", params={"modality": "images", "k": 1}, files={"image": file}
        )
    assert reply.json()["hits"][0]["distance"] == 0


@pytest.mark.parametrize("modality", ["images", "texts"])
def test_an_item_finds_similar_items_but_not_itself(
    client: TestClient, engine: SearchEngine, modality: str
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    result = client.get(
        f"/api/items/{item.number}/similar", params={"k": 7, "modality": modality}
    ).json()
    numbers = [hit["number"] for hit in result["hits"]]
    assert len(numbers) == 7
    assert item.number not in numbers
    assert result["query"]["item"]["id"] == item.id


def test_a_batch_gives_the_same_results_as_single_searches(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("texts", 1)[0]
    queries = [{"text": "a boat"}, {"number": item.number}, {"text": "a cat"}]
    reply = client.post(
        "/api/search/batch", json={"queries": queries, "k": 4, "modality": "images"}
    )
    results = reply.json()["results"]
    single = client.get("/api/search/text", params={"q": "a cat", "k": 4}).json()
    assert len(results) == 3
    assert results[2] == single["hits"]
    similar = client.get(f"/api/items/{item.number}/similar", params={"k": 4}).json()
    assert results[1] == similar["hits"]


def test_a_thumbnail_is_a_small_jpeg_without_metadata(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    reply = client.get(f"/api/items/{item.number}/thumbnail")
    assert reply.headers["content-type"] == "image/jpeg"
    image = Image.open(io.BytesIO(reply.content))
    assert image.format == "JPEG"
    assert max(image.size) <= 256
    assert not image.getexif()
    again = client.get(
        f"/api/items/{item.number}/thumbnail", headers={"If-None-Match": reply.headers["etag"]}
    )
    assert again.status_code == 304


def test_an_item_does_not_expose_the_path_of_its_file(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    fields = client.get(f"/api/items/{item.number}").json()
    assert fields["id"] == item.id
    assert item.path is not None
    assert item.path not in str(fields)


def test_a_search_does_not_intern_the_names_of_its_hits(
    client: TestClient, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interned: list[str] = []
    intern = sys.intern
    monkeypatch.setattr(sys, "intern", lambda text: intern(interned.append(text) or text))
    hits = client.get("/api/search/text", params={"q": "a boat", "k": 5}).json()["hits"]
    paths = [str(engine.catalog.get([hit["number"]])[hit["number"]].path) for hit in hits]
    assert [hit["file"] for hit in hits] == [os.path.basename(path) for path in paths]
    assert {hit["file"] for hit in hits}.isdisjoint(interned)


def test_texts_with_markup_are_returned_unchanged(client: TestClient) -> None:
    result = client.get(
        "/api/search/text", params={"q": MARKUP_TEXTS[1], "modality": "texts", "k": 200}
    )
    assert set(MARKUP_TEXTS) <= {hit["text"] for hit in result.json()["hits"]}


def test_examples_are_texts_and_images_of_the_run(client: TestClient) -> None:
    examples = client.get("/api/examples").json()
    assert 3 <= len(examples["texts"]) <= 8
    assert 3 <= len(examples["images"]) <= 8
    assert all(image["thumbnail"] for image in examples["images"])


def test_about_names_the_model_and_counts_the_items(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert (about["method"], about["bits"]) == ("CVH", 16)
    assert (about["images"], about["texts"]) == (ITEMS, ITEMS + len(MARKUP_TEXTS))
    assert about["writable"] is False


def test_diagnostics_have_the_map_and_the_results_but_no_path(client: TestClient) -> None:
    shown = client.get("/api/diagnostics").json()
    assert set(shown["map"]) == {"before", "after"}
    assert shown["map"]["after"]["target_images"]
    assert shown["results"][0]["image_to_text_map"] == 0.41
    assert shown["report"]["method"] == "CVH"
    assert "/home" not in str(shown)


def test_health_ready_and_metrics_answer(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/ready").json() == {"status": "ok"}
    client.get("/api/search/text", params={"q": "tree"})
    text = client.get("/metrics").text
    counted = 'transhash_http_requests_total{method="GET",route="/api/search/text",status="200"}'
    assert counted in text
    assert f'transhash_items{{modality="images"}} {ITEMS}' in text
    assert 'transhash_http_request_seconds_bucket{route="/api/search/text",le="+Inf"}' in text
