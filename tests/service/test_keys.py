"""Who may read and who may write, on loopback and on other addresses."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from scale.command import Command
from transhash.errors import DataError, EngineError
from transhash.search.engine import SearchEngine
from transhash.service import create_app, serve_run

from .server_process import ServerProcess
from .small_run import LOCAL

KEY = "open-π"
HEADER = {b"x-api-key": KEY.encode()}


@pytest.fixture(scope="module")
def guarded(engine: SearchEngine) -> Iterator[TestClient]:
    app = create_app(engine, read_key=KEY)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client


PATHS = ["/", "/app.js", "/api/about", "/api/items/1/thumbnail", "/metrics", "/openapi.json"]


@pytest.mark.parametrize("path", PATHS)
def test_protected_reads_need_the_key_everywhere(guarded: TestClient, path: str) -> None:
    refused = guarded.get(path)
    assert refused.status_code == 401
    assert "X-API-Key" in refused.json()["error"]
    # A browser then asks for a password and sends it with every request.
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert guarded.get(path, headers=HEADER).status_code == 200  # type: ignore[arg-type]
    assert guarded.get(path, auth=("anyone", KEY)).status_code == 200


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !!", "Basic 4pi6", "Bearer open", "Basic YTpvcGVu"]
)
def test_a_wrong_or_malformed_password_is_refused(guarded: TestClient, authorization: str) -> None:
    assert guarded.get("/", headers={"Authorization": authorization}).status_code == 401


def test_health_and_readiness_need_no_key(guarded: TestClient) -> None:
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/ready").status_code == 200


def test_a_password_does_not_allow_changes(run_copy: Path) -> None:
    engine = SearchEngine.open(run_copy, writable=True)
    app = create_app(engine, writable=True, write_key=KEY, protect_reads=True)
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        new = {"texts": [{"text": "a cat"}]}
        assert client.post("/api/items/texts", json=new, auth=("a", KEY)).status_code == 401
        assert client.delete("/api/items/1", auth=("a", KEY)).status_code == 401
        added = client.post("/api/items/texts", json=new, headers=HEADER)  # type: ignore[arg-type]
        assert added.status_code == 201
    engine.close()


def test_the_read_key_reads_and_the_write_key_reads_and_writes(run_copy: Path) -> None:
    new = {"texts": [{"text": "a cat"}]}
    vote = {"image": 1, "text": {"text": "a cat"}, "vote": 1}
    with SearchEngine.open(run_copy, writable=True) as engine:
        app = create_app(engine, writable=True, read_key=KEY, write_key="write-π")
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
            for key, may_read, may_write in (
                (KEY, 1, 0),
                ("write-π", 1, 1),
                ("x", 0, 0),
                ("", 0, 0),
            ):
                header = {b"x-api-key": key.encode()}
                read = client.get("/api/search/text?q=a", headers=header)  # type: ignore[arg-type]
                assert read.status_code == (200 if may_read else 401)
                batch = {"queries": [{"text": "a cat"}]}
                read = client.post("/api/search/batch", json=batch, headers=header)  # type: ignore[arg-type]
                assert read.status_code == (200 if may_read else 401)
                for path, body in (("/api/items/texts", new), ("/api/votes", vote)):
                    written = client.post(path, json=body, headers=header)  # type: ignore[arg-type]
                    assert (written.status_code in (200, 201)) is bool(may_write), written.text
                    assert may_write or written.status_code == 401
                deleted = client.delete("/api/items/999999", headers=header)  # type: ignore[arg-type]
                assert deleted.status_code == (404 if may_write else 401)
            refused = client.post("/api/votes", json=vote, headers=HEADER)  # type: ignore[arg-type]
            assert "read key" in refused.json()["error"]
            assert client.get("/", auth=("anyone", "write-π")).status_code == 200


def test_requests_are_limited_per_key_and_those_without_a_key_are_not_counted(
    run_copy: Path,
) -> None:
    with SearchEngine.open(run_copy, writable=True) as engine:
        app = create_app(
            engine, writable=True, write_key="write", read_key="read", key_rate_limit=0.1
        )
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:

            def ask(key: str) -> int:
                return client.get("/api/about", headers={"X-API-Key": key}).status_code

            assert [ask("wrong") for _ in range(3)] == [401, 401, 401]
            assert [ask("read") for _ in range(2)] == [200, 429]
            assert [ask("write") for _ in range(2)] == [200, 429]  # it has a limit of its own
            assert client.get("/health").status_code == 200


def test_equal_keys_are_refused(engine: SearchEngine) -> None:
    with pytest.raises(DataError, match="different keys"):
        create_app(engine, writable=True, read_key="same-key", write_key="same-key")


def test_keys_are_read_from_files_and_the_environment(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, file = Command(capsys, monkeypatch), tmp_path / "key"
    for content in ("", "short", "two\nlines\n", "x" * 201):
        file.write_text(content)
        assert "openssl rand" in command.refused("serve", run, "--write-key-file", file)
    assert "Cannot read" in command.refused("serve", run, "--read-key-file", tmp_path / "no")
    monkeypatch.setenv("TRANSHASH_READ_KEY", "short")
    message = command.refused("serve", run)
    assert "$TRANSHASH_READ_KEY" in message
    assert "short" not in message


def test_protected_reads_without_a_key_are_refused(engine: SearchEngine) -> None:
    with pytest.raises(DataError, match="need an API key"):
        create_app(engine, protect_reads=True)


def test_serving_without_a_key_beyond_loopback_logs_a_warning(
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
                pytest.raises(EngineError, match="--port"),
            ):
                serve_run(tmp_path, host=host, port=port)
            assert ("Anyone who can reach" in caplog.text) is warned


@pytest.mark.slow
def test_beyond_loopback_reads_need_the_key_and_each_proxied_client_has_its_rate_limit(
    run: Path,
) -> None:
    options = ("--host", "0.0.0.0", "--rate-limit", "2")
    with (
        ServerProcess(run, *options, read_key="secret-π") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert client.get("/").status_code == 401
        assert client.get("/health").status_code == 200
        client.headers = {b"x-api-key": "secret-π".encode()}  # type: ignore[assignment]
        assert "<title>transhash</title>" in client.get("/").text
        clients = [
            client.get("/api/about", headers={"X-Forwarded-For": f"192.0.2.{i}"}).status_code
            for i in range(20)
        ]
        assert set(clients) == {200}
        one = {"X-Forwarded-For": "192.0.2.99"}
        statuses = {client.get("/api/about", headers=one).status_code for _ in range(20)}
        assert statuses == {200, 429}
        assert "Anyone" not in server.stderr()


@pytest.mark.slow
def test_a_writable_service_on_loopback_prints_a_link_with_a_generated_key(
    run_copy: Path,
) -> None:
    keys = []
    for _ in range(2):  # a new key for each start
        with (
            ServerProcess(run_copy, "--writable") as server,
            httpx.Client(base_url=server.url, timeout=60) as client,
        ):
            assert server.fragment.startswith("#key=")
            keys.append(server.fragment.removeprefix("#key="))
            text = {"texts": [{"id": "new", "text": "a boat"}]}
            for key in ("", keys[0][:-1], "#key=" + keys[-1]):
                refused = client.post("/api/items/texts", json=text, headers={"X-API-Key": key})
                assert refused.status_code == 401
            header = {"X-API-Key": keys[-1]}
            assert client.post("/api/items/texts", json=text, headers=header).status_code == 201
            assert keys[-1] not in server.stderr()
    assert len(set(keys)) == 2
    with ServerProcess(run_copy, "--writable", write_key="my-own-key") as server:
        assert server.fragment == ""  # a key set by the user is not printed


def test_a_writable_service_beyond_loopback_needs_a_key(run: Path) -> None:
    with pytest.raises(DataError, match="needs a write key"):
        serve_run(run, host="0.0.0.0", port=0, writable=True)
