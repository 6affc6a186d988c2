"""HTTP routes: validate the request, run it on a worker pool, return the reply."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Header, Path, Query, Security, UploadFile
from fastapi.security import APIKeyHeader
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from transhash import __version__
from transhash.data.collection import Modality
from transhash.errors import DataError
from transhash.index.weighted import RankingMode
from transhash.search.engine import DEFAULT_RANKING
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode
from transhash.service import schemas
from transhash.service.diagnostics import METRICS_CONTENT_TYPE, RequestMetrics
from transhash.service.originals import OriginalNotAvailableError
from transhash.service.schemas import MAX_ITEM_NUMBER, MAX_RESULTS, MAX_TEXT_LENGTH
from transhash.service.search_service import FeedbackService, ResultOptions, SearchService
from transhash.service.sync_job import SyncJob
from transhash.service.warm_up import WarmUp

_COUNT_SECONDS = 1.0  # that /metrics waits for the number of items
_EXAMPLES = 8

CountParam = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="number of results")]
ModalityParam = Annotated[Modality, Query(description="modality of the results")]
RankingParam = Annotated[
    RankingMode, Query(description="weighted (by query confidence), tiebreak or hamming")
]
SearchParam = Annotated[
    SearchMode, Query(description="hybrid (codes and keywords), codes or keywords")
]


def _options(
    folder: Annotated[
        schemas.FolderName | None, Query(description="only items in this folder of their source")
    ] = None,
    after: Annotated[
        schemas.DateText | None,
        Query(description="only images taken since: YYYY, YYYY-MM or YYYY-MM-DD"),
    ] = None,
    before: Annotated[
        schemas.DateText | None, Query(description="only images taken until the end of")
    ] = None,
    source: Annotated[
        schemas.FolderName | None, Query(description="only items of this indexed folder or file")
    ] = None,
    collapse: Annotated[
        bool, Query(description="show copies of one item as one result with `duplicates`")
    ] = True,
) -> ResultOptions:
    return ResultOptions.from_request(folder, after, before, source, collapse)


OptionParams = Annotated[ResultOptions, Depends(_options)]
ItemNumber = Annotated[int, Path(ge=0, le=MAX_ITEM_NUMBER)]
EtagHeader = Annotated[str | None, Header()]


def search_routes(
    service: SearchService, warm_up: WarmUp, feedback: FeedbackService | None = None
) -> APIRouter:
    """Return the search routes; with `feedback`, results include votes."""
    router = APIRouter(prefix="/api", tags=["search"])
    annotate = feedback.annotate if feedback else lambda result: result

    texts_loaded = [Depends(warm_up.texts)]

    @router.get("/search/text", responses=_errors(), dependencies=texts_loaded)
    async def search_by_text(
        q: Annotated[
            str, Query(min_length=1, max_length=MAX_TEXT_LENGTH, pattern=r"\S", description="text")
        ],
        options: OptionParams,
        k: CountParam = 24,
        modality: ModalityParam = "images",
        ranking: RankingParam = DEFAULT_RANKING,
        search: SearchParam = DEFAULT_SEARCH,
    ) -> schemas.SearchOut:
        """Search by text."""
        return await service.texts.run(
            lambda: annotate(service.search_text(q.strip(), k, modality, ranking, search, options))
        )

    @router.post("/search/image", responses=_errors(400, 413))
    async def search_by_image(
        image: UploadFile,
        options: OptionParams,
        k: CountParam = 24,
        modality: ModalityParam = "texts",
        ranking: RankingParam = DEFAULT_RANKING,
    ) -> schemas.SearchOut:
        """Search by an uploaded image in any format that `transhash index` reads."""
        # Read on the thread: until one is free, the image waits on disk and not in memory.
        return await service.images.run(
            lambda: service.search_image(image.file.read(), k, modality, ranking, options)
        )

    @router.get("/items/{number}/similar", responses=_errors(404))
    async def search_by_item(
        number: ItemNumber,
        options: OptionParams,
        k: CountParam = 24,
        modality: ModalityParam = "images",
    ) -> schemas.SearchOut:
        """Search by an indexed item, which is excluded; ranked by Hamming distance."""
        return await service.texts.run(
            lambda: annotate(service.search_item(number, k, modality, options))
        )

    @router.post("/search/batch", responses=_errors(400, 404, 413), dependencies=texts_loaded)
    async def search_batch(request: schemas.BatchIn) -> schemas.BatchOut:
        """Run several queries, each a text or the number of an item."""
        return await service.texts.run(service.search_batch, request)

    @router.get("/filters", responses=_errors())
    async def filters() -> schemas.FiltersOut:
        """Return the folders, sources and dates that results can be restricted to."""
        return await service.reads.run(service.filters)

    @router.get("/items/{number}", responses=_errors(404))
    async def item(number: ItemNumber) -> schemas.ItemOut:
        """Return one item."""
        return await service.reads.run(service.item, number)

    @router.get("/items/{number}/thumbnail", **_jpeg_route(404))
    async def item_thumbnail(number: ItemNumber, if_none_match: EtagHeader = None) -> Response:
        """Return a small JPEG of an image, re-encoded so that no metadata remains."""
        data = await service.reads.run(service.thumbnail, number)
        return _jpeg_reply(data, hashlib.sha256(data).hexdigest()[:16], if_none_match)

    return router


def original_routes(service: SearchService, allowed: bool) -> APIRouter:
    async def check_allowed() -> None:
        if not allowed:
            raise OriginalNotAvailableError(
                403, "Original files are not shared. Allow it with: transhash serve --originals"
            )

    dependencies = [Depends(check_allowed)]
    router = APIRouter(prefix="/api/items", tags=["originals"], dependencies=dependencies)

    @router.get(
        "/{number}/original",
        response_class=Response,
        responses={**_errors(404, 409, 410), 200: {"content": {"application/octet-stream": {}}}},
    )
    async def item_original(
        number: ItemNumber,
        download: Annotated[bool, Query(description="save the file instead of showing it")] = False,
    ) -> Response:
        """Return the file of an image, if it is unchanged since indexing."""
        original = await service.originals.run(service.original, number)
        return StreamingResponse(original.chunks(), headers=original.headers(download=download))

    @router.get("/{number}/preview", **_jpeg_route(404, 409, 410))
    async def item_preview(number: ItemNumber, if_none_match: EtagHeader = None) -> Response:
        """Return a JPEG of up to 1,600 pixels of an image's file."""
        data, digest = await service.originals.run(service.preview, number)
        return _jpeg_reply(data, digest, if_none_match)

    return router


def info_routes(
    service: SearchService,
    warm_up: WarmUp,
    metrics: RequestMetrics,
    about: schemas.About,
    diagnostics: schemas.Diagnostics,
) -> APIRouter:
    router = APIRouter(tags=["info"])

    @router.get("/api/about", responses=_errors())
    async def describe_run() -> schemas.About:
        """Return the model, the number of items and what this service allows."""
        counts = await service.counts()
        return about.model_copy(update={str(name): count for name, count in counts.items()})

    @router.get("/api/examples", responses=_errors())
    async def examples() -> schemas.ExamplesOut:
        """Return a few indexed texts and images to start from."""
        return await service.reads.run(service.examples, _EXAMPLES)

    @router.get("/api/diagnostics", responses=_errors())
    async def run_diagnostics() -> schemas.Diagnostics:
        """Return the alignment map, training report and results of the run."""
        return diagnostics

    @router.get("/health")
    async def health() -> schemas.Health:
        """Reply if the process is alive."""
        return schemas.Health(image_model_loaded=service.image_model_loaded)

    @router.get("/ready", responses=_errors(), dependencies=[Depends(warm_up.everything)])
    async def ready() -> schemas.Status:
        """Reply with 200 if the model is loaded and index and catalog can be searched."""
        await service.texts.run(service.probe)
        return schemas.Status()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def prometheus_metrics() -> Response:
        """Return metrics in the Prometheus text format."""
        pending = {f'pool="{pool.name}"': float(pool.pending) for pool in service.pools}
        counts: dict[str, float] = {}
        with suppress(Exception):  # a slow or missing index must not hide the other metrics
            async with asyncio.timeout(_COUNT_SECONDS):
                counts = {f'modality="{name}"': n for name, n in (await service.counts()).items()}
        gauges = {
            "transhash_items": ("Items in the index.", counts),
            "transhash_pending": ("Requests running or queued, by worker pool.", pending),
            "transhash_info": ("Version.", {f'version="{__version__}"': 1.0}),
        }
        return Response(metrics.render(gauges), media_type=METRICS_CONTENT_TYPE)

    return router


# For the OpenAPI document only; the guard checks the key before it accepts a body.
_KEY = Security(APIKeyHeader(name="X-API-Key", auto_error=False))


def change_routes(service: SearchService, feedback: FeedbackService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["changes"], dependencies=[_KEY])

    @router.post("/items/texts", status_code=201, responses=_errors(400, 413))
    async def add_texts(request: schemas.TextsIn) -> schemas.ItemsOut:
        """Add or replace texts; they are on disk and searchable before the reply."""
        return schemas.ItemsOut(items=await service.changes.run(service.add_texts, request.texts))

    @router.post("/items/images", status_code=201, responses=_errors(400, 413))
    async def add_image(
        image: UploadFile, id: Annotated[schemas.ItemId | None, Form()] = None
    ) -> schemas.ItemsOut:
        """Add or replace an image; it is on disk and searchable before the reply."""
        return schemas.ItemsOut(
            items=await service.changes.run(lambda: service.add_image(image.file.read(), id))
        )

    @router.delete("/items/{number}", responses=_errors(404))
    async def remove(number: ItemNumber) -> schemas.RemovedOut:
        """Remove an item from the index."""
        return schemas.RemovedOut(removed=await service.changes.run(service.remove, number))

    @router.post("/votes", responses=_errors(400, 404, 413))
    async def put_vote(request: schemas.VoteIn) -> schemas.VoteOut:
        """Store or replace the vote on an image and a text."""
        return await service.changes.run(feedback.put, request)

    @router.delete("/votes", responses=_errors(404))
    async def delete_vote(
        image: Annotated[int, Query(ge=0, le=MAX_ITEM_NUMBER, description="number of an image")],
        text: Annotated[
            str | None,
            Query(
                min_length=1, max_length=MAX_TEXT_LENGTH, pattern=r"\S", description="a typed text"
            ),
        ] = None,
        number: Annotated[
            int | None, Query(ge=0, le=MAX_ITEM_NUMBER, description="or the number of a text")
        ] = None,
    ) -> schemas.VoteOut:
        """Remove the vote on an image and a text, if there is one."""
        if (text is None) == (number is None):
            raise DataError("Text and number are alternatives. Pass exactly one of them.")
        query = (
            schemas.TextQuery(text=text)
            if text is not None
            else schemas.ItemQuery(number=number or 0)
        )
        return await service.changes.run(feedback.delete, image, query)

    return router


def sync_routes(job: SyncJob) -> APIRouter:
    router = APIRouter(prefix="/api/sync", tags=["sync"])

    @router.get("", responses=_errors())
    async def sync_status() -> schemas.SyncStatus:
        """Return the progress of the sync that runs, and the result of the last one."""
        return job.status()

    @router.post("", status_code=202, responses=_errors(), dependencies=[_KEY])
    async def start_sync() -> schemas.SyncStatus:
        """Sync the sources of this service, again if a sync is running."""
        return job.request()

    return router


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses for these statuses and those that any route may give."""
    common = (401, 403, 408, 421, 422, 429, 500, 503, 504)
    return {status: {"model": schemas.ErrorOut} for status in (*statuses, *common)}


def _jpeg_route(*statuses: int) -> dict[str, Any]:
    responses = {**_errors(*statuses), 200: {"content": {"image/jpeg": {}}}, 304: {}}
    return {"response_class": Response, "responses": responses}


def _jpeg_reply(data: bytes, digest: str, if_none_match: str | None) -> Response:
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=300"}
    if if_none_match == headers["ETag"]:
        return Response(None, 304, headers)
    return Response(data, 200, headers, "image/jpeg")
