"""The service is ready once everything is loaded that a first request would wait for."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from transhash.errors import DataError
from transhash.features.texts import CombinedTextFeatures
from transhash.features.words import Spelling, WordFeatures
from transhash.model.query_encoder import QueryEncoder
from transhash.search.engine import SearchEngine
from transhash.service import create_app, warm_up

from .small_run import LOCAL


@pytest.fixture
def engine(run: Path) -> Iterator[SearchEngine]:
    """Return an engine that no other test has used."""
    with SearchEngine.open(run) as engine:
        yield engine


def serve(engine: SearchEngine) -> TestClient:
    return TestClient(create_app(engine), base_url=LOCAL, raise_server_exceptions=False)


def spelling_of(engine: SearchEngine) -> Spelling:
    features = engine.query_encoder.text_features
    if isinstance(features, CombinedTextFeatures):
        features = features.words
    assert isinstance(features, WordFeatures)
    return features._spelling


def test_it_is_ready_only_after_the_model_is_loaded(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = threading.Event()
    load = QueryEncoder.warm_up

    def slow(encoder: QueryEncoder) -> None:
        may_load.wait(60)
        load(encoder)

    monkeypatch.setattr(QueryEncoder, "warm_up", slow)
    monkeypatch.setattr(warm_up, "_WAIT_SECONDS", 0.05)
    with serve(engine) as client:
        try:
            batch = {"queries": [{"text": "boat"}], "modality": "images"}
            for reply in (
                client.get("/ready"),
                client.get("/api/search/text?q=boat"),
                client.post("/api/search/batch", json=batch),
            ):
                assert reply.status_code == 503
                assert "loading" in reply.json()["error"]
                assert reply.headers["retry-after"] == "1"
            assert client.get("/health").json()["image_model_loaded"] is False
            assert client.get("/").status_code == 200
        finally:
            may_load.set()
        monkeypatch.setattr(warm_up, "_WAIT_SECONDS", 60)
        assert client.get("/ready").status_code == 200
        assert client.get("/health").json()["image_model_loaded"] is True
        assert client.get("/api/search/text?q=boat").status_code == 200


def test_items_added_while_the_model_is_loaded_are_found_and_kept(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, is_loading = threading.Event(), threading.Event()
    load = QueryEncoder.warm_up

    def slow(encoder: QueryEncoder) -> None:
        is_loading.set()
        may_load.wait(60)
        load(encoder)

    monkeypatch.setattr(QueryEncoder, "warm_up", slow)
    text = "a boat added early"
    with (
        SearchEngine.open(run_copy, writable=True) as engine,
        TestClient(
            create_app(engine, writable=True, write_key="secret-key"),
            base_url=LOCAL,
            headers={"x-api-key": "secret-key"},
        ) as client,
        ThreadPoolExecutor() as pool,
    ):
        try:
            assert is_loading.wait(60)
            adding = pool.submit(
                client.post, "/api/items/texts", json={"texts": [{"id": "early", "text": text}]}
            )
            client.get("/health").raise_for_status()
        finally:
            may_load.set()
        assert adding.result(60).status_code == 201
        query = {"q": text, "modality": "texts", "k": 1}
        assert client.get("/ready").status_code == 200
        (hit,) = client.get("/api/search/text", params=query).json()["hits"]
        assert (hit["id"], hit["distance"]) == ("early", 0)
    with SearchEngine.open(run_copy) as engine:
        assert engine.catalog.find("texts", "early") is not None


def test_the_first_unknown_word_after_readiness_builds_nothing(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_WAIT_SECONDS", 60)
    with serve(engine) as client:
        assert client.get("/ready").status_code == 200
        features, spelling = engine.query_encoder.text_features, spelling_of(engine)
        assert "_known" in vars(spelling)
        tables = spelling._known
        reply = client.get("/api/search/text?q=boatlike")
        assert reply.json()["query"]["known_words"] == ["boatlike"]
        assert engine.query_encoder.text_features is features
        assert spelling_of(engine) is spelling
        assert spelling._known is tables
        assert engine.encoder.text_features is features  # of added texts


def test_a_failed_warm_up_does_not_keep_requests_waiting(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(encoder: QueryEncoder) -> None:
        raise DataError("The text model is missing. Restore it.")

    monkeypatch.setattr(QueryEncoder, "warm_up", fail)
    monkeypatch.setattr(warm_up, "_WAIT_SECONDS", 60)
    with serve(engine) as client:
        assert client.get("/ready").status_code == 200  # the index can be searched
    assert "The text model is missing" in caplog.text


def test_a_run_that_is_opened_again_is_warm(run_copy: Path) -> None:
    replacement = Path(shutil.copytree(run_copy, run_copy.with_name("replacement")))
    reopen = partial(SearchEngine.open, run_copy)
    with reopen() as engine:
        app = create_app(engine, reopen=reopen)
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
            assert client.get("/ready").status_code == 200
            shutil.rmtree(run_copy)
            replacement.rename(run_copy)
            current = app.state.service.engine
            assert current is not engine
            assert "_known" in vars(spelling_of(current))
