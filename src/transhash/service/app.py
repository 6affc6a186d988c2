"""Build the FastAPI application: routes, search page, error replies and the guard."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from transhash import __version__
from transhash.errors import DataError, EngineError
from transhash.search.engine import SearchEngine
from transhash.service.diagnostics import RequestMetrics, read_diagnostics
from transhash.service.guard import LOOPBACK, ActiveRequests, ApiKeys, Guard
from transhash.service.limits import BusyError
from transhash.service.originals import OriginalNotAvailableError
from transhash.service.routes import (
    change_routes,
    info_routes,
    original_routes,
    search_routes,
    sync_routes,
)
from transhash.service.schemas import About, SyncResult
from transhash.service.search_service import (
    FeedbackService,
    ItemNotFoundError,
    ReloadingEngine,
    RunFilesChangedError,
    SearchService,
)
from transhash.service.sync_job import SyncJob
from transhash.service.warm_up import WarmingUpError, WarmUp

_log = logging.getLogger("transhash.service")
_PAGE_PATHS = {"index.html": "/", "api-docs.html": "/docs"}
# Not from `mimetypes`: Windows may have other types registered for these.
_CONTENT_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def create_app(
    engine: SearchEngine,
    *,
    writable: bool = False,
    originals: bool = False,
    read_key: str | None = None,
    write_key: str | None = None,
    rate_limit: float | None = None,
    key_rate_limit: float | None = None,
    max_upload: int = 10 << 20,
    allowed_hosts: Sequence[str] = LOOPBACK,
    timeout: float = 30.0,
    protect_reads: bool = False,
    reopen: Callable[[], SearchEngine] | None = None,
    sync_sources: Sequence[Path] = (),
    sync_seconds: float | None = None,
    on_sync: Callable[[SyncResult], None] | None = None,
) -> FastAPI:
    """Return the application that serves an open engine, which the caller closes.

    Changes need `write_key`. With `read_key` or `protect_reads`, reads need one of the keys.
    `rate_limit` is in requests per second per client, `key_rate_limit` per key. `allowed_hosts` are
    the host names the service answers to; ("*",) allows all. `originals` allows viewing and
    downloading image files. `reopen` opens the run again after its files were replaced.
    `sync_sources` are synced on request and, every `sync_seconds`, if they changed; `on_sync` gets
    the result, and the track of `report_to` the progress.
    """
    writable = writable or bool(sync_sources)
    if writable and not write_key:
        raise DataError(
            "A writable service needs a write key. Pass --write-key-file or set "
            "TRANSHASH_WRITE_KEY."
        )
    if protect_reads and not (read_key or write_key):
        raise DataError("Protected reads need an API key. Pass a read key or a write key.")
    keys = ApiKeys(read_key or None, write_key or None, bool(protect_reads or read_key))
    service = SearchService(ReloadingEngine(engine, reopen))
    warm_up = WarmUp(service)
    sync_job = SyncJob(service, sync_sources, sync_seconds, on_sync) if sync_sources else None
    metrics, active_requests = RequestMetrics(), ActiveRequests(timeout)
    query_encoder = engine.query_encoder
    about = About(
        version=__version__,
        method=query_encoder.method,
        bits=query_encoder.bits,
        images=0,
        texts=0,
        accepts_text=query_encoder.accepts_texts,
        accepts_images=query_encoder.accepts_images,
        writable=writable,
        originals=originals,
        sync=sync_job is not None,
        max_upload=max_upload,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        active_requests.stopping = False
        warm_up.start()  # in the background: the search page is available at once
        if sync_job is not None:
            sync_job.start()
        yield
        if sync_job is not None:
            sync_job.stop()
        await warm_up.stop()
        service.close()

    app = FastAPI(
        title="transhash",
        version=__version__,
        summary="Search images by text and texts by image, without paired data.",
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,  # names methods of generated clients
        docs_url=None,  # FastAPI's documentation pages load scripts from a CDN
        redoc_url=None,
    )
    feedback = FeedbackService(service) if writable else None
    app.include_router(search_routes(service, warm_up, feedback))
    app.include_router(original_routes(service, originals))
    app.include_router(info_routes(service, warm_up, metrics, about, read_diagnostics(engine.run)))
    if feedback:
        app.include_router(change_routes(service, feedback))
    if sync_job is not None:
        app.include_router(sync_routes(sync_job))
    # One route per file of web/: no path is ever built from a request.
    for file in files("transhash").joinpath("web").iterdir():
        content_type = _CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type:
            path = _PAGE_PATHS.get(file.name, f"/{file.name}")
            route = _static_route(file.read_bytes(), content_type)
            app.add_route(path, route, include_in_schema=False)
    for error_class in _HANDLED_ERRORS:
        app.add_exception_handler(error_class, _error_reply)
    app.add_middleware(
        Guard,
        metrics=metrics,
        active_requests=active_requests,
        hosts=tuple(allowed_hosts),
        keys=keys if writable or keys.protect_reads else None,
        max_upload=max_upload,
        rate_limit=rate_limit,
        key_rate_limit=key_rate_limit,
    )
    app.state.service, app.state.active_requests = service, active_requests
    return app


def _static_route(content: bytes, content_type: str) -> Callable[[Request], Awaitable[Response]]:
    # Revalidated each time, so that a new version shows at once.
    headers = {
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        "Cache-Control": "no-cache",
    }

    async def reply(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(None, 304, headers)
        return Response(content, 200, headers, content_type)

    return reply


_QUERY_FORMS = ("TextQuery", "ItemQuery")
_HANDLED_ERRORS = (
    RequestValidationError,
    HTTPException,
    DataError,
    EngineError,
    OSError,
    sqlite3.Error,
    BusyError,
    WarmingUpError,
)


def _describe_invalid(errors: Sequence[Any]) -> str:
    """Return what is wrong with a request, of all that was found."""

    def form(error: Any) -> str:
        return next((part for part in error["loc"] if part in _QUERY_FORMS), "")

    # A query may have several forms: the one with the fewest errors was meant.
    counts = Counter(map(form, errors))
    error = min(errors, key=lambda error: counts[form(error)])
    location, kind = [str(part) for part in error["loc"] if part not in _QUERY_FORMS], error["type"]
    if kind == "json_invalid":
        return f"The body is not valid JSON: {error['ctx']['error']} at character {location[-1]}."
    name = ".".join(location[1:]) or location[0]
    message = str(error["msg"])
    if location[-1] in ("after", "before"):
        message = "use YYYY, YYYY-MM or YYYY-MM-DD"
    elif kind == "string_too_short" or error.get("ctx", {}).get("pattern") == r"\S":
        message = "it is blank"
    elif kind in ("model_attributes_type", "model_type", "dict_type"):
        message = 'pass an object such as {"text": "a bird"}'
    elif "UploadFile" in message:
        message = "send a file, with curl -F image=@photo.jpg"
    return f"Invalid {name}: {message[0].lower()}{message[1:]}."


async def _error_reply(request: Request, error: Exception) -> JSONResponse:
    """Return an error as {"error": "what is wrong, and what to do"}."""
    headers: Mapping[str, str] | None = None
    match error:
        case RequestValidationError():
            status, message = 422, _describe_invalid(error.errors())
        case HTTPException():
            status, headers = error.status_code, error.headers
            message = str(error.detail)
            if status == 404:
                message = f"Nothing exists at {request.url.path}. See /openapi.json for all routes."
            elif status == 405:
                message = f"{request.method} is not allowed here. See /openapi.json for all routes."
        case ItemNotFoundError():
            status, message = 404, str(error)
        case OriginalNotAvailableError():
            status, message = error.status, str(error)
        case DataError():
            status, message = 422, str(error)
        case WarmingUpError():
            status, headers = 503, {"Retry-After": "1"}
            message = "The service is still loading its model. Try again in a second."
        case BusyError():
            status, headers = 503, {"Retry-After": "1"}
            message = "Too many searches at once. Try again in a second."
        case RunFilesChangedError():
            _log.warning("%s", error)
            status, message = 503, "The run's files are missing or were replaced. Restore them."
        case EngineError():
            # The message may contain paths and addresses, so it goes to the log only.
            _log.warning("Index error: %s", error)
            status, message = 503, "The index is not available. See the server log for the reason."
        case _:
            _log.warning("File error: %s", error)
            reason = error.strerror if isinstance(error, OSError) else error
            status, message = 503, f"The run's files cannot be used ({reason}). Try again later."
    return JSONResponse({"error": message}, status, headers)
