"""SearchEngine: a trained encoder, an index of each modality and the catalog of what is in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Images, Problem, Texts
from transhash.errors import DataError
from transhash.features.decode import open_image, thumbnail_of
from transhash.index import Index, Ranking, open_index
from transhash.progress import Track, silent
from transhash.runs.catalog import MODALITIES, Catalog, Item, Modality, NewItem
from transhash.runs.encoder import Encoder

_log = logging.getLogger("transhash")
_MANY = 10_000  # results that every engine can give room to
_BLOCK = 1024  # items added at a time: bounds memory, and what an interruption repeats


@dataclass(frozen=True)
class Hit:
    """One result."""

    item: Item
    distance: int  # Hamming, 0..bits
    differing: tuple[int, ...]  # the bits that differ from the query


class SearchEngine:
    """Text or image in, ranked items out; ties by the order in which items were added."""

    def __init__(
        self, encoder: Encoder, catalog: Catalog, indexes: dict[Modality, Index], run: Path
    ) -> None:
        self.encoder = encoder
        self.catalog = catalog
        self.indexes = indexes
        self.run = run

    @classmethod
    def open(
        cls, run: str | Path, url: str | None = None, *, writable: bool = False
    ) -> SearchEngine:
        """The engine of a run folder; `url` names another place for the codes (milvus:...)."""
        run = Path(run)
        encoder = Encoder.load(run)
        catalog = Catalog(run / "catalog.sqlite", read_only=not writable)
        base = url or f"grouped:{run / 'index'}"
        indexes = {
            modality: open_index(modality_url(base, modality), encoder.bits, read_only=not writable)
            for modality in MODALITIES
        }
        return cls(encoder, catalog, indexes, run)

    def similar_to_text(self, text: str, k: int = 10, among: Modality = "images") -> list[Hit]:
        return self.similar_to_codes(self.encoder.encode_texts([text]), k, among)[0]

    def similar_to_image(
        self, source: Path | bytes, k: int = 10, among: Modality = "texts"
    ) -> list[Hit]:
        return self.similar_to_codes(self.encoder.encode_image(source), k, among)[0]

    def similar_to_id(
        self, modality: Modality, item_id: str, k: int = 10, among: Modality = "images"
    ) -> list[Hit]:
        """Neighbours of an indexed item, itself excluded."""
        item = self.catalog.find(modality, item_id)
        if item is None:
            raise DataError(f"there is no {modality[:-1]} with id {item_id!r} in this run")
        code = self.code_of(item)
        hits = self.similar_to_codes(code, k + (modality == among), among)[0]
        return [hit for hit in hits if hit.item.number != item.number][:k]

    def similar_to_codes(self, codes: Codes, k: int, among: Modality) -> list[list[Hit]]:
        if k < 1:
            raise DataError(f"the number of results must be 1 or more, got {k}")
        index = self.indexes[among]
        if k > _MANY:  # to be asked how many it holds costs a server as much as a search
            k = min(k, max(1, len(index)))
        return self._hits(codes, index.search(codes, k))

    def code_of(self, item: Item) -> Codes:
        return Codes(np.frombuffer(item.code, dtype=np.uint8)[None], self.encoder.bits)

    def add_images(self, images: Images, track: Track = silent) -> list[Problem]:
        """Encode and index images, block by block; returns what was skipped."""
        problems = []
        for block in self.encoder.encode_blocks(
            images, "images", _BLOCK, thumbnails=True, track=track, description="indexing images"
        ):
            new = [
                NewItem(images.ids[i], code.tobytes(), None, small, str(images.items[i]))
                for i, code, small in zip(block.good, block.codes.packed, block.thumbnails)
            ]
            self._add("images", new, block.codes)
            problems += [Problem(str(images.items[i]), images.ids[i], why) for i, why in block.bad]
        if len(problems) == len(images):
            raise DataError(
                f"none of the {len(images)} images can be read; first: {problems[0].reason}"
            )
        return problems

    def add_texts(self, texts: Texts, track: Track = silent) -> None:
        for block in self.encoder.encode_blocks(
            texts, "texts", _BLOCK, track=track, description="indexing texts"
        ):
            new = [
                NewItem(texts.ids[i], code.tobytes(), texts.items[i])
                for i, code in zip(block.good, block.codes.packed)
            ]
            self._add("texts", new, block.codes)

    def add_codes(self, modality: Modality, parts: Iterable[tuple[list[str], Codes]]) -> None:
        """Items that were encoded elsewhere: ids and codes, with nothing to show but the id."""
        for ids, codes in parts:
            new = [NewItem(name, code.tobytes()) for name, code in zip(ids, codes.packed)]
            self._add(modality, new, codes)

    def remove(self, modality: Modality, item_ids: Sequence[str]) -> int:
        """Forget items; returns how many were there. The index goes first: no result dangles."""
        found = [item for i in item_ids if (item := self.catalog.find(modality, i)) is not None]
        numbers = [item.number for item in found]
        self.indexes[modality].remove(np.array(numbers, dtype=np.int64))
        self.catalog.remove(numbers)
        return len(found)

    def close(self) -> None:
        for index in self.indexes.values():
            index.close()
        self.catalog.close()

    def _add(self, modality: Modality, new: Sequence[NewItem], codes: Codes) -> None:
        # Catalog first: an item without a code is invisible, a code without an item is a hole.
        numbers = self.catalog.add(modality, new)
        self.indexes[modality].update(np.array(numbers, dtype=np.int64), codes)

    def _hits(self, queries: Codes, ranking: Ranking) -> list[list[Hit]]:
        items = self.catalog.get([int(n) for n in np.unique(ranking.ids) if n >= 0])
        results = []
        strangers = 0
        for query, numbers, distances in zip(queries.packed, *ranking, strict=True):
            found = [(items[n], d) for n, d in zip(map(int, numbers), distances) if n in items]
            hits = [Hit(item, int(d), _differing(query.tobytes(), item.code)) for item, d in found]
            # The catalog knows each code: another distance means that the index holds another one.
            results.append([hit for hit in hits if len(hit.differing) == hit.distance])
            strangers += len(hits) - len(results[-1])
        if strangers:
            _log.warning(
                "%d results were left out: the index holds other codes of these items than %s; "
                "index them there again",
                strangers, self.catalog.path,
            )  # fmt: skip
        return results


def modality_url(url: str, modality: Modality) -> str:
    """Where the codes of one modality live under `url`."""
    return f"{url}#{modality}" if url.startswith("milvus:") else f"{url.rstrip('/')}/{modality}"


def thumbnail(source: bytes) -> bytes | None:
    """A small JPEG of an image file's bytes."""
    image = open_image(source, 512)
    return None if isinstance(image, str) else thumbnail_of(image)


def _differing(a: bytes, b: bytes) -> tuple[int, ...]:
    """Positions of the bits in which two packed codes differ, first bit 0."""
    bits = len(a) * 8
    difference = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return tuple(i for i in range(bits) if difference >> (bits - 1 - i) & 1)

