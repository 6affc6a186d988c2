"""SearchEngine: search the images and texts of a run, and change them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Modality, check_modality
from transhash.data.inputs import to_text_list
from transhash.errors import DataError, EngineError, check_type
from transhash.index import Index, open_index
from transhash.index.weighted import BitWeights, RankingMode, check_ranking, query_weights
from transhash.model.files import read_config, require_run
from transhash.model.query_encoder import QueryEncoder
from transhash.progress import show_progress
from transhash.search.catalog import NO_FILTER, Catalog, Item, SearchFilter
from transhash.search.consistency import check_catalog, check_model
from transhash.search.hits import Hits, without_item
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode, check_search, query_words
from transhash.search.retrieval import QueryKeywords, Retrieval
from transhash.search.writer import IndexResult, IndexWriter
from transhash.storage import lock_holder

if TYPE_CHECKING:
    from transhash.model.encoder import Encoder

SERVICE_LOCK = "service.lock"  # held by a service that may change the run
DEFAULT_RANKING: RankingMode = "weighted"  # measured in docs/search.md


class SearchEngine:
    """Ranks items by their distance to a text or image, and by the words of a text.

    Ties are in the order of indexing.
    """

    def __init__(
        self,
        run: Path,
        query_encoder: QueryEncoder,
        catalog: Catalog,
        indexes: dict[Modality, Index],
        writer: IndexWriter | None = None,
        index_url: str = "",
    ) -> None:
        self.run = run
        self.query_encoder = query_encoder
        self.catalog = catalog
        self.indexes = indexes
        self.temporary: TemporaryDirectory[str] | None = None  # deleted with the engine
        self._writer = writer
        self._index_url = index_url  # name of the indexes in the catalog; "" is the run's own

    @classmethod
    def open(
        cls, run: str | Path, url: str | None = None, *, writable: bool = False
    ) -> SearchEngine:
        """Open a run folder; `url` names another index than the run's own (milvus:...).

        For writing, the index is first brought up to date with the catalog: a writer may have been
        killed between the two.
        """
        run = require_run(run)
        query_encoder = QueryEncoder(run)
        own_url = f"grouped:{run / 'index'}"
        index_name = "" if url in (None, own_url) else str(url)
        writer = None
        if writable:
            if not index_name:
                check_not_served(run)
            encoder = query_encoder.encoder  # may fail, so it is loaded before anything is written
            check_catalog(run)
        with ExitStack() as opened:
            catalog = Catalog(run / "catalog.sqlite", read_only=not writable)
            opened.callback(catalog.close)
            check_model(catalog, run, query_encoder.model_digest)
            indexes: dict[Modality, Index] = {}
            for modality in MODALITIES:
                indexes[modality] = open_index(
                    index_url(url or own_url, modality), query_encoder.bits, read_only=not writable
                )
                opened.callback(indexes[modality].close)
            if writable:
                writer = IndexWriter(encoder, catalog, indexes, index_name)
                writer.reconcile()
                for modality, index in indexes.items():
                    other: Modality = "texts" if modality == "images" else "images"
                    if other in encoder.trial_queries:
                        index.set_trial_queries(encoder.trial_queries[other])
            opened.pop_all()
        return cls(run, query_encoder, catalog, indexes, writer, index_name)

    @property
    def encoder(self) -> Encoder:
        return self.query_encoder.encoder

    @property
    def writer(self) -> IndexWriter:
        if self._writer is None:
            raise EngineError(f"{self.run} is open for reading only. Open it with writable=True.")
        return self._writer

    def add_images(
        self, images: Any, *, reread: bool = False, progress: bool | None = None
    ) -> IndexResult:
        """Encode and index images in batches; unchanged images are skipped.

        Images are a folder or file, a list of paths, bytes, PIL images or arrays, a data frame or
        a data set. Files with the same size and time as before are read only if `reread` is true.
        `progress` is as for `transhash.fit`.
        """
        with show_progress("indexing images", progress) as track:
            return self.writer.add_images(images, track, reread=reread)

    def add_texts(self, texts: Any, *, progress: bool | None = None) -> IndexResult:
        """Encode and index texts: a file, a list, a data frame or a data set."""
        with show_progress("indexing texts", progress) as track:
            return self.writer.add_texts(texts, track)

    def remove(self, modality: Modality, item_ids: Sequence[str]) -> int:
        """Remove items and return how many there were."""
        return self.writer.remove(modality, item_ids)

    def similar_to_text(
        self,
        text: str,
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
        *,
        search: SearchMode = DEFAULT_SEARCH,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> Hits:
        """Return the k best items for a text, best first.

        `search` says what counts: `keywords` (names, metadata and texts of the items), `codes`, or
        both (`hybrid`). `filters` restrict the results to a folder, a source or dates. Copies of
        one item are one hit with `duplicates`, unless `collapse` is false.
        """
        return self.similar_to_texts(
            [text], k, modality, ranking, search=search, filters=filters, collapse=collapse
        )[0]

    def similar_to_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
        *,
        search: SearchMode = DEFAULT_SEARCH,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> list[Hits]:
        """Return the results of each text; faster than one call per text."""
        if not all(text.strip() for text in to_text_list(texts)):
            raise DataError("A query is empty. Pass words to search for.")
        projections = self.query_encoder.project_texts(texts)
        codes = Codes.from_projections(projections)
        weights = query_weights(projections, check_ranking(ranking))
        return self.similar_to_codes(
            codes, k, modality, weights, keywords=self.query_keywords(texts, search),
            filters=filters, collapse=collapse,
        )  # fmt: skip

    def similar_to_image(
        self,
        source: Any,
        k: int = 10,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
        *,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> Hits:
        """Return the k items nearest to an image, nearest first.

        `source` is a path, the bytes of a file, a PIL image or an array of pixels.
        """
        return self.similar_to_images(
            [source], k, modality, ranking, filters=filters, collapse=collapse
        )[0]

    def similar_to_images(
        self,
        sources: Sequence[Any],
        k: int = 10,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
        *,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> list[Hits]:
        """Return the results of each image."""
        check_type(sources, Iterable, "The list of images", "a list of paths or images")
        rows = [self.encoder.project_image(source) for source in sources]
        if not rows:
            return []
        projections = np.concatenate(rows)
        codes = Codes.from_projections(projections)
        weights = query_weights(projections, check_ranking(ranking))
        return self.similar_to_codes(
            codes, k, modality, weights, filters=filters, collapse=collapse
        )

    def similar_to_id(
        self,
        item_modality: Modality,
        item_id: str,
        k: int = 10,
        modality: Modality = "images",
        *,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> Hits:
        """Return neighbors of an indexed item by Hamming distance, without the item itself."""
        item = self.catalog.find(check_modality(item_modality), item_id)
        if item is None:
            raise DataError(
                f"{self.run} has no {item_modality[:-1]} with id {item_id!r}. "
                f"Run: transhash list {self.run}"
            )
        return self.similar_to_item(item, k, modality, filters=filters, collapse=collapse)

    def similar_to_item(
        self,
        item: Item,
        k: int,
        modality: Modality,
        *,
        filters: SearchFilter | None = None,
        collapse: bool = True,
    ) -> Hits:
        """Return neighbors of an item by Hamming distance, without the item itself."""
        extra = int(item.modality == modality)  # an item is its own nearest neighbor
        hits = self.similar_to_codes(
            self.code_of(item), k + extra, modality, filters=filters, collapse=collapse
        )[0]
        return Hits(without_item(hits, item.number, k), self.catalog)

    def similar_to_codes(
        self,
        codes: Codes,
        k: int,
        modality: Modality,
        weights: BitWeights | None = None,
        *,
        keywords: QueryKeywords | None = None,
        filters: SearchFilter | None = None,
        collapse: bool = False,
    ) -> list[Hits]:
        """Return the neighbors of each code by Hamming distance, weighted if there are weights.

        With `keywords` of the queries, items that have their words count as well.
        """
        check_type(codes, Codes, "The query", "Codes, such as Codes.from_projections(z)")
        check_type(k, (int, np.integer), "The number of results", "an integer")
        if k < 1:
            raise DataError(f"The number of results must be at least 1, got {k}. Use a larger one.")
        retrieval = Retrieval(
            self.catalog, self.indexes, self._index_url, self.run,
            None if self._writer is None else self._writer.objects,
            keywords, filters or NO_FILTER,
        )  # fmt: skip
        search = retrieval.search_distinct if collapse else retrieval.search
        return search(codes, k, check_modality(modality), weights)

    def query_keywords(self, texts: Sequence[str], search: SearchMode) -> QueryKeywords | None:
        """Return the words of each text that count in a keyword search; None to use codes only."""
        if check_search(search) == "codes":
            return None
        features: Any = self.query_encoder.text_features
        words = getattr(features, "words", features)  # of features with an embedding model
        stop_words = frozenset(getattr(words, "stop_words_", ()))
        index = self.catalog.words
        rarities = [index.rarities(query_words(text, stop_words)) for text in texts]
        return QueryKeywords(rarities, alone=search == "keywords")

    def code_of(self, item: Item) -> Codes:
        """Return the stored code of an item."""
        return Codes(np.frombuffer(item.code, dtype=np.uint8)[None], self.query_encoder.bits)

    def close(self) -> None:
        """Close index and catalog; a temporary run is deleted."""
        for index in self.indexes.values():
            index.close()
        self.catalog.close()
        if self.temporary is not None:
            self.temporary.cleanup()

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of indexed items."""
        return sum(map(len, self.indexes.values()))

    def __bool__(self) -> bool:
        return True  # even without items

    def __repr__(self) -> str:
        counts = " and ".join(f"{len(index):,} {name}" for name, index in self.indexes.items())
        model = f"{self.query_encoder.method}, {self.query_encoder.bits} bits"
        return f"<SearchEngine {self.run}: {model}, {counts}>"


def check_not_served(run: Path) -> None:
    """Refuse to write to a run that another process serves with write access."""
    process, address = lock_holder(run, SERVICE_LOCK) or (str(os.getpid()), "")
    if process != str(os.getpid()):
        raise EngineError(
            f"{run} is served by process {process} at {address}, which alone may change it. Change "
            "it there: start the service with --sync FOLDER, use its API, or stop it first."
        )


def index_url(url: str, modality: Modality) -> str:
    """Return the URL of one modality's index below `url`."""
    return f"{url}#{modality}" if url.startswith("milvus:") else f"{url.rstrip('/')}/{modality}"


def describe_run(run: Path) -> dict[str, Any]:
    """Return a run's method, features, items, indexes, sources and size, as `info` shows them."""
    config = read_config(run)
    counts: dict[str, int] = dict.fromkeys(MODALITIES, 0)
    sources: list[dict[str, Any]] = []
    indexes: list[str] = []
    if (run / "catalog.sqlite").exists():
        with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
            counts = {modality: catalog.count(modality) for modality in MODALITIES}
            sources = [
                {"source": source, "modality": modality, "items": items}
                for source, modality, items in catalog.sources.counts()
            ]
            indexes = [url or "grouped (the run's own)" for url in catalog.index_urls()]
    votes = config.get("votes")
    written = datetime.fromtimestamp((run / "config.json").stat().st_mtime)
    return {
        "run": str(run),
        "method": config["method"],
        "bits": config["settings"]["bits"],
        "image features": config["image_features"],
        "text features": config["text_features"],
        "written": written.astimezone().isoformat(timespec="seconds"),
        "transhash": config.get("transhash", ""),
        "model": config["digest"],
        **({"training votes": votes["up"] + votes["down"]} if votes else {}),
        **counts,
        "indexes": indexes,
        "bytes": sum(file.stat().st_size for file in run.rglob("*") if file.is_file()),
        "sources": sources,
    }
