"""The page over Milvus: the same answers as over the run's own index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.cli.encode import copy_indexes
from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import EACH, LOCAL, picture


@pytest.fixture(scope="module")
def milvus(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    url = f"milvus:{tmp_path_factory.mktemp('milvus') / 'codes.db'}"
    copy_indexes(run, f"grouped:{run / 'index'}", url)
    engine = SearchEngine.open(run, url)
    with TestClient(create_app(engine), base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client
    engine.close()


@pytest.mark.parametrize("modality", ["images", "texts"])
def test_a_text_finds_the_same(client: TestClient, milvus: TestClient, modality: str) -> None:
    asked = {"q": "a boat with sails", "k": 40, "modality": modality}
    own, other = (each.get("/api/search/text", params=asked) for each in (client, milvus))
    assert other.status_code == 200
    assert len(other.json()["hits"]) == 40
    assert other.json()["hits"] == own.json()["hits"]
    assert other.json()["total"] == own.json()["total"]


def test_a_picture_an_item_and_a_batch_find_the_same(
    client: TestClient, milvus: TestClient
) -> None:
    def answers(each: TestClient) -> list[object]:
        upload = each.post("/api/search/image", params={"k": 9}, files={"image": picture()})
        number = upload.json()["hits"][0]["number"]
        similar = each.get(f"/api/items/{number}/similar", params={"k": 9})
        queries = [{"text": "a fish"}, {"number": number}]
        batch = each.post("/api/search/batch", json={"queries": queries, "k": 5})
        return [upload.json()["hits"], similar.json()["hits"], batch.json()["results"]]

    assert answers(milvus) == answers(client)


def test_it_says_how_many_it_ranked_finer(milvus: TestClient) -> None:
    asked = {"q": "a boat with sails", "k": 4}
    found = milvus.get("/api/search/text", params=asked).json()
    assert found["ranking"] == "weighted"
    assert found["reranked"] > 4
    plain = milvus.get("/api/search/text", params={**asked, "ranking": "hamming"}).json()
    assert plain["reranked"] is None


def test_it_is_ready_and_counts_its_items(milvus: TestClient) -> None:
    assert milvus.get("/ready").status_code == 200
    assert f'transhash_items{{modality="images"}} {EACH}' in milvus.get("/metrics").text
