"""What replies say of relevance: the curve of the run, read at the distance of each result."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi.testclient import TestClient

from transhash.search.engine import SearchEngine
from transhash.service import create_app

from .small_run import LOCAL


def test_each_result_of_the_other_kind_has_the_probability_of_its_distance(
    client: TestClient, run: Path
) -> None:
    report = json.loads((run / "report.json").read_text())
    curve = report["verdict"]["held_out"]["related_by_distance"]
    found = client.get("/api/search/text", params={"q": "a boat", "k": 48}).json()["hits"]
    batch = {"queries": [{"text": "a boat"}], "k": 48}
    together = client.post("/api/search/batch", json=batch).json()["results"][0]
    for hit in [*found, *together]:
        assert hit["probability"] == curve[hit["distance"]]
        near = hit["probability"] >= 0.5
        word = "likely" if near else "maybe" if hit["probability"] >= 0.2 else "far"
        assert hit["relevance"] == word
    assert len({hit["relevance"] for hit in found}) > 1


def test_a_reply_says_the_most_that_the_run_could_say(own_run: Path) -> None:
    report = json.loads((own_run / "report.json").read_text())
    held_out = report["verdict"]["held_out"]
    for best, word in ((0.9, "likely"), (0.3, "maybe"), (0.1, "far")):
        held_out["related_by_distance"] = [best] + [0.0] * (
            len(held_out["related_by_distance"]) - 1
        )
        (own_run / "report.json").write_text(json.dumps(report))
        with (
            SearchEngine.open(own_run) as engine,
            TestClient(create_app(engine), base_url=LOCAL) as client,
        ):
            assert client.get("/api/search/text?q=a+boat").json()["surest"] == word
            assert client.get("/api/search/text?q=a+boat&among=texts").json()["surest"] is None


def test_between_items_of_one_kind_nothing_is_claimed(client: TestClient) -> None:
    number = client.get("/api/examples").json()["images"][0]["number"]
    for address in (
        f"/api/items/{number}/similar?among=images",
        "/api/search/text?q=a&among=texts",
    ):
        for hit in client.get(address).json()["hits"]:
            assert hit["probability"] is None
            assert hit["relevance"] is None
    across = client.get(f"/api/items/{number}/similar?among=texts").json()["hits"]
    assert all(hit["relevance"] for hit in across)


def test_a_run_that_was_never_asked_has_distances_only(own_run: Path) -> None:
    report = json.loads((own_run / "report.json").read_text())
    del report["verdict"]
    (own_run / "report.json").write_text(json.dumps(report))
    with (
        SearchEngine.open(own_run) as engine,
        TestClient(create_app(engine), base_url=LOCAL) as client,
    ):
        hits = client.get("/api/search/text?q=a+boat").json()["hits"]
    assert [hit["relevance"] for hit in hits] == [None] * len(hits)
    assert all("distance" in hit for hit in hits)
