"""Questions that have answers."""

from __future__ import annotations

import io

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from transhash.search.engine import SearchEngine

from .small_run import EACH, HOSTILE, picture


def test_a_text_finds_the_images_the_engine_finds(client: TestClient, engine: SearchEngine) -> None:
    reply = client.get("/api/search/text", params={"q": "a boat with sails", "k": 5})
    assert reply.status_code == 200
    found = reply.json()
    hits = engine.similar_to_text("a boat with sails", 5, "images")
    assert [hit["number"] for hit in found["hits"]] == [hit.item.number for hit in hits]
    assert [hit["distance"] for hit in found["hits"]] == [hit.distance for hit in hits]
    assert found["total"] == EACH
    assert found["bits"] == 16
    assert "boat" in found["query"]["known_words"]


@pytest.mark.parametrize("ranking", ["weighted", "tiebreak", "hamming"])
def test_a_ranking_orders_as_a_plain_sort_of_the_catalog_does(
    client: TestClient, engine: SearchEngine, ranking: str
) -> None:
    asked = {"q": "a boat with sails", "k": EACH, "ranking": ranking}
    found = client.get("/api/search/text", params=asked).json()
    z = engine.encoder.project_texts(["a boat with sails"])[0].astype(float)
    sure = np.abs(np.tanh(z))
    sure = np.rint(65535 * sure / sure.max())
    rows = []
    for hit in found["hits"]:
        cost, far = sum(sure[hit["differing"]]), hit["distance"]
        keys = {"weighted": (cost, far), "tiebreak": (far, cost), "hamming": (far,)}
        rows.append((*keys[ranking], hit["number"]))
    assert len(rows) == EACH
    assert rows == sorted(rows)
    assert found["ranking"] == ranking
    assert found["reranked"] is None
    hits = engine.similar_to_text("a boat with sails", EACH, "images", ranking)  # type: ignore[arg-type]
    assert [hit.item.number for hit in hits] == [row[-1] for row in rows]


def test_the_finer_ranking_is_the_usual_one_and_items_have_bits_only(client: TestClient) -> None:
    def numbers(**asked: str) -> list[int]:
        found = client.get("/api/search/text", params={"q": "a fish", "k": 40, **asked}).json()
        return [hit["number"] for hit in found["hits"]]

    assert numbers() == numbers(ranking="weighted") != numbers(ranking="hamming")
    upload = {"files": {"image": picture()}}
    found = client.post(
        "/api/search/image", params={"k": 5, "ranking": "tiebreak"}, **upload
    ).json()
    assert found["ranking"] == "tiebreak"
    assert client.post("/api/search/image", **upload).json()["ranking"] == "weighted"
    item = found["hits"][0]["number"]
    assert client.get(f"/api/items/{item}/similar").json()["ranking"] == "hamming"
    refused = client.get("/api/search/text", params={"q": "a fish", "ranking": "cosine"})
    assert refused.status_code == 422
    assert "ranking" in refused.json()["error"]


@pytest.mark.parametrize("ranking", ["weighted", "tiebreak", "hamming"])
def test_a_batch_ranks_its_texts_as_asked(
    client: TestClient, engine: SearchEngine, ranking: str
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    queries = [{"number": item.number}, {"text": "a cat"}]
    asked = {"queries": queries, "k": 30, "modality": "texts", "ranking": ranking}
    found = client.post("/api/search/batch", json=asked).json()
    single = {"q": "a cat", "k": 30, "modality": "texts", "ranking": ranking}
    assert found["results"][1] == client.get("/api/search/text", params=single).json()["hits"]
    search_item = {"k": 30, "modality": "texts"}
    similar = client.get(f"/api/items/{item.number}/similar", params=search_item).json()
    assert found["results"][0] == similar["hits"]
    assert found["ranking"] == ranking


def test_differing_bits_lead_from_the_query_code_to_the_hit_code(client: TestClient) -> None:
    found = client.get("/api/search/text", params={"q": "a fish", "k": 20}).json()
    for hit in found["hits"]:
        flipped = list(found["query"]["code"])
        for bit in hit["differing"]:
            flipped[bit] = "1" if flipped[bit] == "0" else "0"
        assert "".join(flipped) == hit["code"]
        assert len(hit["differing"]) == hit["distance"]


def test_a_text_can_be_searched_among_texts(client: TestClient) -> None:
    found = client.get("/api/search/text", params={"q": "a fish", "modality": "texts"}).json()
    assert {hit["modality"] for hit in found["hits"]} == {"texts"}
    assert all(hit["text"] for hit in found["hits"])


def test_unknown_words_are_said_to_be_unknown(client: TestClient) -> None:
    found = client.get("/api/search/text", params={"q": "xyzzy plugh"}).json()
    assert found["query"]["known_words"] == []
    assert found["query"]["unknown_words"] == ["xyzzy", "plugh"]
    some = client.get("/api/search/text", params={"q": "the boat of xyzzy"}).json()["query"]
    assert some["unknown_words"] == ["xyzzy"]
    assert "boat" in some["known_words"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_an_uploaded_picture_finds_texts(client: TestClient, kind: str) -> None:
    reply = client.post("/api/search/image", params={"k": 3}, files={"image": picture(kind)})
    assert reply.status_code == 200
    assert [hit["modality"] for hit in reply.json()["hits"]] == ["texts"] * 3


def test_an_indexed_image_uploaded_again_is_its_own_nearest(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("images", 3)[1]
    assert item.source is not None
    with open(item.source, "rb") as file:
        reply = client.post(
            "/api/search/image", params={"modality": "images", "k": 1}, files={"image": file}
        )
    assert reply.json()["hits"][0]["distance"] == 0


@pytest.mark.parametrize("modality", ["images", "texts"])
def test_an_item_finds_its_neighbours_but_not_itself(
    client: TestClient, engine: SearchEngine, modality: str
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    found = client.get(
        f"/api/items/{item.number}/similar", params={"k": 7, "modality": modality}
    ).json()
    numbers = [hit["number"] for hit in found["hits"]]
    assert len(numbers) == 7
    assert item.number not in numbers
    assert found["query"]["item"]["id"] == item.id


def test_a_batch_answers_like_single_questions(client: TestClient, engine: SearchEngine) -> None:
    item = engine.catalog.sample("texts", 1)[0]
    queries = [{"text": "a boat"}, {"number": item.number}, {"text": "a cat"}]
    reply = client.post(
        "/api/search/batch", json={"queries": queries, "k": 4, "modality": "images"}
    )
    results = reply.json()["results"]
    single = client.get("/api/search/text", params={"q": "a cat", "k": 4}).json()
    assert len(results) == 3
    assert results[2] == single["hits"]
    search_item = client.get(f"/api/items/{item.number}/similar", params={"k": 4}).json()
    assert results[1] == search_item["hits"]


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


def test_an_item_tells_what_it_is_but_not_where_its_file_lies(
    client: TestClient, engine: SearchEngine
) -> None:
    item = engine.catalog.sample("images", 1)[0]
    shown = client.get(f"/api/items/{item.number}").json()
    assert shown["id"] == item.id
    assert item.source is not None
    assert item.source not in str(shown)


def test_texts_with_markup_come_back_letter_by_letter(client: TestClient) -> None:
    found = client.get("/api/search/text", params={"q": HOSTILE[1], "modality": "texts", "k": 200})
    assert set(HOSTILE) <= {hit["text"] for hit in found.json()["hits"]}


def test_examples_are_texts_and_images_of_the_run(client: TestClient) -> None:
    examples = client.get("/api/examples").json()
    assert 3 <= len(examples["texts"]) <= 8
    assert 3 <= len(examples["images"]) <= 8
    assert all(image["thumbnail"] for image in examples["images"])


def test_about_names_the_model_and_counts_the_items(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert (about["method"], about["bits"]) == ("CVH", 16)
    assert (about["images"], about["texts"]) == (EACH, EACH + len(HOSTILE))
    assert about["writable"] is False


def test_diagnostics_hold_the_map_and_the_table_and_no_path(client: TestClient) -> None:
    shown = client.get("/api/diagnostics").json()
    assert set(shown["map"]) == {"before", "after"}
    assert shown["map"]["after"]["target_images"]
    assert shown["results"][0]["image_to_text_map"] == 0.41
    assert shown["report"]["method"] == "CVH"
    assert "/home" not in str(shown)


def test_health_ready_and_metrics_answer(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ok"}
    client.get("/api/search/text", params={"q": "tree"})
    text = client.get("/metrics").text
    counted = 'transhash_http_requests_total{method="GET",route="/api/search/text",status="200"}'
    assert counted in text
    assert f'transhash_items{{modality="images"}} {EACH}' in text
    assert 'transhash_http_request_seconds_bucket{route="/api/search/text",le="+Inf"}' in text
