"""Relevance in replies: the run's calibration at the distance of each result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from transhash.features.images import ImageSample
from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import LOCAL


def test_each_result_of_the_other_modality_has_the_probability_of_its_distance(
    client: TestClient, run: Path
) -> None:
    report = json.loads((run / "report.json").read_text())
    curve = report["validation"]["retrieval"]["calibration"]
    hits = client.get(
        "/api/search/text", params={"q": "a boat", "k": 48, "search": "codes"}
    ).json()["hits"]
    batch = {"queries": [{"text": "a boat"}], "k": 48, "search": "codes"}
    batch_hits = client.post("/api/search/batch", json=batch).json()["results"][0]
    for hit in [*hits, *batch_hits]:
        assert hit["probability"] == curve[hit["distance"]]
        p = hit["probability"]
        label = "likely" if p >= 0.5 else "possible" if p >= 0.2 else "unlikely"
        assert hit["relevance"] == label
    assert len({hit["relevance"] for hit in hits}) > 1


def test_a_reply_has_the_best_label_of_the_model(run_copy: Path) -> None:
    report = json.loads((run_copy / "report.json").read_text())
    held_out = report["validation"]["retrieval"]
    for best, label in ((0.9, "likely"), (0.3, "possible"), (0.1, "unlikely")):
        held_out["calibration"] = [best] + [0.0] * (len(held_out["calibration"]) - 1)
        (run_copy / "report.json").write_text(json.dumps(report))
        with (
            SearchEngine.open(run_copy) as engine,
            TestClient(create_app(engine), base_url=LOCAL) as client,
        ):
            assert client.get("/api/search/text?q=a+boat").json()["max_relevance"] == label
            assert (
                client.get("/api/search/text?q=a+boat&modality=texts").json()["max_relevance"]
                is None
            )


def test_results_of_the_same_modality_have_no_relevance(client: TestClient) -> None:
    number = client.get("/api/examples").json()["images"][0]["number"]
    for address in (
        f"/api/items/{number}/similar?modality=images",
        "/api/search/text?q=a&modality=texts",
    ):
        for hit in client.get(address).json()["hits"]:
            assert hit["probability"] is None
            assert hit["relevance"] is None
    across = client.get(f"/api/items/{number}/similar?modality=texts").json()["hits"]
    assert all(hit["relevance"] for hit in across)


def test_a_run_without_validation_has_no_relevance(run_copy: Path) -> None:
    report = json.loads((run_copy / "report.json").read_text())
    del report["validation"]
    (run_copy / "report.json").write_text(json.dumps(report))
    with (
        SearchEngine.open(run_copy) as engine,
        TestClient(create_app(engine), base_url=LOCAL) as client,
    ):
        hits = client.get("/api/search/text?q=a+boat").json()["hits"]
    assert [hit["relevance"] for hit in hits] == [None] * len(hits)
    assert all("distance" in hit for hit in hits)


def test_an_unknown_query_is_named_and_its_results_have_no_relevance(
    run_copy: Path, engine: SearchEngine
) -> None:
    words = {"q": "xyzzy plugh", "search": "codes"}
    item = engine.catalog.sample("images", 1)[0]
    assert item.path is not None
    image = Path(item.path).read_bytes()
    with (
        SearchEngine.open(run_copy) as opened,
        TestClient(create_app(opened), base_url=LOCAL) as client,
    ):
        own = client.post("/api/search/image", files={"image": image}).json()
        assert own["query"]["unknown_image"] is False
        assert all(hit["relevance"] for hit in own["hits"])
        sample = opened.encoder.image_sample
        assert sample is not None
        opened.encoder.image_sample = ImageSample(-sample.rows, sample.min_cosine)
        far = client.post("/api/search/image", files={"image": image}).json()
        assert far["query"]["unknown_image"] is True
        for reply in (far, client.get("/api/search/text", params=words).json()):
            assert reply["hits"]
            assert not any(hit["relevance"] for hit in reply["hits"])
            assert reply["max_relevance"] is None


def test_in_a_batch_too_the_results_of_an_unknown_query_have_no_relevance(
    client: TestClient,
) -> None:
    queries = [{"text": "xyzzy plugh"}, {"text": "a boat"}]
    batch = {"queries": queries, "k": 5, "search": "codes"}
    unknown, known = client.post("/api/search/batch", json=batch).json()["results"]
    assert unknown
    assert not any(hit["relevance"] or hit["probability"] for hit in unknown)
    assert all(hit["relevance"] for hit in known)


def test_a_query_that_is_as_far_from_all_items_as_random_codes_says_so(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        SearchEngine.open(run_copy) as engine,
        TestClient(create_app(engine), base_url=LOCAL) as client,
    ):
        text = engine.catalog.sample("texts", 1)[0].text
        words = {"q": text, "k": 1, "search": "codes", "modality": "texts"}

        def is_chance(**parameters: str) -> bool:
            return bool(
                client.get("/api/search/text", params=words | parameters).json()["is_chance"]
            )

        assert not is_chance()
        project = engine.query_encoder.project_texts
        monkeypatch.setattr(
            engine.query_encoder, "project_texts", lambda texts: project(texts) * flips
        )
        flips = np.where(np.arange(engine.query_encoder.bits) % 2, 1, -1)  # half of the bits
        assert is_chance()
        assert not is_chance(search="keywords")
        assert not is_chance(before="2030")
