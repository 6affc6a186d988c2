"""SearchService: what the routes do with the engine, as plain functions that run on threads."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from PIL import Image

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Collection, Modality
from transhash.errors import DataError, EngineError, TranshashError
from transhash.features.decode import ImageSummary, ImageTask, Pixels, summary_task
from transhash.features.decode_processes import DecoderProcess
from transhash.index.weighted import BitWeights, RankingMode, query_weights
from transhash.model.query_encoder import TextProjections
from transhash.search.catalog import NO_FILTER, Catalog, Item, SearchFilter
from transhash.search.engine import DEFAULT_RANKING, SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage, voted_digest
from transhash.search.hits import MIN_COVERAGE, Hit, Hits, is_chance, without_item
from transhash.search.keywords import DEFAULT_SEARCH, FUNCTION_WORDS, SearchMode
from transhash.search.retrieval import QueryKeywords
from transhash.search.writer import IndexWriter
from transhash.service import schemas
from transhash.service.diagnostics import read_report
from transhash.service.limits import ChangeLock, WorkerPool
from transhash.service.originals import Original, open_original
from transhash.training.calibration import read_calibration, relevance_label

_RETRY_SECONDS = 1.0  # between two attempts to open a run that came back
_CLOSED = (-1, -1)  # identity of no file: an engine that was closed here must be opened again


class RunFilesChangedError(EngineError):
    """The run's files are not those that were opened; the message has no path."""


class ReloadingEngine:
    """The engine of a run, opened again with `reopen` after its files were replaced.

    Open files outlive their names: an engine whose folder was deleted would keep searching and
    storing, and what it stores would be lost when the process ends.
    """

    def __init__(
        self, engine: SearchEngine, reopen: Callable[[], SearchEngine] | None = None
    ) -> None:
        self._engine = engine
        self._reopen = reopen
        self._owns_engine = False  # True once it was opened here and not by the caller
        self._lock = threading.Lock()
        self._last_attempt = float("-inf")
        self._opened_files = _file_identities(engine.run)

    @property
    def engine(self) -> SearchEngine:
        """The engine; raises RunFilesChangedError if its files are missing."""
        if not self._is_current(_file_identities(self._engine.run)):
            with self._lock:
                self._reload()
        return self._engine

    def close(self) -> None:
        """Close the engine if it was opened here; the first one belongs to the caller."""
        with self._lock:
            if self._owns_engine:
                self._engine.close()
                self._opened_files = {}

    def _is_current(self, files: dict[str, tuple[int, int]]) -> bool:
        return bool(self._opened_files) and files | self._opened_files == files

    def _reload(self) -> None:
        files = _file_identities(self._engine.run)
        if self._is_current(files):
            return  # another thread opened it, or the folder was moved back
        if self._reopen is None or not files.keys() >= self._opened_files.keys():
            raise RunFilesChangedError("The run's files are missing. Restore them.")
        if time.monotonic() - self._last_attempt < _RETRY_SECONDS:
            raise RunFilesChangedError("The run's files were replaced. Try again in a second.")
        self._last_attempt = time.monotonic()
        self._engine.close()  # first: it may hold the writer's lock on files that are still there
        self._opened_files = dict.fromkeys(self._opened_files, _CLOSED)
        try:
            self._engine = self._reopen()
            self._engine.query_encoder.warm_up()
        except (TranshashError, OSError) as error:
            raise RunFilesChangedError(f"The replaced run cannot be opened. {error}") from None
        self._owns_engine, self._opened_files = True, _file_identities(self._engine.run)


def _file_identities(run: Path) -> dict[str, tuple[int, int]]:
    """Return device and inode of the run's files; missing files are left out."""
    # Not with Path: this is done for every search.
    folders = [f"{run}/index/{modality}" for modality in MODALITIES]
    identities = {}
    for path in (f"{run}/catalog.sqlite", *folders):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        identities[path] = (stat.st_dev, stat.st_ino)
    for path in (f"{folder}/index.json" for folder in folders):
        if os.path.exists(path):  # existence only: each generation of the index replaces it
            identities[path] = (0, 0)
    return identities


_log = logging.getLogger("transhash.service")
_DECODE_SECONDS = 15.0  # for one image; the largest take a few
_TOTAL_SECONDS = 1.0  # that a total is reused: counting takes some servers as long as a search
_EXAMPLE_SAMPLE = 64  # items of each modality from which examples are chosen


@dataclass(frozen=True)
class ResultOptions:
    """Which items may be results, and whether copies of one item are one result."""

    filters: SearchFilter = NO_FILTER
    collapse: bool = True

    @classmethod
    def from_request(
        cls,
        folder: str | None,
        after: str | None,
        before: str | None,
        source: str | None,
        collapse: bool,
    ) -> ResultOptions:
        """Return the options of a client, which knows no path outside of the sources."""
        folder = folder.lstrip("/") if folder else None
        source = os.path.basename(source.rstrip("/")) if source else None
        return cls(SearchFilter(folder, after or None, before or None, source), collapse)


DEFAULT_OPTIONS = ResultOptions()
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _repeated(
    read: Callable[Concatenate[SearchService, _P], _T],
) -> Callable[Concatenate[SearchService, _P], _T]:
    """Repeat a read once if its engine was replaced, and so closed, meanwhile."""

    @wraps(read)
    def repeat(service: SearchService, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        engine = service.engine
        try:
            return read(service, *args, **kwargs)
        except Exception:
            if service.engine is engine:
                raise
        return read(service, *args, **kwargs)

    return repeat


class ItemNotFoundError(DataError):
    """No item has that number."""


class SearchService:
    """The engine, the worker pools that use it, and the lock for changes."""

    def __init__(self, run: ReloadingEngine) -> None:
        self._run = run
        self._change_lock = ChangeLock()
        # An image takes 100 times as long as a text, so images have a pool of their own.
        self.texts = WorkerPool("texts", threads=2, queue_size=254)
        self.images = WorkerPool("images", threads=1, queue_size=15)
        self.reads = WorkerPool("reads", threads=2, queue_size=254)
        self.changes = WorkerPool("changes", threads=1, queue_size=15)
        self.originals = WorkerPool("originals", threads=2, queue_size=62)
        self.counting = WorkerPool("counting", threads=1, queue_size=15)
        self.image_model_loaded = False
        # Uploads are decoded in a process that may crash.
        self._decoder = DecoderProcess(seconds=_DECODE_SECONDS)
        self._preview_decoder = DecoderProcess(seconds=_DECODE_SECONDS)
        self._closing = threading.Event()
        self._counts: asyncio.Future[dict[Modality, int]] | None = None
        self._totals: dict[Modality, tuple[SearchEngine, float, int]] = {}
        self._calibration: tuple[SearchEngine, list[float] | None] | None = None
        self._examples = threading.local()  # as versions of a catalog are comparable in one thread

    @property
    def engine(self) -> SearchEngine:
        """The engine; raises RunFilesChangedError if the run's files are missing."""
        return self._run.engine

    @property
    def pools(self) -> tuple[WorkerPool, ...]:
        return (self.texts, self.images, self.reads, self.changes, self.originals, self.counting)

    def close(self) -> None:
        self._closing.set()  # first: a pool waits for what is running
        self._decoder.close()
        self._preview_decoder.close()
        for pool in self.pools:
            pool.close()
        self._closing.clear()
        self._counts = None
        self._run.close()

    async def counts(self) -> dict[Modality, int]:
        """Return the number of items; requests that arrive meanwhile share one slow count."""
        if self._counts is None or self._counts.done():
            count = self.counting.run(lambda: {name: self._count(name) for name in MODALITIES})
            self._counts = asyncio.ensure_future(count)
        return await asyncio.shield(self._counts)

    def warm_up_texts(self) -> None:
        """Load what the first text query would wait for: model, spelling tables and index."""
        self.engine.query_encoder.warm_up()
        if self.engine.query_encoder.accepts_texts:
            self.search_text("warm", 1, "images")

    def warm_up_images(self) -> None:
        """Load what the first image query would wait for: the backbone and the index."""
        if self.engine.query_encoder.accepts_images:
            buffer = io.BytesIO()
            Image.new("RGB", (32, 32), "white").save(buffer, "PNG")
            self.search_image(buffer.getvalue(), 1, "texts")

    def probe(self) -> None:
        """Raise whatever a search would raise."""
        bits = self.engine.query_encoder.bits
        for modality in MODALITIES:
            if self._count(modality):
                self._search(Codes(np.zeros((1, bits // 8), np.uint8), bits), 1, modality)

    @_repeated
    def search_text(
        self,
        text: str,
        k: int,
        modality: Modality,
        ranking: RankingMode = DEFAULT_RANKING,
        search: SearchMode = DEFAULT_SEARCH,
        options: ResultOptions = DEFAULT_OPTIONS,
    ) -> schemas.SearchOut:
        start = time.perf_counter()
        encoder = self.engine.query_encoder
        projections = encoder.project_texts([text])
        code = Codes.from_projections(projections)
        query = schemas.QueryOut(text=text, code=_bit_string(code.packed[0].tobytes()))
        features = encoder.text_features
        if features is not None:
            query.known_words = list(dict.fromkeys(features.known_words(text)))
            unknown = dict.fromkeys(features.unknown_words(text))
            query.unknown_words = [word for word in unknown if word not in FUNCTION_WORDS]
        return self._reply(
            query, "texts", code, k, modality, start, options, ranking, projections, search
        )

    @_repeated
    def search_image(
        self,
        data: bytes,
        k: int,
        modality: Modality,
        ranking: RankingMode = DEFAULT_RANKING,
        options: ResultOptions = DEFAULT_OPTIONS,
    ) -> schemas.SearchOut:
        start = time.perf_counter()
        encoder = self.engine.encoder
        features = encoder.extract_pixels(self._decode(data)[0])
        projections = encoder.hasher.project_images(features)
        self.image_model_loaded = True
        code = Codes.from_projections(projections)
        query = schemas.QueryOut(
            code=_bit_string(code.packed[0].tobytes()),
            unknown_image=encoder.is_unknown_image(features),
        )
        return self._reply(query, "images", code, k, modality, start, options, ranking, projections)

    @_repeated
    def search_item(
        self, number: int, k: int, modality: Modality, options: ResultOptions = DEFAULT_OPTIONS
    ) -> schemas.SearchOut:
        start = time.perf_counter()
        item = self.get_item(number)
        query = schemas.QueryOut(item=_item_out(item), code=_bit_string(item.code))
        extra = int(item.modality == modality)  # an item is its own nearest neighbor
        code = self.engine.code_of(item)
        return self._reply(
            query, item.modality, code, k + extra, modality, start, options, without=number
        )

    @_repeated
    def search_batch(self, request: schemas.BatchIn) -> schemas.BatchOut:
        start = time.perf_counter()
        bits = self.engine.query_encoder.bits
        texts = [query.text for query in request.queries if isinstance(query, schemas.TextQuery)]
        values = self.engine.query_encoder.project_texts(texts) if texts else np.empty((0, bits))
        text_weights = query_weights(values, request.ranking)
        text_codes = iter(Codes.from_projections(values).packed)
        packed, calibrations = [], []
        for query in request.queries:
            if isinstance(query, schemas.TextQuery):
                packed.append(next(text_codes))
                is_unknown = self._is_unknown_text(query.text)
                calibrations.append(
                    None if is_unknown else self._calibrate("texts", request.modality)
                )
            else:
                item = self.get_item(query.number)
                packed.append(np.frombuffer(item.code, dtype=np.uint8))
                calibrations.append(self._calibrate(item.modality, request.modality))
        weights = None
        if text_weights is not None:
            weights = np.ones((len(packed), bits), np.int64)  # of an item: Hamming distance
            is_text = [isinstance(query, schemas.TextQuery) for query in request.queries]
            weights[is_text] = text_weights
        # The words of an item's text are not a query.
        queries = [
            query.text if isinstance(query, schemas.TextQuery) else "" for query in request.queries
        ]
        keywords = self.engine.query_keywords(queries, request.search)
        if keywords is not None and keywords.alone and len(texts) < len(packed):
            raise DataError("Items are not searched by keywords. Use search=hybrid for this batch.")
        options = ResultOptions.from_request(
            request.folder, request.after, request.before, request.source, request.collapse
        )
        codes = Codes(np.stack(packed), bits)
        results = self._search(codes, request.k, request.modality, weights, keywords, options)
        return schemas.BatchOut(
            modality=request.modality,
            ranking=request.ranking,
            search=request.search,
            rerank_pool=self._rerank_pool(request.k, request.modality, request.ranking),
            total=self._total(request.modality),
            bits=bits,
            took_ms=_milliseconds_since(start),
            results=[
                [_hit_out(hit, calibration) for hit in hits]
                for hits, calibration in zip(results, calibrations)
            ],
        )

    def get_item(self, number: int) -> Item:
        item = self.engine.catalog.get([number]).get(number)
        if item is None:
            raise ItemNotFoundError(f"Item {number} does not exist. Choose another number.")
        return item

    @_repeated
    def item(self, number: int) -> schemas.ItemOut:
        return _item_out(self.get_item(number))

    @_repeated
    def thumbnail(self, number: int) -> bytes:
        data = self.engine.catalog.thumbnail(number)
        if data is None:
            raise ItemNotFoundError(f"Item {number} has no thumbnail. Choose an indexed image.")
        return data

    @_repeated
    def original(self, number: int) -> Original:
        """Return the item's file, which the caller closes."""
        return open_original(self.engine.catalog, self.get_item(number), self._closing.is_set)

    def preview(self, number: int) -> tuple[bytes, str]:
        """Return a large JPEG of the item's file, and the digest of the file."""
        original = self.original(number)
        try:
            return original.preview(self._preview_decoder.render), original.digest
        finally:
            original.close()

    @_repeated
    def examples(self, count: int) -> schemas.ExamplesOut:
        """Return a few items to start from, as different from each other as possible.

        They are chosen again only after a change, because sampling reads all item numbers.
        """
        engine = self.engine
        key = engine, engine.catalog.version(), count
        if getattr(self._examples, "key", None) != key:
            self._examples.value = self._choose_examples(engine.catalog, count)
            self._examples.key = key
        value: schemas.ExamplesOut = self._examples.value
        return value

    def _choose_examples(self, catalog: Catalog, count: int) -> schemas.ExamplesOut:
        texts = [item for item in catalog.sample("texts", _EXAMPLE_SAMPLE) if item.text]
        # The shorter half: more like what people type.
        texts = sorted(texts, key=lambda item: len(item.text or ""))[: max(count, len(texts) // 2)]
        images = [item for item in catalog.sample("images", _EXAMPLE_SAMPLE) if item.has_thumbnail]
        return schemas.ExamplesOut(
            texts=[_item_out(item) for item in _farthest_first(texts, count)],
            images=[_item_out(item) for item in _farthest_first(images, count)],
        )

    @_repeated
    def filters(self) -> schemas.FiltersOut:
        return schemas.FiltersOut(**self.engine.catalog.filter_values()._asdict())

    def add_texts(self, texts: Sequence[schemas.TextIn]) -> list[schemas.ItemOut]:
        ids = [text.id or uuid.uuid4().hex for text in texts]
        if len(set(ids)) != len(ids):
            raise DataError("Two texts have the same id. Use a different id for each text.")
        with self.exclusive() as engine:
            added = engine.writer.add_texts(Collection(ids, [text.text for text in texts]))
        return [self.item(number) for number in added.numbers]

    def add_image(self, data: bytes, item_id: str | None) -> list[schemas.ItemOut]:
        pixels, summary = self._decode(data, summary=True)
        code = Codes.from_projections(self.engine.encoder.project_pixels(pixels))
        with self.exclusive() as engine:
            item_id = item_id or uuid.uuid4().hex
            added = engine.writer.add_image(data, item_id, code, summary)
        return [self.item(number) for number in added.numbers]

    def remove(self, number: int) -> int:
        with self.exclusive() as engine:
            item = self.get_item(number)
            return engine.remove(item.modality, [item.id])

    @contextmanager
    def exclusive(self) -> Iterator[SearchEngine]:
        """Yield the engine for one change; raise if its files were replaced meanwhile."""
        with self._change_lock.write():
            engine = self.engine
            try:
                yield engine
            finally:
                self._totals.clear()
            if self.engine is not engine:
                raise RunFilesChangedError("The run's files were replaced. Send the request again.")

    def background_writer(self) -> IndexWriter:
        """Return the writer for a long change, which excludes others one batch at a time."""
        writer = self.engine.writer
        writer.exclusive = self._change_lock.write
        return writer

    def _decode(self, data: bytes, *, summary: bool = False) -> tuple[Pixels, ImageSummary | None]:
        """Return pixels and summary of an uploaded image; raise if it is unreadable."""
        from transhash.features.stream import require_image_features  # loads torch

        size = require_image_features(self.engine.encoder.image_features).size
        task = summary_task(size) if summary else ImageTask(size)
        result = self._decoder.render(data, task)
        if isinstance(result, str) or result.pixels is None:
            raise DataError(f"The image cannot be used: {result}. Choose another image.")
        return result.pixels, result.summary

    def _search(
        self,
        codes: Codes,
        k: int,
        modality: Modality,
        weights: BitWeights | None = None,
        keywords: QueryKeywords | None = None,
        options: ResultOptions = DEFAULT_OPTIONS,
    ) -> list[Hits]:
        return self._change_lock.consistent_read(
            lambda: self.engine.similar_to_codes(
                codes, k, modality, weights,
                keywords=keywords, filters=options.filters, collapse=options.collapse,
            )
        )  # fmt: skip

    def _rerank_pool(self, k: int, modality: Modality, ranking: RankingMode) -> int | None:
        return None if ranking == "hamming" else self.engine.indexes[modality].candidates(k)

    def _count(self, modality: Modality) -> int:
        return len(self.engine.indexes[modality])

    def _total(self, modality: Modality) -> int:
        engine, now = self.engine, time.monotonic()
        cached = self._totals.get(modality)
        if cached is None or cached[0] is not engine or now - cached[1] > _TOTAL_SECONDS:
            cached = self._totals[modality] = engine, now, self._count(modality)
        return cached[2]

    def _calibrate(self, query_modality: Modality, modality: Modality) -> list[float] | None:
        """Return P(related | distance) between two modalities, read once per opened run."""
        engine = self.engine
        if self._calibration is None or self._calibration[0] is not engine:
            curve = read_calibration(read_report(engine.run), engine.query_encoder.bits)
            self._calibration = engine, curve
        return None if query_modality == modality else self._calibration[1]

    def _is_unknown_text(self, text: str) -> bool:
        """Return whether the model knows no word of a text, so that its code is arbitrary."""
        features = self.engine.query_encoder.text_features
        return features is not None and not features.known_words(text)

    def _reply(
        self,
        query: schemas.QueryOut,
        query_modality: Modality,
        code: Codes,
        k: int,
        modality: Modality,
        start: float,
        options: ResultOptions,
        ranking: RankingMode = "hamming",
        projections: TextProjections | None = None,
        search: SearchMode = "codes",
        without: int | None = None,
    ) -> schemas.SearchOut:
        weights = None if projections is None else query_weights(projections, ranking)
        keywords = None if query.text is None else self.engine.query_keywords([query.text], search)
        hits: Sequence[Hit] = self._search(code, k, modality, weights, keywords, options)[0]
        if without is not None:
            hits = without_item(hits, without, k)
        # Codes of a query that the model does not know are arbitrary.
        is_unknown = query.unknown_image or query.known_words == []
        curve = None if is_unknown else self._calibrate(query_modality, modality)
        total = self._total(modality)
        return schemas.SearchOut(
            query=query,
            modality=modality,
            ranking=ranking,
            search=search,
            rerank_pool=self._rerank_pool(k, modality, ranking),
            total=total,
            bits=code.bits,
            took_ms=_milliseconds_since(start),
            max_relevance=relevance_label(curve[0]) if curve else None,  # the curve never rises
            is_chance=search != "keywords" and not options.filters and is_chance(hits, total),
            hits=[_hit_out(hit, curve) for hit in hits],
        )


class FeedbackService:
    """Votes on results: store, delete, and show them with search results."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def put(self, request: schemas.VoteIn) -> schemas.VoteOut:
        with self._service.exclusive() as engine:
            image = VotedImage.from_item(engine.catalog, self._get_image(request.image))
            text, text_id = self._get_text(request.text)
            FeedbackStore(engine.run).put(StoredVote(image, text, request.vote, text_id))
        return schemas.VoteOut(image=request.image, text=text, vote=request.vote)

    def delete(self, image: int, query: schemas.TextQuery | schemas.ItemQuery) -> schemas.VoteOut:
        with self._service.exclusive() as engine:
            digest = voted_digest(engine.catalog, self._get_image(image).number)
            text, _ = self._get_text(query)
            FeedbackStore(engine.run).delete(digest, text)
        return schemas.VoteOut(image=image, text=text, vote=None)

    def annotate(self, result: schemas.SearchOut) -> schemas.SearchOut:
        """Add votes to the hits; a search does not fail because of them."""
        try:
            self._add_votes(result)
        except TranshashError as error:
            _log.warning("Votes are not shown: %s", error)
        return result

    def _add_votes(self, result: schemas.SearchOut) -> None:
        engine = self._service.engine
        store, catalog, item = FeedbackStore(engine.run), engine.catalog, result.query.item
        votes: dict[Any, int]
        if result.modality == "texts":
            if item is not None and item.modality == "images":
                votes = store.for_image(voted_digest(catalog, item.number))
                for hit in result.hits:
                    hit.vote = votes.get(hit.text or "")  # type: ignore[assignment]
            return
        text = result.query.text or (item.text if item is not None else None)
        votes = store.for_text(text) if text else {}
        for hit in result.hits if votes else ():
            hit.vote = votes.get(voted_digest(catalog, hit.number))  # type: ignore[assignment]

    def _get_image(self, number: int) -> Item:
        item = self._service.get_item(number)
        if item.modality != "images":
            raise ItemNotFoundError(f"Item {number} is a text. Vote on an image and a text.")
        return item

    def _get_text(self, query: schemas.TextQuery | schemas.ItemQuery) -> tuple[str, str | None]:
        """Return the text, and its id if it is an indexed item."""
        if isinstance(query, schemas.TextQuery):
            return query.text, None
        item = self._service.get_item(query.number)
        if item.modality != "texts":
            raise ItemNotFoundError(f"Item {item.number} is an image. Vote on an image and a text.")
        if not item.text:
            raise DataError(f"Item {item.number} has no text. Vote on an item with text.")
        return item.text, item.id


def _bit_string(code: bytes) -> str:
    return f"{int.from_bytes(code, 'big'):0{len(code) * 8}b}"


def _item_out(item: Item) -> schemas.ItemOut:
    return schemas.ItemOut(**_fields(item))


def _hit_out(hit: Hit, curve: list[float] | None = None) -> schemas.HitOut:
    probability = None if curve is None else curve[hit.distance]
    relevance = None if probability is None else relevance_label(probability)
    if relevance == "unlikely" and hit.coverage >= MIN_COVERAGE:
        relevance = None  # the words of the query speak for it, and the curve knows distances only
    # Not validated: the values are our own, and validation would take longer than the search.
    return schemas.HitOut.model_construct(
        **_fields(hit.item),
        distance=hit.distance,
        differing_bits=list(hit.differing_bits),
        probability=probability,
        relevance=relevance,
        matched=list(hit.matched),
        coverage=round(hit.coverage, 4),
        duplicates=[_item_out(item) for item in hit.duplicates],
    )


def _fields(item: Item) -> dict[str, Any]:
    return {
        "number": item.number,
        "modality": item.modality,
        "id": item.id,
        # Folders of the server stay private. Not with Path, which interns each part: that costs
        # more than the search, and memory.
        "file": os.path.basename(item.path) if item.path else None,
        "text": item.text,
        "thumbnail": f"/api/items/{item.number}/thumbnail" if item.has_thumbnail else None,
        "code": _bit_string(item.code),
        "title": item.metadata.title or None,
        "caption": item.metadata.caption or None,
        "keywords": list(item.metadata.keywords),
        "taken": item.metadata.taken or None,
    }


def _farthest_first(items: list[Item], count: int) -> list[Item]:
    """Choose items by farthest-first traversal in Hamming distance, from the first item."""
    codes = {item.number: int.from_bytes(item.code, "big") for item in items}
    chosen, rest = items[:1], items[1:]
    while rest and len(chosen) < count:
        farthest = max(
            rest,
            key=lambda item: min(
                (codes[item.number] ^ codes[other.number]).bit_count() for other in chosen
            ),
        )
        chosen.append(farthest)
        rest.remove(farthest)
    return chosen


def _milliseconds_since(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 3)
