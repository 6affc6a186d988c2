"""create_app(engine): routes, page, error sentences and the guard, put together."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from transhash import __version__
from transhash.errors import DataError, EngineError, TranshashError
from transhash.search.engine import SearchEngine
from transhash.service.diagnostics import RequestMetrics, presentable, read_diagnostics
from transhash.service.guard import LOOPBACK, ActiveRequests, ApiKey, Guard
from transhash.service.limits import BusyError
from transhash.service.originals import NoOriginalError
from transhash.service.routes import (
    about_routes,
    change_routes,
    original_routes,
    search_routes,
    vote_routes,
)
from transhash.service.schemas import About
from transhash.service.search_service import FeedbackService, ItemNotFoundError, SearchService
from transhash.service.server import ReloadingEngine, RunFilesChangedError

_log = logging.getLogger("transhash.service")
_PLACES = {"index.html": "/", "docs.html": "/docs"}
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".webmanifest": "application/json"}


def create_app(
    engine: SearchEngine,
    *,
    writable: bool = False,
    originals: bool = False,
    api_key: str | None = None,
    rate_limit: float | None = None,
    max_upload: int = 10 << 20,
    diagnostics: dict[str, Any] | None = None,
    allowed_hosts: Sequence[str] = LOOPBACK,
    timeout: float = 30.0,
    key_to_read: bool = False,
    reopen: Callable[[], SearchEngine] | None = None,
) -> FastAPI:
    """The service over an open engine, which the caller closes.

    `rate_limit` is in requests a second a client. `allowed_hosts` are the names under which the
    service may be addressed; ("*",) switches the check off. Without `diagnostics` they are read
    from the run folder. `originals` gives the files of images out. `key_to_read` asks for the key
    everywhere, not only for changes. `reopen` opens the run anew when its files were replaced;
    without it they have to come back themselves.
    """
    if (writable or key_to_read) and not api_key:
        raise DataError("a writable service needs a key; give --api-key or TRANSHASH_API_KEY")
    service, metrics, in_work = (
        SearchService(ReloadingEngine(engine, reopen)),
        RequestMetrics(),
        ActiveRequests(timeout),
    )
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
        max_upload=max_upload,
    )
    shown = presentable(read_diagnostics(engine.run) if diagnostics is None else diagnostics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # In the background: the page is there at once, the first picture does not wait longer.
        in_work.stopping = False
        warming = asyncio.create_task(_warm(service))
        yield
        warming.cancel()
        with suppress(asyncio.CancelledError):
            await warming
        service.close()

    app = FastAPI(
        title="transhash",
        version=__version__,
        summary="Search images by text and texts by image that were never paired.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's documentation pages load scripts from a CDN
        redoc_url=None,
    )
    voting = FeedbackService(service) if writable else None
    app.include_router(search_routes(service, voting))
    app.include_router(original_routes(service, originals))
    app.include_router(about_routes(service, metrics, about, shown))
    if voting:
        app.include_router(change_routes(service))
        app.include_router(vote_routes(service, voting))
    _add_page(app)
    _add_sentences(app)
    app.add_middleware(
        Guard,
        metrics=metrics,
        in_work=in_work,
        hosts=tuple(allowed_hosts),
        key=ApiKey(api_key, to_read=key_to_read) if api_key and (writable or key_to_read) else None,
        max_upload=max_upload,
        rate_limit=rate_limit,
    )
    app.state.service, app.state.in_work = service, in_work
    return app


async def _warm(service: SearchService) -> None:
    try:
        await service.images.run(service.warm)
    except TranshashError as error:
        _log.warning("the first query may fail: %s", error)
    except Exception:
        _log.exception("warming up failed; the first query may, too")


def _add_page(app: FastAPI) -> None:
    """Every file of web/ by its own route: no path is ever made from a request."""
    for file in files("transhash").joinpath("web").iterdir():
        if file.is_file():
            app.add_route(
                _PLACES.get(file.name, f"/{file.name}"),
                _static(file.name, file.read_bytes()),
                include_in_schema=False,
            )


def _static(name: str, content: bytes) -> Any:
    suffix = name[name.rfind(".") :]
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    # Asked for again each time but sent once: a new version is seen at once.
    headers = {
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        "Cache-Control": "no-cache",
    }

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(None, 304, headers)
        return Response(content, 200, headers, kind)

    return answer


def _add_sentences(app: FastAPI) -> None:
    """Every error as {"error": "a sentence"}."""

    def reply(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": sentence}, status, headers)

    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        message = str(first["msg"])
        return reply(422, f"{place}: {message[0].lower()}{message[1:]}")

    async def http(request: Request, error: HTTPException) -> JSONResponse:
        sentence = str(error.detail)
        if error.status_code == 404:
            sentence = f"there is nothing at {request.url.path}; /openapi.json lists what there is"
        elif error.status_code == 405:
            sentence = f"{request.method} is not possible here; /openapi.json lists what is"
        return reply(error.status_code, sentence, dict(error.headers or {}))

    async def missing(_: Request, error: ItemNotFoundError) -> JSONResponse:
        return reply(404, str(error))

    async def no_original(_: Request, error: NoOriginalError) -> JSONResponse:
        return reply(error.status, str(error))

    async def data(_: Request, error: DataError) -> JSONResponse:
        return reply(422, str(error))

    async def gone(_: Request, error: RunFilesChangedError) -> JSONResponse:
        _log.warning("%s", error)
        return reply(503, "the files of this run are gone or were replaced; put them back")

    async def engine(_: Request, error: EngineError) -> JSONResponse:
        # The message may hold paths and addresses: those are for the log.
        _log.warning("engine: %s", error)
        return reply(503, "the search engine cannot do this now; the service's log says why")

    async def files(_: Request, error: OSError | sqlite3.Error) -> JSONResponse:
        _log.warning("files: %s", error)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return reply(503, f"the files of this run cannot be used now: {str(reason).lower()}")

    async def busy(_: Request, error: BusyError) -> JSONResponse:
        return reply(503, "too many searches at once; try again", {"Retry-After": "1"})

    handlers: dict[type[Exception], Any] = {
        RequestValidationError: validation,
        HTTPException: http,
        ItemNotFoundError: missing,
        NoOriginalError: no_original,
        DataError: data,
        RunFilesChangedError: gone,
        EngineError: engine,
        OSError: files,
        sqlite3.Error: files,
        BusyError: busy,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
