"""A service on a Milvus index gives the same results as on the run's own index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.cli.index import copy
from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import ITEMS, LOCAL, image_bytes


@pytest.fixture(scope="module")
def milvus(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    url = f"milvus:{tmp_path_factory.mktemp('milvus') / 'codes.db'}"
    copy(run, f"grouped:{run / 'index'}", url)
    engine = SearchEngine.open(run, url)
    with TestClient(create_app(engine), base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client
    engine.close()


@pytest.mark.parametrize("modality", ["images", "texts"])
def test_text_search_gives_the_same_results(
    client: TestClient, milvus: TestClient, modality: str
) -> None:
    query = {"q": "a boat with sails", "k": 40, "modality": modality}
    own, other = (each.get("/api/search/text", params=query) for each in (client, milvus))
    assert other.status_code == 200
    assert len(other.json()["hits"]) == 40
    assert other.json()["hits"] == own.json()["hits"]
    assert other.json()["total"] == own.json()["total"]


def test_image_item_and_batch_search_give_the_same_results(
    client: TestClient, milvus: TestClient
) -> None:
    def results(each: TestClient) -> list[object]:
        upload = each.post("/api/search/image", params={"k": 9}, files={"image": image_bytes()})
        number = upload.json()["hits"][0]["number"]
        similar = each.get(f"/api/items/{number}/similar", params={"k": 9})
        queries = [{"text": "a fish"}, {"number": number}]
        batch = each.post("/api/search/batch", json={"queries": queries, "k": 5})
        return [upload.json()["hits"], similar.json()["hits"], batch.json()["results"]]

    assert results(milvus) == results(client)


def test_a_reply_has_the_size_of_the_rerank_pool(milvus: TestClient) -> None:
    query = {"q": "a boat with sails", "k": 4}
    weighted = milvus.get("/api/search/text", params=query).json()
    assert weighted["ranking"] == "weighted"
    assert weighted["rerank_pool"] > 4
    hamming = milvus.get("/api/search/text", params={**query, "ranking": "hamming"}).json()
    assert hamming["rerank_pool"] is None


def test_it_is_ready_and_counts_its_items(milvus: TestClient) -> None:
    assert milvus.get("/ready").status_code == 200
    assert f'transhash_items{{modality="images"}} {ITEMS}' in milvus.get("/metrics").text
