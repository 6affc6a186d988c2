"""Who may see and who may change, on this machine and beyond it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from transhash.errors import DataError, EngineError
from transhash.search.engine import SearchEngine
from transhash.service import create_app, serve_run

from .served import Served
from .small_run import LOCAL

KEY = "open-π"
HEADER = {b"x-api-key": KEY.encode()}


@pytest.fixture(scope="module")
def guarded(engine: SearchEngine) -> Iterator[TestClient]:
    app = create_app(engine, api_key=KEY, key_to_read=True)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client


PATHS = ["/", "/app.js", "/api/about", "/api/items/1/thumbnail", "/metrics", "/openapi.json"]


@pytest.mark.parametrize("path", PATHS)
def test_a_key_to_read_is_asked_for_everywhere(guarded: TestClient, path: str) -> None:
    refused = guarded.get(path)
    assert refused.status_code == 401
    assert "X-API-Key" in refused.json()["error"]
    # Upon this a browser asks for a password and sends it with every request, pictures too.
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert guarded.get(path, headers=HEADER).status_code == 200  # type: ignore[arg-type]
    assert guarded.get(path, auth=("anyone", KEY)).status_code == 200


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !!", "Basic 4pi6", "Bearer open", "Basic YTpvcGVu"]
)
def test_a_wrong_or_broken_password_is_refused(guarded: TestClient, authorization: str) -> None:
    assert guarded.get("/", headers={"Authorization": authorization}).status_code == 401


def test_health_and_readiness_need_no_key(guarded: TestClient) -> None:
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/ready").status_code == 200


def test_a_password_that_browsers_send_along_changes_nothing(own_run: Path) -> None:
    engine = SearchEngine.open(own_run, writable=True)
    app = create_app(engine, writable=True, api_key=KEY, key_to_read=True)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        new = {"texts": [{"text": "a cat"}]}
        assert client.post("/api/items/texts", json=new, auth=("a", KEY)).status_code == 401
        assert client.delete("/api/items/1", auth=("a", KEY)).status_code == 401
        added = client.post("/api/items/texts", json=new, headers=HEADER)  # type: ignore[arg-type]
        assert added.status_code == 201
    engine.close()


def test_a_key_to_read_has_to_be_given(engine: SearchEngine) -> None:
    with pytest.raises(DataError, match="needs a key"):
        create_app(engine, key_to_read=True)


def test_serving_others_without_a_key_says_what_it_exposes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host, warned in (("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)):
            caplog.clear()
            with (
                caplog.at_level(logging.WARNING, "transhash.service"),
                pytest.raises(EngineError, match="choose another"),
            ):
                serve_run(tmp_path, host=host, port=port)
            assert ("everybody who can reach" in caplog.text) is warned


@pytest.mark.slow
def test_beyond_loopback_the_key_is_asked_of_readers_and_clients_behind_a_proxy_are_told_apart(
    run: Path,
) -> None:
    options = ("--host", "0.0.0.0", "--api-key", "secret", "--rate-limit", "2")
    with Served(run, *options) as served, httpx.Client(base_url=served.url) as client:
        assert client.get("/").status_code == 401
        assert client.get("/health").status_code == 200
        client.headers["X-API-Key"] = "secret"
        assert "<title>transhash</title>" in client.get("/").text
        clients = [
            client.get("/api/about", headers={"X-Forwarded-For": f"192.0.2.{i}"}).status_code
            for i in range(20)
        ]
        assert set(clients) == {200}
        one = {"X-Forwarded-For": "192.0.2.99"}
        statuses = {client.get("/api/about", headers=one).status_code for _ in range(20)}
        assert statuses == {200, 429}
        assert "everybody" not in served.complaints()


@pytest.mark.slow
def test_a_writable_service_on_loopback_makes_its_key_and_ends_the_printed_link_in_it(
    own_run: Path,
) -> None:
    keys = []
    for _ in range(2):  # another one at each start
        with Served(own_run, "--writable") as served, httpx.Client(base_url=served.url) as client:
            assert served.fragment.startswith("#key=")
            keys.append(served.fragment.removeprefix("#key="))
            text = {"texts": [{"id": "new", "text": "a boat"}]}
            for key in ("", keys[0][:-1], "#key=" + keys[-1]):
                refused = client.post("/api/items/texts", json=text, headers={"X-API-Key": key})
                assert refused.status_code == 401
            header = {"X-API-Key": keys[-1]}
            assert client.post("/api/items/texts", json=text, headers=header).status_code == 201
            assert keys[-1] not in served.complaints()
    assert len(set(keys)) == 2
    with Served(own_run, "--writable", "--api-key", "mine") as served:
        assert served.fragment == ""  # what was chosen is known, and printed nowhere


def test_a_service_that_others_reach_is_not_writable_without_a_chosen_key(run: Path) -> None:
    with pytest.raises(DataError, match="needs a key"):
        serve_run(run, host="0.0.0.0", port=0, writable=True)
