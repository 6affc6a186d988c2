"""The service's work on the engine: plain functions on threads, replies as models."""

from __future__ import annotations

import asyncio
import io
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Collection, Modality
from transhash.errors import DataError, TranshashError
from transhash.index.weighted import BitWeights, RankingMode, query_weights
from transhash.model.query_encoder import TextProjections
from transhash.search.catalog import Item
from transhash.search.engine import DEFAULT_RANKING, SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage, voted_digest
from transhash.search.hits import Hit, Hits
from transhash.service.diagnostics import read_report
from transhash.service.limits import ChangeLock, WorkerPool
from transhash.service.originals import Original, open_original
from transhash.service.schemas import (
    BatchIn,
    BatchOut,
    Examples,
    HitOut,
    ItemOut,
    ItemQuery,
    QueryOut,
    SearchOut,
    TextIn,
    TextQuery,
    VoteIn,
    VoteOut,
)
from transhash.service.server import ReloadingEngine, RunFilesChangedError
from transhash.training.calibration import read_calibration, relevance_label

_COUNTED = 1.0  # seconds that a search says the same total: a server counts as long as it searches


class ItemNotFoundError(DataError):
    """No item has that number."""


class SearchService:
    """The engine, the threads that may use it, and what keeps changes apart."""

    def __init__(self, run: ReloadingEngine) -> None:
        self._run = run
        self._change = ChangeLock()
        # Pictures cost 100 times a text, so they queue apart and cannot starve the texts.
        self.texts = WorkerPool("texts", threads=2, waiting=254)
        self.images = WorkerPool("images", threads=1, waiting=15)
        self.reads = WorkerPool("reads", threads=2, waiting=254)
        self.changes = WorkerPool("changes", threads=1, waiting=15)
        self.counting = WorkerPool("counting", threads=1, waiting=15)
        self._counted: asyncio.Future[dict[Modality, int]] | None = None
        self._warm = False
        self._totals: dict[Modality, tuple[SearchEngine, float, int]] = {}
        self._curves: tuple[SearchEngine, list[float] | None] | None = None

    @property
    def engine(self) -> SearchEngine:
        """Raises if the run's files are gone."""
        return self._run.engine

    @property
    def lanes(self) -> tuple[WorkerPool, ...]:
        return (self.texts, self.images, self.reads, self.changes, self.counting)

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        self._counted = None
        self._run.close()

    def count(self, modality: Modality) -> int:
        return len(self.engine.indexes[modality])

    async def counts(self) -> dict[Modality, int]:
        """How many items there are, counted once for all who ask meanwhile: it may take long."""
        if self._counted is None or self._counted.done():
            work = self.counting.run(lambda: {name: self.count(name) for name in MODALITIES})
            self._counted = asyncio.ensure_future(work)
        return await asyncio.shield(self._counted)

    def warm(self) -> None:
        """Load what the first query would wait for: the image backbone, the index's pages."""
        if self._warm:
            return
        if self.engine.query_encoder.accepts_texts:
            self.search_text("warm", 1, "images")
        if self.engine.query_encoder.accepts_images:
            buffer = io.BytesIO()
            Image.new("RGB", (32, 32), "white").save(buffer, "PNG")
            self.search_image(buffer.getvalue(), 1, "texts")
        self._warm = True

    def probe(self) -> None:
        """Raises what a search would."""
        for modality in MODALITIES:
            if self.count(modality):
                code = Codes(
                    np.zeros((1, self.engine.query_encoder.bits // 8), np.uint8),
                    self.engine.query_encoder.bits,
                )
                self._search(code, 1, modality)

    def search_text(
        self, text: str, k: int, modality: Modality, ranking: RankingMode = DEFAULT_RANKING
    ) -> SearchOut:
        start = time.perf_counter()
        projections = self.engine.query_encoder.project_texts([text])
        code = Codes.from_projections(projections)
        query = QueryOut(text=text, code=bit_string(code.packed[0].tobytes()))
        features = self.engine.query_encoder.text_features
        if features is not None:
            query.known_words = list(dict.fromkeys(features.known_words(text)))
            query.unknown_words = list(dict.fromkeys(features.unknown_words(text)))
        return self._found(query, "texts", code, k, modality, start, ranking, projections)

    def search_image(
        self, data: bytes, k: int, modality: Modality, ranking: RankingMode = DEFAULT_RANKING
    ) -> SearchOut:
        start = time.perf_counter()
        projections = self.engine.encoder.project_image(data)
        code = Codes.from_projections(projections)
        query = QueryOut(code=bit_string(code.packed[0].tobytes()))
        return self._found(query, "images", code, k, modality, start, ranking, projections)

    def search_item(self, number: int, k: int, modality: Modality) -> SearchOut:
        start = time.perf_counter()
        item = self.item_of(number)
        query = QueryOut(item=item_out(item), code=bit_string(item.code))
        # One more, because an item is its own nearest neighbour.
        extra = int(item.modality == modality)
        code = self.engine.code_of(item)
        found = self._found(query, item.modality, code, k + extra, modality, start)
        found.hits = [hit for hit in found.hits if hit.number != number][:k]
        return found

    def batch(self, request: BatchIn) -> BatchOut:
        start = time.perf_counter()
        bits = self.engine.query_encoder.bits
        texts = [query.text for query in request.queries if isinstance(query, TextQuery)]
        values = self.engine.query_encoder.project_texts(texts) if texts else np.empty((0, bits))
        weighed = query_weights(values, request.ranking)
        rows = iter(Codes.from_projections(values).packed)
        packed, curves = [], []
        for query in request.queries:
            encode_queries: Modality = "texts"
            if isinstance(query, TextQuery):
                packed.append(next(rows))
            else:
                item = self.item_of(query.number)
                packed.append(np.frombuffer(item.code, dtype=np.uint8))
                encode_queries = item.modality
            curves.append(self._curve(encode_queries, request.modality))
        weights = None
        if weighed is not None:
            weights = np.ones((len(packed), bits), np.int64)  # of an item: Hamming distance
            weights[[isinstance(query, TextQuery) for query in request.queries]] = weighed
        results = self._search(Codes(np.stack(packed), bits), request.k, request.modality, weights)
        return BatchOut(
            modality=request.modality,
            ranking=request.ranking,
            rerank=self._reranked(request.k, request.modality, request.ranking),
            total=self._total(request.modality),
            bits=bits,
            took_ms=_since(start),
            results=[[hit_out(hit, curve) for hit in hits] for hits, curve in zip(results, curves)],
        )

    def item(self, number: int) -> ItemOut:
        return item_out(self.item_of(number))

    def thumbnail(self, number: int) -> bytes:
        data = self.engine.catalog.thumbnail(number)
        if data is None:
            raise ItemNotFoundError(f"item {number} does not exist or has no picture")
        return data

    def original(self, number: int) -> Original:
        """The item's own file, for the caller to close."""
        return open_original(self.engine.catalog, self.item_of(number))

    def preview(self, number: int) -> tuple[bytes, str]:
        """A larger JPEG of the item's file, and a tag that changes with the file."""
        original = self.original(number)
        try:
            return original.preview(), original.tag
        finally:
            original.close()

    def examples(self, count: int) -> Examples:
        """A few items to start from, as unlike each other as a sample of them allows."""
        catalog = self.engine.catalog
        texts = [item for item in catalog.sample("texts", 64) if item.text]
        # The shorter half: a query one would type.
        texts = sorted(texts, key=lambda item: len(item.text or ""))[: max(count, len(texts) // 2)]
        images = [item for item in catalog.sample("images", 64) if item.has_thumbnail]
        return Examples(
            texts=[item_out(item) for item in _farthest_first(texts, count)],
            images=[item_out(item) for item in _farthest_first(images, count)],
        )

    def add_texts(self, texts: Sequence[TextIn]) -> list[ItemOut]:
        ids = [text.id or _new_id() for text in texts]
        if len(set(ids)) != len(ids):
            raise DataError("the same id occurs twice; give each text its own id")
        with self.changing() as engine:
            done = engine.add_texts(Collection(ids, [text.text for text in texts]))
        return [self.item(number) for number in done.numbers]

    def add_image(self, data: bytes, item_id: str | None) -> list[ItemOut]:
        code = self.engine.encoder.encode_image(data)
        with self.changing() as engine:
            done = engine.add_image(data, item_id or _new_id(), code)
        return [self.item(number) for number in done.numbers]

    def remove(self, number: int) -> int:
        with self.changing() as engine:
            item = self.item_of(number)
            return engine.remove(item.modality, [item.id])

    @contextmanager
    def changing(self) -> Iterator[SearchEngine]:
        """The engine to change, alone; an error if its files are gone afterwards."""
        with self._change.one():
            engine = self.engine
            try:
                yield engine
            finally:
                self._totals.clear()
            if self.engine is not engine:
                raise RunFilesChangedError(
                    "the files of this run were replaced meanwhile; send it again"
                )

    def item_of(self, number: int) -> Item:
        item = self.engine.catalog.get([number]).get(number)
        if item is None:
            raise ItemNotFoundError(f"there is no item {number} in this run")
        return item

    def _search(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None = None
    ) -> list[Hits]:
        return self._change.apart(lambda: self.engine.similar_to_codes(codes, k, modality, weights))

    def _reranked(self, k: int, modality: Modality, ranking: RankingMode) -> int | None:
        return None if ranking == "hamming" else self.engine.indexes[modality].candidates(k)

    def _total(self, modality: Modality) -> int:
        engine, now = self.engine, time.monotonic()
        counted = self._totals.get(modality)
        if counted is None or counted[0] is not engine or now - counted[1] > _COUNTED:
            counted = self._totals[modality] = engine, now, len(engine.indexes[modality])
        return counted[2]

    def _curve(self, encode_queries: Modality, modality: Modality) -> list[float] | None:
        """P(related | distance) between the two kinds, read once for each opened run."""
        engine = self.engine
        if self._curves is None or self._curves[0] is not engine:
            self._curves = (
                engine,
                read_calibration(read_report(engine.run), engine.query_encoder.bits),
            )
        return None if encode_queries == modality else self._curves[1]

    def _found(
        self,
        query: QueryOut,
        encode_queries: Modality,
        code: Codes,
        k: int,
        modality: Modality,
        start: float,
        ranking: RankingMode = "hamming",
        projections: TextProjections | None = None,
    ) -> SearchOut:
        weights = None if projections is None else query_weights(projections, ranking)
        hits = self._search(code, k, modality, weights)[0]
        curve = self._curve(encode_queries, modality)
        return SearchOut(
            query=query,
            modality=modality,
            ranking=ranking,
            rerank=self._reranked(k, modality, ranking),
            total=self._total(modality),
            bits=code.bits,
            took_ms=_since(start),
            surest=None if curve is None else relevance_label(curve[0]),  # it never rises
            hits=[hit_out(hit, curve) for hit in hits],
        )


def bit_string(code: bytes) -> str:
    return f"{int.from_bytes(code, 'big'):0{len(code) * 8}b}"


def item_out(item: Item) -> ItemOut:
    return ItemOut(**_fields(item))


def hit_out(hit: Hit, curve: list[float] | None = None) -> HitOut:
    """`curve` tells how likely a result so far away is related."""
    probability = None if curve is None else curve[hit.distance]
    # Built by ourselves from checked values; validating a second time would cost more than search.
    return HitOut.model_construct(
        **_fields(hit.item),
        distance=hit.distance,
        differing=list(hit.differing),
        probability=probability,
        relevance=None if probability is None else relevance_label(probability),
    )


def _fields(item: Item) -> dict[str, Any]:
    # The folder of Item.source stays here: where files lie on the server is nobody's business.
    return {
        "number": item.number,
        "modality": item.modality,
        "id": item.id,
        "file": Path(item.source).name if item.source else None,
        "text": item.text,
        "thumbnail": f"/api/items/{item.number}/thumbnail" if item.has_thumbnail else None,
        "code": bit_string(item.code),
    }


def _farthest_first(items: list[Item], count: int) -> list[Item]:
    """Farthest-first choice by Hamming distance, starting from the first item."""
    chosen, rest = items[:1], items[1:]
    while rest and len(chosen) < count:
        best = max(rest, key=lambda item: min(_distance(item, other) for other in chosen))
        chosen.append(best)
        rest.remove(best)
    return chosen


def _distance(a: Item, b: Item) -> int:
    return (int.from_bytes(a.code, "big") ^ int.from_bytes(b.code, "big")).bit_count()


def _new_id() -> str:
    return uuid.uuid4().hex


def _since(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 3)


# Votes on results: given, taken back, and shown with the results they were given on.

_BOTH = "a vote is on an image and a text"
_log = logging.getLogger("transhash.service")


class FeedbackService:
    """Of a writable service."""

    def __init__(self, service: SearchService) -> None:
        self._desk = service

    def put(self, request: VoteIn) -> VoteOut:
        with self._desk.changing() as engine:
            image = VotedImage.of(engine.catalog, self._image(request.image))
            text, text_id = self._words(request.text)
            FeedbackStore(engine.run).put(StoredVote(image, text, request.vote, text_id))
        return VoteOut(image=request.image, text=text, vote=request.vote)

    def delete(self, image: int, asked: TextQuery | ItemQuery) -> VoteOut:
        with self._desk.changing() as engine:
            item = self._image(image)
            text, _ = self._words(asked)
            FeedbackStore(engine.run).delete(voted_digest(engine.catalog, item.number), text)
        return VoteOut(image=image, text=text, vote=None)

    def marked(self, found: SearchOut) -> SearchOut:
        """The reply with the votes on its results; a search goes on without them."""
        try:
            _mark(self._desk.engine, found)
        except TranshashError as error:
            _log.warning("votes are not shown: %s", error)
        return found

    def _image(self, number: int) -> Item:
        item = self._desk.item_of(number)
        if item.modality != "images":
            raise ItemNotFoundError(f"item {number} is a text; {_BOTH}")
        return item

    def _words(self, asked: TextQuery | ItemQuery) -> tuple[str, str | None]:
        """The text, and its id if it is an item."""
        if isinstance(asked, TextQuery):
            return asked.text, None
        item = self._desk.item_of(asked.number)
        if item.modality != "texts":
            raise ItemNotFoundError(
                f"item {item.number} is an image; a vote is on an image and a text"
            )
        if not item.text:
            raise DataError(f"item {item.number} has no words, so nothing can be learned from it")
        return item.text, item.id


def _mark(engine: SearchEngine, found: SearchOut) -> None:
    votes, item = FeedbackStore(engine.run), found.query.item
    if found.modality == "texts":
        if item is not None and item.modality == "images":
            texts = votes.on_image(voted_digest(engine.catalog, item.number))
            for hit in found.hits:
                hit.vote = texts.get(hit.text or "")  # type: ignore[assignment]
        return
    words = found.query.text or (item.text if item is not None else None)
    images = votes.for_text(words) if words else {}
    for hit in found.hits if images else ():
        hit.vote = images.get(voted_digest(engine.catalog, hit.number))  # type: ignore[assignment]
