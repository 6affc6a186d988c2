"""The routes: check the question, hand it to a lane, return the reply."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Form, Header, Path, Query, Security, UploadFile
from fastapi.security import APIKeyHeader
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from transhash import __version__
from transhash.data.collection import Modality
from transhash.errors import DataError
from transhash.index.weighted import RankingMode
from transhash.search.engine import DEFAULT_RANKING
from transhash.service.diagnostics import CONTENT_TYPE, RequestMetrics
from transhash.service.originals import NoOriginalError
from transhash.service.schemas import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    MAX_RESULTS,
    About,
    Added,
    BatchIn,
    BatchOut,
    Diagnostics,
    ErrorOut,
    Examples,
    Id,
    ItemOut,
    ItemQuery,
    Removed,
    SearchOut,
    Status,
    TextQuery,
    TextsIn,
    VoteIn,
    VoteOut,
)
from transhash.service.search_service import FeedbackService, SearchService

Count = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many results")]
ModalityParam = Annotated[Modality, Query(description="what to search")]
RankingParam = Annotated[
    RankingMode, Query(description="whether bits the query is sure of count more")
]
_COUNTING = 1.0  # seconds that the figures wait for the number of items
ItemNumber = Annotated[int, Path(ge=0, le=LARGEST_NUMBER)]


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: these statuses, and those any route may give."""
    usual = (401, 403, 408, 421, 422, 429, 500, 503, 504)
    return {status: {"model": ErrorOut} for status in (*statuses, *usual)}


def search_routes(service: SearchService, voting: FeedbackService | None = None) -> APIRouter:
    """With `voting`, results say what was voted on them."""
    router = APIRouter(prefix="/api", tags=["search"])
    marked = voting.marked if voting else lambda found: found

    @router.get("/search/text", responses=refusals())
    async def search_by_text(
        q: Annotated[
            str, Query(min_length=1, max_length=LONGEST_TEXT, pattern=r"\S", description="a text")
        ],
        k: Count = 24,
        modality: ModalityParam = "images",
        ranking: RankingParam = DEFAULT_RANKING,
    ) -> SearchOut:
        """Items nearest to a sentence."""
        return await service.texts.run(
            lambda: marked(service.search_text(q.strip(), k, modality, ranking))
        )

    @router.post("/search/image", responses=refusals(400, 413))
    async def search_by_image(
        image: UploadFile,
        k: Count = 24,
        modality: ModalityParam = "texts",
        ranking: RankingParam = DEFAULT_RANKING,
    ) -> SearchOut:
        """Items nearest to a picture: any format that `index` reads."""

        def search() -> SearchOut:
            # Read here: until a thread is free the picture waits on disk, not in memory.
            return service.search_image(image.file.read(), k, modality, ranking)

        return await service.images.run(search)

    @router.get("/items/{number}/similar", responses=refusals(404))
    async def search_by_item(
        number: ItemNumber, k: Count = 24, modality: ModalityParam = "images"
    ) -> SearchOut:
        """Items nearest to an indexed one, itself left out; by Hamming distance."""
        return await service.texts.run(lambda: marked(service.search_item(number, k, modality)))

    @router.post("/search/batch", responses=refusals(400, 404, 413))
    async def search_batch(request: BatchIn) -> BatchOut:
        """Many queries in one request; each is a text or the number of an item."""
        return await service.texts.run(service.batch, request)

    @router.get("/items/{number}", responses=refusals(404))
    async def item(number: ItemNumber) -> ItemOut:
        """One item."""
        return await service.reads.run(service.item, number)

    @router.get(
        "/items/{number}/thumbnail",
        response_class=Response,
        responses={**refusals(404), 200: {"content": {"image/jpeg": {}}}, 304: {}},
    )
    async def item_thumbnail(
        number: ItemNumber, if_none_match: Annotated[str | None, Header()] = None
    ) -> Response:
        """A small JPEG of an image, encoded anew: pixels and nothing else of the original."""
        data = await service.reads.run(service.thumbnail, number)
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "private, max-age=300"}
        if if_none_match == tag:
            return Response(None, 304, headers)
        return Response(data, 200, headers, "image/jpeg")

    return router


def original_routes(service: SearchService, allowed: bool) -> APIRouter:
    router = APIRouter(prefix="/api/items", tags=["originals"])

    def check() -> None:
        if not allowed:
            sentence = "files are not given here; transhash serve --originals allows it"
            raise NoOriginalError(403, sentence)

    @router.get(
        "/{number}/original",
        response_class=Response,
        responses={**refusals(404, 409, 410), 200: {"content": {"application/octet-stream": {}}}},
    )
    async def item_original(
        number: ItemNumber,
        download: Annotated[bool, Query(description="to keep it, not to look at it")] = False,
    ) -> Response:
        """The file of an image as it is, if it is still the one that was indexed."""
        check()
        original = await service.images.run(service.original, number)
        return StreamingResponse(original.pieces(), headers=original.headers(download=download))

    @router.get(
        "/{number}/picture",
        response_class=Response,
        responses={**refusals(404, 409, 410), 200: {"content": {"image/jpeg": {}}}, 304: {}},
    )
    async def item_picture(
        number: ItemNumber, if_none_match: Annotated[str | None, Header()] = None
    ) -> Response:
        """A JPEG of up to 1,600 pixels of an image's file, encoded anew."""
        check()
        data, digest = await service.images.run(service.preview, number)
        tag = f'"{digest}"'
        headers = {"ETag": tag, "Cache-Control": "private, max-age=300"}
        if if_none_match == tag:
            return Response(None, 304, headers)
        return Response(data, 200, headers, "image/jpeg")

    return router


def about_routes(
    service: SearchService, metrics: RequestMetrics, about: About, diagnostics: Diagnostics
) -> APIRouter:
    router = APIRouter(tags=["about"])
    kept: list[Examples] = []

    @router.get("/api/about", responses=refusals())
    async def about_this_run() -> About:
        """Which model, how many items."""
        counts = await service.counts()
        return about.model_copy(update={str(name): count for name, count in counts.items()})

    @router.get("/api/examples", responses=refusals())
    async def examples() -> Examples:
        """A few texts and images of this run to start from."""
        if not kept:  # sampling reads the whole list of numbers, so it is done once
            kept.append(await service.reads.run(service.examples, 8))
        return kept[0]

    @router.get("/api/diagnostics", responses=refusals())
    async def run_diagnostics() -> Diagnostics:
        """The alignment map, the training report and the results table of this run."""
        return diagnostics

    @router.get("/health")
    async def health() -> Status:
        """The process answers."""
        return Status()

    @router.get("/ready", responses=refusals())
    async def ready() -> Status:
        """A search goes through: model, index and catalog are there."""
        await service.texts.run(service.probe)
        return Status()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Prometheus text format."""
        waiting = {f'lane="{lane.name}"': float(lane.pending) for lane in service.lanes}
        counts: dict[str, float] = {}
        with suppress(Exception):  # an engine that is slow or away must not hide the other figures
            async with asyncio.timeout(_COUNTING):
                counts = {f'modality="{name}"': n for name, n in (await service.counts()).items()}
        gauges = {
            "transhash_items": ("Items in the index.", counts),
            "transhash_pending": ("Requests in work or waiting, by lane.", waiting),
            "transhash_info": ("Version.", {f'version="{__version__}"': 1.0}),
        }
        return Response(metrics.render(gauges), media_type=CONTENT_TYPE)

    return router


# For the document; the guard looks at the key before it lets a body in.
_KEY = Security(APIKeyHeader(name="X-API-Key", auto_error=False))


def change_routes(service: SearchService) -> APIRouter:
    router = APIRouter(prefix="/api/items", tags=["changes"], dependencies=[_KEY])

    @router.post("/texts", status_code=201, responses=refusals(400, 413))
    async def add_texts(request: TextsIn) -> Added:
        """Add texts, or replace those with a known id; on disk and searchable before the reply."""
        return Added(items=await service.changes.run(service.add_texts, request.texts))

    @router.post("/images", status_code=201, responses=refusals(400, 413))
    async def add_image(image: UploadFile, id: Annotated[Id | None, Form()] = None) -> Added:
        """Add a picture, or replace the one with that id."""
        return Added(
            items=await service.changes.run(lambda: service.add_image(image.file.read(), id))
        )

    @router.delete("/{number}", responses=refusals(404))
    async def remove(number: ItemNumber) -> Removed:
        """Forget an item."""
        return Removed(removed=await service.changes.run(service.remove, number))

    return router


def vote_routes(service: SearchService, voting: FeedbackService) -> APIRouter:
    router = APIRouter(prefix="/api/votes", tags=["changes"], dependencies=[_KEY])

    @router.post("", responses=refusals(400, 404, 413))
    async def give_vote(request: VoteIn) -> VoteOut:
        """Say whether an image and a text belong together; replaces what was said before."""
        return await service.changes.run(voting.put, request)

    @router.delete("", responses=refusals(404))
    async def take_vote_back(
        image: Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="number of an image")],
        text: Annotated[
            str | None,
            Query(min_length=1, max_length=LONGEST_TEXT, pattern=r"\S", description="typed words"),
        ] = None,
        number: Annotated[
            int | None, Query(ge=0, le=LARGEST_NUMBER, description="or the number of a text")
        ] = None,
    ) -> VoteOut:
        """Forget what was said of an image and a text; that nothing was said is no error."""
        if (text is None) == (number is None):
            raise DataError("give the text's words as text, or its number: one of the two")
        asked = TextQuery(text=text) if text is not None else ItemQuery(number=number or 0)
        return await service.changes.run(voting.delete, image, asked)

    return router
