"""SearchEngine: search the images and texts of a run, and change them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Modality, check_modality
from transhash.data.inputs import to_image_source
from transhash.errors import DataError, EngineError
from transhash.index import Index, open_index
from transhash.index.weighted import BitWeights, RankingMode, check_ranking, query_weights
from transhash.model.files import read_config
from transhash.model.query_encoder import QueryEncoder, TextProjections
from transhash.progress import show_progress
from transhash.search.catalog import Catalog, Item
from transhash.search.consistency import check_catalog, check_model
from transhash.search.hits import Hits, resolve_hits
from transhash.search.writer import IndexResult, IndexWriter
from transhash.storage import lock_holder

if TYPE_CHECKING:
    from transhash.model.encoder import Encoder

SERVICE_LOCK = "service.lock"  # held by a service that may change the run
DEFAULT_RANKING: RankingMode = "weighted"  # measured in docs/search.md
_MAX_RESULTS = 10_000  # that every index backend can return without counting its items first


class SearchEngine:
    """Ranks items by their distance to a text or image; ties are in the order of indexing."""

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
        run = Path(run)
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
    ) -> Hits:
        """Return the k items nearest to a text, nearest first."""
        return self.similar_to_texts([text], k, modality, ranking)[0]

    def similar_to_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> list[Hits]:
        """Return the results of each text; faster than one call per text."""
        return self._similar(self.query_encoder.project_texts(texts), k, modality, ranking)

    def similar_to_image(
        self,
        source: Any,
        k: int = 10,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> Hits:
        """Return the k items nearest to an image, nearest first.

        `source` is a path, the bytes of a file, a PIL image or an array of pixels.
        """
        return self.similar_to_images([source], k, modality, ranking)[0]

    def similar_to_images(
        self,
        sources: Sequence[Any],
        k: int = 10,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> list[Hits]:
        """Return the results of each image."""
        rows = [self.encoder.project_image(to_image_source(source)) for source in sources]
        return self._similar(np.concatenate(rows), k, modality, ranking) if rows else []

    def similar_to_id(
        self, item_modality: Modality, item_id: str, k: int = 10, modality: Modality = "images"
    ) -> Hits:
        """Return neighbors of an indexed item by Hamming distance, without the item itself."""
        item = self.catalog.find(check_modality(item_modality), item_id)
        if item is None:
            raise DataError(
                f"{self.run} has no {item_modality[:-1]} with id {item_id!r}. "
                f"Run: transhash list {self.run}"
            )
        hits = self.similar_to_codes(self.code_of(item), k + (item_modality == modality), modality)
        others = [hit for hit in hits[0] if hit.item.number != item.number]
        return Hits(others[:k], self.catalog)

    def similar_to_codes(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None = None
    ) -> list[Hits]:
        """Return the neighbors of each code by Hamming distance, weighted if there are weights."""
        if k < 1:
            raise DataError(f"The number of results must be at least 1, got {k}. Use a larger one.")
        index = self.indexes[check_modality(modality)]
        if k > _MAX_RESULTS:  # counting costs a server as much as a search
            k = min(k, max(1, len(index)))
        ranking = index.search(codes, k, weights)
        objects = None if self._writer is None else self._writer.objects
        return resolve_hits(self.catalog, self._index_url, self.run, codes, ranking, objects)

    def _similar(
        self, projections: TextProjections, k: int, modality: Modality, ranking: RankingMode
    ) -> list[Hits]:
        weights = query_weights(projections, check_ranking(ranking))
        codes = Codes.from_projections(projections)
        return self.similar_to_codes(codes, k, modality, weights)

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
