"""SearchEngine: a trained encoder, an index of each modality and the catalog of what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Modality, check_modality
from transhash.data.inputs import to_image_source
from transhash.errors import DataError
from transhash.index import Index, open_index
from transhash.index.weighted import BitWeights, RankingMode, check_ranking, query_weights
from transhash.model.query_encoder import QueryEncoder, TextProjections
from transhash.search.catalog import Catalog, Item
from transhash.search.consistency import check_catalog, check_model
from transhash.search.hits import Hits, resolve_hits
from transhash.search.writer import IndexWriter

DEFAULT_RANKING: RankingMode = "weighted"  # what people search by; measured in docs/search.md

_MANY = 10_000  # results that every engine can give room to


class SearchEngine(IndexWriter):
    """Text or image in, ranked items out; what is equal by the order in which items were added."""

    @classmethod
    def open(
        cls, run: str | Path, url: str | None = None, *, writable: bool = False
    ) -> SearchEngine:
        """The engine of a run folder; `url` names another place for the codes (milvus:...).

        Opened to be written, catalog and index are brought to agree: a writer may have been killed
        between the two.
        """
        run = Path(run)
        query_encoder = QueryEncoder(run)
        if writable:
            query_encoder.encoder  # noqa: B018 - what cannot be loaded is told before anything is written
        own = f"grouped:{run / 'index'}"
        base = url or own
        if writable:
            check_catalog(run)
        catalog = Catalog(run / "catalog.sqlite", read_only=not writable)
        indexes: dict[Modality, Index] = {}
        try:
            check_model(catalog, run)
            for modality in MODALITIES:
                place = index_url(base, modality)
                indexes[modality] = open_index(place, query_encoder.bits, read_only=not writable)
            engine = cls(query_encoder, catalog, indexes, run, "" if base == own else base)
            if writable:
                engine._agree()
        except BaseException:
            for index in indexes.values():
                index.close()
            catalog.close()
            raise
        return engine

    def similar_to_text(
        self,
        text: str,
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> Hits:
        """The k items nearest to a sentence, nearest first; pictures unless `modality` is "texts"."""
        return self.similar_to_texts([text], k, modality, ranking)[0]

    def similar_to_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> list[Hits]:
        """The results of each text; faster than one by one."""
        return self._similar(self.query_encoder.project_texts(texts), k, modality, ranking)

    def similar_to_image(
        self,
        source: Any,
        k: int = 10,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
    ) -> Hits:
        """The k items nearest to a picture, nearest first; texts unless `modality` is "images".

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
        """The results of each picture."""
        rows = [self.encoder.project_image(to_image_source(source)) for source in sources]
        return self._similar(np.concatenate(rows), k, modality, ranking) if rows else []

    def similar_to_id(
        self, item_modality: Modality, item_id: str, k: int = 10, modality: Modality = "images"
    ) -> Hits:
        """Neighbours of an indexed item, itself excluded; by Hamming distance: it has bits only."""
        item = self.catalog.find(check_modality(item_modality), item_id)
        if item is None:
            raise DataError(f"there is no {item_modality[:-1]} with id {item_id!r} in this run")
        code = self.code_of(item)
        hits = self.similar_to_codes(code, k + (item_modality == modality), modality)[0]
        others = [hit for hit in hits if hit.item.number != item.number]
        return Hits(others[:k], self.catalog)

    def similar_to_codes(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None = None
    ) -> list[Hits]:
        """Each query's neighbours: by Hamming distance, or by what differing bits weigh."""
        if k < 1:
            raise DataError(f"the number of results must be 1 or more, got {k}")
        index = self.indexes[check_modality(modality)]
        if k > _MANY:  # to be asked how many it holds costs a server as much as a search
            k = min(k, max(1, len(index)))
        found = index.search(codes, k, weights)
        return resolve_hits(self.catalog, self._engine, self.run, codes, found)

    def _similar(
        self, projections: TextProjections, k: int, modality: Modality, ranking: RankingMode
    ) -> list[Hits]:
        weights = query_weights(projections, check_ranking(ranking))
        codes = Codes.from_projections(projections)
        return self.similar_to_codes(codes, k, modality, weights)

    def code_of(self, item: Item) -> Codes:
        """The code of an item that a search found."""
        return Codes(np.frombuffer(item.code, dtype=np.uint8)[None], self.query_encoder.bits)

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __bool__(self) -> bool:
        return True  # an empty one is an engine, too

    def __repr__(self) -> str:
        counts = " and ".join(f"{len(index):,} {name}" for name, index in self.indexes.items())
        return f"<SearchEngine {self.run}: {self.query_encoder.method}, {self.query_encoder.bits} bits, {counts}>"


def index_url(url: str, modality: Modality) -> str:
    """Where the codes of one modality live under `url`."""
    return f"{url}#{modality}" if url.startswith("milvus:") else f"{url.rstrip('/')}/{modality}"
