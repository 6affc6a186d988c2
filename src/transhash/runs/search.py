"""SearchEngine: a trained encoder, an index of each modality and the catalog of what is in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Problem
from transhash.errors import DataError
from transhash.features.picture import content_digest, thumbnail
from transhash.index import Index, open_index
from transhash.index.weighted import BitWeights, RankingMode, check_mode, query_weights
from transhash.progress import Track, silent
from transhash.runs.agreement import check_catalog, compare, copy_codes, finish_pending, mend
from transhash.runs.catalog import MODALITIES, Catalog, Item, Modality, check_modality
from transhash.runs.encode.shards import CodesPart, item_keys
from transhash.runs.encoder import Encoder, Projections
from transhash.runs.hits import Hits, hits_of
from transhash.runs.identity import NewItem
from transhash.runs.inputs import as_images, as_picture, as_texts, each_once
from transhash.runs.model_files import model_digest

FINER_RANKING: RankingMode = "all"  # what people search by; measured in docs/search.md

_log = logging.getLogger("transhash")
_MANY = 10_000  # results that every engine can give room to
_BLOCK = 1024  # items added at a time: bounds memory, and what an interruption repeats


@dataclass
class Indexed:
    """What became of the items that were given."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)  # those that were skipped
    numbers: list[int] = field(default_factory=list)  # of all others, block by block


class SearchEngine:
    """Text or image in, ranked items out; what is equal by the order in which items were added."""

    def __init__(
        self,
        encoder: Encoder,
        catalog: Catalog,
        indexes: dict[Modality, Index],
        run: Path,
        engine: str = "",
    ) -> None:
        self.encoder = encoder
        self.catalog = catalog
        self.indexes = indexes
        self.run = run
        self.temporary: TemporaryDirectory[str] | None = None  # of the run, gone with the engine
        self._engine = engine  # what the catalog knows these indexes by; "" is the run's own

    @classmethod
    def open(
        cls, run: str | Path, url: str | None = None, *, writable: bool = False
    ) -> SearchEngine:
        """The engine of a run folder; `url` names another place for the codes (milvus:...).

        Opened to be written, catalog and index are brought to agree: a writer may have been killed
        between the two.
        """
        run = Path(run)
        encoder = Encoder.load(run)
        own = f"grouped:{run / 'index'}"
        base = url or own
        if writable:
            check_catalog(run)
        catalog = Catalog(run / "catalog.sqlite", read_only=not writable)
        indexes: dict[Modality, Index] = {}
        try:
            model = model_digest(run)
            if catalog.state_fact("model", model) != model:
                raise DataError(
                    f"{catalog.path} was filled by another model than the one in {run}; restore "
                    "that model's files, or index into a run of this one"
                )
            for modality in MODALITIES:
                place = modality_url(base, modality)
                indexes[modality] = open_index(place, encoder.bits, read_only=not writable)
            engine = cls(encoder, catalog, indexes, run, "" if base == own else base)
            if writable:
                engine._agree()
        except BaseException:
            for index in indexes.values():
                index.close()
            catalog.close()
            raise
        return engine

    def _agree(self) -> None:
        """Counts tell whether all codes must be compared: that is for what happened elsewhere."""
        began = finish_pending(self.catalog, self._engine, self.indexes)
        if began:
            _log.warning("%d items were left half indexed by an earlier command; mended", began)
        if self._engine or self.catalog.engines() != [""]:
            return  # where there are several engines none need hold all
        for modality, index in self.indexes.items():
            if len(index) != self.catalog.count(modality):
                found = compare(self.catalog, modality, index)
                mend(self.catalog, modality, index, found)
                _log.warning(
                    "the index of %s did not agree with %s: %d codes were added, %d replaced, %d "
                    "removed",
                    modality, self.catalog.path, len(found.missing), len(found.differing),
                    len(found.strangers),
                )  # fmt: skip

    def similar_to_text(
        self,
        text: str,
        k: int = 10,
        among: Modality = "images",
        ranking: RankingMode = FINER_RANKING,
    ) -> Hits:
        return self.similar_to_texts([text], k, among, ranking)[0]

    def similar_to_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        among: Modality = "images",
        ranking: RankingMode = FINER_RANKING,
    ) -> list[Hits]:
        """The results of each text; faster than one by one."""
        return self._similar(self.encoder.project_texts(texts), k, among, ranking)

    def similar_to_image(
        self,
        source: Any,
        k: int = 10,
        among: Modality = "texts",
        ranking: RankingMode = FINER_RANKING,
    ) -> Hits:
        """`source` is a path, the bytes of a file, a PIL image or an array of pixels."""
        return self.similar_to_images([source], k, among, ranking)[0]

    def similar_to_images(
        self,
        sources: Sequence[Any],
        k: int = 10,
        among: Modality = "texts",
        ranking: RankingMode = FINER_RANKING,
    ) -> list[Hits]:
        rows = [self.encoder.project_image(as_picture(source)) for source in sources]
        return self._similar(np.concatenate(rows), k, among, ranking) if rows else []

    def similar_to_id(
        self, modality: Modality, item_id: str, k: int = 10, among: Modality = "images"
    ) -> Hits:
        """Neighbours of an indexed item, itself excluded; by Hamming distance: it has bits only."""
        item = self.catalog.find(check_modality(modality), item_id)
        if item is None:
            raise DataError(f"there is no {modality[:-1]} with id {item_id!r} in this run")
        code = self.code_of(item)
        hits = self.similar_to_codes(code, k + (modality == among), among)[0]
        others = [hit for hit in hits if hit.item.number != item.number]
        return Hits(others[:k], self.catalog)

    def similar_to_codes(
        self, codes: Codes, k: int, among: Modality, weights: BitWeights | None = None
    ) -> list[Hits]:
        """Each query's neighbours: by Hamming distance, or by what differing bits weigh."""
        if k < 1:
            raise DataError(f"the number of results must be 1 or more, got {k}")
        index = self.indexes[check_modality(among)]
        if k > _MANY:  # to be asked how many it holds costs a server as much as a search
            k = min(k, max(1, len(index)))
        found = index.search(codes, k, weights)
        return hits_of(self.catalog, self._engine, self.run, codes, found)

    def _similar(
        self, projections: Projections, k: int, among: Modality, ranking: RankingMode
    ) -> list[Hits]:
        weights = query_weights(projections, check_mode(ranking))
        codes = Codes.from_projections(projections)
        return self.similar_to_codes(codes, k, among, weights)

    def code_of(self, item: Item) -> Codes:
        return Codes(np.frombuffer(item.code, dtype=np.uint8)[None], self.encoder.bits)

    def add_images(self, images: Any, track: Track = silent) -> Indexed:
        """Encode and index images, block by block; those that are known and unchanged are not.

        A folder or file, a list of paths, bytes, PIL images or arrays, a frame or a data set.
        """
        images = as_images(images)
        files = images.features is None
        given = len(images)
        images = each_once(images)

        def new(i: int, code: bytes, digest: bytes, small: bytes | None) -> NewItem:
            item = images.items[i]
            source = str(item) if files and isinstance(item, Path) else None
            return NewItem(
                images.ids[i], code, None, small, source, images.origin, images.ids[i], digest
            )

        done = self._add(images, images.ids, "images", new, track)
        done.unchanged += given - len(images)
        if len(images) and len(done.problems) == len(images):
            raise DataError(
                f"none of the {len(images)} images can be read; first: {done.problems[0].reason}"
            )
        return done

    def add_texts(self, texts: Any, track: Track = silent) -> Indexed:
        """A file, a list, a frame or a data set."""
        texts = as_texts(texts)
        keys = item_keys(texts)

        def new(i: int, code: bytes, digest: bytes, _: bytes | None) -> NewItem:
            text = texts.items[i] if texts.features is None else None
            return NewItem(
                texts.ids[i], code, text, origin=texts.origin, key=keys[i], digest=digest
            )

        return self._add(texts, keys, "texts", new, track)

    def add_image(self, data: bytes, item_id: str, code: Codes) -> Indexed:
        """One image from its bytes, which stand nowhere else, and its code."""
        digest = content_digest(data)
        new = NewItem(item_id, code.packed[0].tobytes(), None, thumbnail(data), digest=digest)
        done = Indexed()
        self._store("images", [new], code, done)
        return done

    def add_codes(self, modality: Modality, parts: Iterable[CodesPart]) -> Indexed:
        """Items that were encoded elsewhere: ids and codes, with nothing to show but the id."""
        done = Indexed()
        for part in parts:
            new = [
                NewItem(name, code.tobytes(), origin=part.origin, key=key)
                for name, key, code in zip(part.ids, part.keys, part.codes.packed, strict=True)
            ]
            self._store(modality, new, part.codes, done)
        return done

    def remove(self, modality: Modality, item_ids: Sequence[str]) -> int:
        """Forget items; returns how many were there. The index goes first: no result dangles."""
        check_modality(modality)
        found = [item for i in item_ids if (item := self.catalog.find(modality, i)) is not None]
        numbers = [item.number for item in found]
        self.catalog.mark(self._engine, numbers)
        self.indexes[modality].remove(np.array(numbers, dtype=np.int64))
        self.catalog.remove(self._engine, numbers)
        return len(found)

    def _add(
        self,
        items: Collection[Any],
        keys: Sequence[str],
        modality: Modality,
        new: Callable[[int, bytes, bytes, bytes | None], NewItem],
        track: Track,
    ) -> Indexed:
        known: dict[int, int] = {}  # position -> number of what is unchanged

        def same(i: int, digest: bytes) -> bool:
            number = self.catalog.unchanged(modality, items.origin, keys[i], items.ids[i], digest)
            if number is not None:
                known[i] = number
            return number is not None

        done = Indexed()
        for block in self.encoder.encode_blocks(
            items, modality, _BLOCK,
            thumbnails=True, same=same, track=track, description=f"indexing {modality}",
        ):  # fmt: skip
            rows = zip(block.good, block.codes.packed, block.digests, block.thumbnails)
            made = [new(i, code.tobytes(), digest, small) for i, code, digest, small in rows]
            self._store(modality, made, block.codes, done)
            numbers = [known.pop(i) for i in block.same]
            if self._engine:  # another one: it may lack what the catalog knows
                copy_codes(
                    self.catalog, self.indexes[modality], np.unique(numbers).astype(np.int64)
                )
            done.unchanged += len(numbers)
            done.numbers += numbers
            done.problems += [Problem(items.place(i), items.ids[i], why) for i, why in block.bad]
        return done

    def _store(
        self, modality: Modality, new: Sequence[NewItem], codes: Codes, done: Indexed
    ) -> None:
        """Catalog first, and what it says of the index is pending until the index has it, too."""
        stored = self.catalog.add(modality, new, self._engine)
        changed = {one.number: row for row, one in enumerate(stored) if one.recoded or self._engine}
        if changed:
            numbers = np.array(sorted(changed), np.int64)
            rows = np.array([changed[int(number)] for number in numbers], np.int64)
            self.indexes[modality].update(numbers, codes[rows])
            self.catalog.settle(self._engine, numbers.tolist())
        for one in stored:
            done.numbers.append(one.number)
            done.added += one.change == "added"
            done.updated += one.change == "updated"
            done.unchanged += one.change == "unchanged"

    def close(self) -> None:
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
        """How many items can be found."""
        return sum(map(len, self.indexes.values()))

    def __bool__(self) -> bool:
        return True  # an empty one is an engine, too

    def __repr__(self) -> str:
        counts = " and ".join(f"{len(index):,} {name}" for name, index in self.indexes.items())
        return (
            f"<SearchEngine {self.run}: {self.encoder.method}, {self.encoder.bits} bits, {counts}>"
        )


def modality_url(url: str, modality: Modality) -> str:
    """Where the codes of one modality live under `url`."""
    return f"{url}#{modality}" if url.startswith("milvus:") else f"{url.rstrip('/')}/{modality}"
