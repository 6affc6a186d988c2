"""The typed client: it has what the OpenAPI document has, and a real service answers it."""

from __future__ import annotations

import inspect
import shutil
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, get_type_hints

import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter

from transhash.client import Client, SearchOptions
from transhash.errors import DataError, EngineError
from transhash.search.engine import SearchEngine
from transhash.service import create_app, schemas

from .server_process import ServerProcess, wait_until_ready
from .small_run import ITEMS, image_bytes

# Short names in addresses; a text and the number of a text are one argument.
ARGUMENTS = {"q": "text", "number of delete_vote": "text"}
CONTENT = {"text/plain": str, "image/jpeg": bytes, "application/octet-stream": bytes}


@pytest.fixture
def document(run_copy: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with SearchEngine.open(run_copy, writable=True) as engine:
        app: FastAPI = create_app(engine, write_key="write-key", sync_sources=[tmp_path])
        yield app.openapi()


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations by name."""
    paths = document["paths"].values()
    return {operation["operationId"]: operation for path in paths for operation in path.values()}


def parameters(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schemas of all parameters and fields of an operation."""
    operation = operations(document)[name]
    fields = {field["name"]: field["schema"] for field in operation.get("parameters", ())}
    for body in operation.get("requestBody", {}).get("content", {}).values():
        reference = body["schema"]["$ref"].rpartition("/")[2]
        fields |= document["components"]["schemas"][reference]["properties"]
    fields = {ARGUMENTS.get(f"{field} of {name}", field): fields[field] for field in fields}
    return {ARGUMENTS.get(field, field): schema for field, schema in fields.items()}


def json_types(schema: dict[str, Any]) -> set[str]:
    """Return the values or else the types that a schema allows, but null."""
    if "anyOf" in schema:
        return set().union(*map(json_types, schema["anyOf"])) - {"null"}
    return set(map(str, schema.get("enum", ()))) or {schema["type"]}


def arguments(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return types and defaults of a method's arguments."""
    method = getattr(Client, name)
    types = get_type_hints(method)
    del types["return"]
    if types.pop("options", None):
        types |= get_type_hints(SearchOptions)
    defaults = {
        argument.name: argument.default
        for argument in inspect.signature(method).parameters.values()
        if argument.default is not argument.empty
    }
    return types, defaults


def test_the_client_has_one_method_per_operation(document: dict[str, Any]) -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    assert {name for name in methods if not name.startswith("_")} == set(operations(document))


def test_arguments_have_the_names_types_and_defaults_of_the_document(
    document: dict[str, Any],
) -> None:
    compared = 0
    for name in operations(document):
        expected = parameters(document, name)
        expected.pop("if-none-match", None)  # of caches
        expected.pop("download", None)  # only changes a header
        types, defaults = arguments(name)
        assert set(types) == set(expected), name
        for argument, default in defaults.items():
            assert default == expected[argument].get("default"), (name, argument)
        for argument, schema in expected.items():
            if argument not in {"image", "text", "texts", "queries"}:  # files and unions
                own = TypeAdapter(types[argument]).json_schema()
                assert json_types(own) == json_types(schema), (name, argument)
                compared += 1
    assert compared > 30


def test_replies_have_the_type_of_the_document(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        (content,) = [
            reply["content"]
            for status, reply in operation["responses"].items()
            if status in {"200", "201", "202"}
        ]
        own = get_type_hints(getattr(Client, name))["return"]
        if "application/json" in content:
            reference = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert own is getattr(schemas, reference), name
        else:
            assert own in {CONTENT[kind] for kind in content}, name


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(run, folder / "run")
    (folder / "notes").mkdir()
    (folder / "notes" / "1.txt").write_text("a lighthouse by the sea")
    options = ("--originals", "--sync", str(folder / "notes"))
    with ServerProcess(
        folder / "run", *options, read_key="read-key", write_key="write-key"
    ) as server:
        wait_until_ready(server.url)
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return Client(server.url, key="write-key")


def test_every_search_returns_typed_results(client: Client) -> None:
    result = client.search_by_text("a boat with sails", k=5, search="codes")
    assert [type(hit) for hit in result.hits] == [schemas.HitOut] * 5
    assert result.total == ITEMS
    boat = result.hits[0]
    assert client.item(boat.number).id == boat.id
    assert client.search_by_item(boat.number, k=3).query.item is not None
    assert client.search_by_text("a boat", after="1800", k=3).hits == []
    batch = client.search_batch(["a boat with sails", boat.number], k=5, search="codes")
    assert [hit.number for hit in batch.results[0]] == [hit.number for hit in result.hits]
    original = client.item_original(boat.number)
    assert client.search_by_image(original, k=3, modality="images").hits[0].distance == 0
    assert client.item_thumbnail(boat.number)[:2] == client.item_preview(boat.number)[:2]


def test_every_description_of_the_service_is_typed(client: Client) -> None:
    assert client.describe_run().writable
    assert client.examples().images
    assert client.filters().sources
    assert client.run_diagnostics().results
    assert client.health().status == client.ready().status == "ok"
    assert "transhash_items" in client.prometheus_metrics()


def test_changes_votes_and_syncs_take_effect(client: Client, tmp_path: Path) -> None:
    (added,) = client.add_texts({"ä/1": "a green parrot"}).items
    assert client.item(added.number).text == "a green parrot"
    (named,) = client.add_texts(["without an id"]).items
    photo = tmp_path / "photo.png"
    photo.write_bytes(image_bytes())
    (image,) = client.add_image(photo, id="ö.png").items
    assert (image.id, image.modality) == ("ö.png", "images")
    assert client.put_vote(image.number, added.number, 1).vote == 1
    assert client.put_vote(image.number, "a parrot & 1+1", 0).text == "a parrot & 1+1"
    assert client.delete_vote(image.number, "a parrot & 1+1").vote is None
    assert client.delete_vote(image.number, added.number).vote is None
    for item in (added, named, image):
        assert client.remove(item.number).removed == 1
    client.start_sync()
    end = time.monotonic() + 60
    while client.sync_status().running or client.sync_status().last is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    hits = client.search_by_text("a lighthouse by the sea", modality="texts", k=1).hits
    assert hits[0].text == "a lighthouse by the sea"


def test_the_link_that_serve_prints_has_the_key(run_copy: Path) -> None:
    with ServerProcess(run_copy, "--writable") as server:
        wait_until_ready(server.url)
        assert Client(server.url + server.fragment).add_texts(["a boat"]).items
        with pytest.raises(DataError, match="key"):
            Client(server.url).add_texts(["a boat"])


def test_a_refused_request_has_the_message_of_the_service(
    client: Client, server: ServerProcess
) -> None:
    with pytest.raises(DataError, match="key"):
        Client(server.url).search_by_text("a boat")
    with pytest.raises(DataError, match="key"):
        Client(server.url, key="read-key").remove(1)
    with pytest.raises(DataError, match="does not exist"):
        client.item(999_999)
    with pytest.raises(DataError, match="Invalid k"):
        client.search_by_text("a boat", k=0)
    with pytest.raises(DataError, match="Invalid"):
        client.put_vote(1, "a", 7)  # type: ignore[arg-type]
    with pytest.raises(DataError):
        client.search_by_image(b"no image")


@pytest.mark.parametrize("value", [None, 1.5, b"x", [1.5], object()])
def test_a_wrong_type_is_a_sentence_that_says_what_to_pass(client: Client, value: Any) -> None:
    calls = [
        lambda: Client(value), lambda: client.search_by_text(value),
        lambda: client.search_by_item(value), lambda: client.search_batch(value),
        lambda: client.search_batch([value]), lambda: client.item(value),
        lambda: client.remove(value), lambda: client.add_texts(value),
        lambda: client.put_vote(1, value, 1), lambda: client.delete_vote(1, value),
    ]  # fmt: skip
    if not isinstance(value, bytes):
        calls += [lambda: client.search_by_image(value), lambda: client.add_image(value)]
    for call in calls:
        with pytest.raises(DataError) as caught:
            call()
        assert len(str(caught.value).split()) > 4


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/passwd", "ftp://x/y"])
def test_only_http_addresses_are_taken(url: str) -> None:
    with pytest.raises(DataError, match="HTTP address"):
        Client(url)


@pytest.fixture
def unused_tcp_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_service_that_is_not_there_is_an_engine_error(unused_tcp_port: int) -> None:
    with pytest.raises(EngineError, match="No reply"):
        Client(f"http://127.0.0.1:{unused_tcp_port}").health()


class _Redirecting(BaseHTTPRequestHandler):
    """Sends every request elsewhere; elsewhere has another kind of page."""

    keys: list[str | None] = []  # noqa: RUF012 (of this test only)

    def do_GET(self) -> None:
        self.keys.append(self.headers["X-API-Key"])
        if self.path.startswith("/elsewhere"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")
        else:
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_redirect_is_not_followed_with_the_key_and_another_page_is_refused() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Redirecting) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_address[1]}"
        with pytest.raises(EngineError, match="302 to /elsewhere"):
            Client(url, key="secret").health()
        assert _Redirecting.keys == ["secret"]
        with pytest.raises(EngineError, match="not a Health"):
            Client(f"{url}/elsewhere").health()
        other.shutdown()
