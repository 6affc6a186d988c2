"""Valid and invalid requests generated from the OpenAPI document get documented replies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transhash.search.engine import SearchEngine
from transhash.service import create_app

OPERATIONS = {
    "GET /api/search/text",
    "POST /api/search/image",
    "POST /api/search/batch",
    "GET /api/items/{number}",
    "GET /api/items/{number}/similar",
    "GET /api/items/{number}/thumbnail",
    "GET /api/items/{number}/preview",
    "GET /api/items/{number}/original",
    "GET /api/about",
    "GET /api/examples",
    "GET /api/filters",
    "GET /api/diagnostics",
    "GET /health",
    "GET /ready",
    "GET /metrics",
}
CHANGES = {
    "POST /api/items/texts",
    "POST /api/items/images",
    "DELETE /api/items/{number}",
    "POST /api/votes",
    "GET /api/sync",
    "POST /api/sync",
    "DELETE /api/votes",
}
# Not in the schema: a file may not be an image, ids may repeat, text and number exclude each other.
BEYOND_SCHEMA = {
    "POST /api/search/image",
    "POST /api/items/images",
    "POST /api/items/texts",
    "DELETE /api/votes",
}


@pytest.fixture(scope="module")
def app(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    own = Path(shutil.copytree(run, tmp_path_factory.mktemp("openapi") / "run"))
    (own / "notes").mkdir()
    (own / "notes" / "1.txt").write_text("a boat")
    engine = SearchEngine.open(own, writable=True)
    app = create_app(
        engine, writable=True, write_key="key", sync_sources=[own / "notes"], allowed_hosts=("*",)
    )
    with TestClient(app):
        yield app
    engine.close()


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> dict[str, Any]:
    reason = "Schemathesis is not installed; pip install schemathesis"
    schemathesis = pytest.importorskip("schemathesis", reason=reason)
    # Not with its pytest plugin, which depends on internals of pytest.
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in operations}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", sorted(OPERATIONS | CHANGES))
def test_every_operation_follows_its_schema(
    operations: dict[str, Any], name: str, mode: str
) -> None:
    import schemathesis

    generation = schemathesis.GenerationMode(mode)
    operation = operations[name]
    if mode == "negative" and not (operation.query or operation.path_parameters or operation.body):
        pytest.skip("a request without parameters cannot be invalid")

    @given(st.data())
    @settings(
        max_examples=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def check(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=generation))
        beyond = [schemathesis.checks.positive_data_acceptance] if name in BEYOND_SCHEMA else []
        case.call_and_validate(headers={"X-API-Key": "key"}, excluded_checks=beyond)

    check()


def test_the_openapi_document_describes_every_route(client: TestClient, app: FastAPI) -> None:
    for document, expected in (
        (client.get("/openapi.json").json(), OPERATIONS),
        (app.openapi(), OPERATIONS | CHANGES),
    ):
        described = {
            f"{method.upper()} {path}"
            for path, methods in document["paths"].items()
            for method in methods
        }
        assert described == expected
