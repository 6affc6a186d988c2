"""What a run holds: an index of each modality and the catalog, and how both change together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality, Problem, check_modality, text_keys
from transhash.data.inputs import drop_duplicates, to_images, to_texts
from transhash.errors import DataError
from transhash.features.decode import thumbnail
from transhash.index import Index
from transhash.model.query_encoder import QueryEncoder
from transhash.model.shards import CodeShard
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog, NewItem
from transhash.search.consistency import compare, complete_pending, copy_codes, repair_index
from transhash.search.sources import FileStamps
from transhash.storage import content_digest

if TYPE_CHECKING:
    from transhash.model.encoder import EncodedBatch, Encoder

_log = logging.getLogger("transhash")
_BLOCK = 1024  # items added at a time: bounds memory, and what an interruption repeats


@dataclass
class IndexResult:
    """What became of the items that were given."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)  # those that were skipped
    numbers: list[int] = field(default_factory=list)  # of all others, those not read first


class IndexWriter:
    """Items of a run, where they are kept, and what puts them there."""

    def __init__(
        self,
        query_encoder: QueryEncoder,
        catalog: Catalog,
        indexes: dict[Modality, Index],
        run: Path,
        engine: str = "",
    ) -> None:
        self.query_encoder = query_encoder
        self.catalog = catalog
        self.indexes = indexes
        self.run = run
        self.temporary: TemporaryDirectory[str] | None = None  # of the run, gone with the engine
        self._engine = engine  # what the catalog knows these indexes by; "" is the run's own

    @property
    def encoder(self) -> Encoder:
        return self.query_encoder.encoder

    def _agree(self) -> None:
        """Counts tell whether all codes must be compared: that is for what happened elsewhere."""
        began = complete_pending(self.catalog, self._engine, self.indexes)
        if began:
            _log.warning("%d items were left half indexed by an earlier command; mended", began)
        if self._engine or self.catalog.engines() != [""]:
            return  # where there are several engines none need hold all
        for modality, index in self.indexes.items():
            if len(index) != self.catalog.count(modality):
                found = compare(self.catalog, modality, index)
                repair_index(self.catalog, modality, index, found)
                _log.warning(
                    "the index of %s did not agree with %s: %d codes were added, %d replaced, %d "
                    "removed",
                    modality, self.catalog.path, len(found.missing), len(found.mismatched),
                    len(found.orphaned),
                )  # fmt: skip

    def add_images(
        self, images: Any, track: Track = no_progress, *, reread: bool = False
    ) -> IndexResult:
        """Encode and index images, block by block; those that are known and unchanged are not.

        A folder or file, a list of paths, bytes, PIL images or arrays, a frame or a data set. Files
        whose size and time are as they were are not read, unless `reread`.
        """
        images = to_images(images)
        given = len(images)
        images = every = drop_duplicates(images)
        done = IndexResult(unchanged=given - len(every))
        stamps = FileStamps(images) if images.features is None else None
        if stamps is not None and not reread:
            rows, numbers = stamps.unchanged(self.catalog, track)
            if numbers:
                images, stamps = images.take(rows), stamps.take(rows)
                self._keep("images", numbers, done)

        def new(i: int, code: bytes, digest: bytes, small: bytes | None) -> NewItem:
            item, key = images.items[i], images.ids[i]
            source = os.path.abspath(item) if stamps and isinstance(item, Path) else None
            stamp = stamps[i] if stamps else None
            return NewItem(key, code, None, small, source, images.source, key, digest, stamp)

        for block in self._add(images, images.ids, "images", new, track, done):
            if stamps is not None:
                seen = [(images.ids[i], stamp) for i in block.unchanged if (stamp := stamps[i])]
                self.catalog.origins.update_stamps("images", images.source, seen)
        if len(every) and len(done.problems) == len(every):
            first = done.problems[0]
            raise DataError(
                f"none of the {len(every)} images can be read; first: {first.location}: {first.reason}"
            )
        return done

    def add_texts(self, texts: Any, track: Track = no_progress) -> IndexResult:
        """A file, a list, a frame or a data set."""
        texts = to_texts(texts)
        keys = text_keys(texts)

        def new(i: int, code: bytes, digest: bytes, _: bytes | None) -> NewItem:
            text = texts.items[i] if texts.features is None else None
            return NewItem(
                texts.ids[i], code, text, origin=texts.source, key=keys[i], digest=digest
            )

        done = IndexResult()
        for _ in self._add(texts, keys, "texts", new, track, done):
            pass
        return done

    def add_image(self, data: bytes, item_id: str, code: Codes) -> IndexResult:
        """One image from its bytes, which stand nowhere else, and its code."""
        digest = content_digest(data)
        new = NewItem(item_id, code.packed[0].tobytes(), None, thumbnail(data), digest=digest)
        done = IndexResult()
        self._store("images", [new], code, done)
        return done

    def add_codes(self, modality: Modality, parts: Iterable[CodeShard]) -> IndexResult:
        """Items that were encoded elsewhere: ids and codes, with nothing to show but the id."""
        done = IndexResult()
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
        self.catalog.mark_pending(self._engine, numbers)
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
        done: IndexResult,
    ) -> Iterator[EncodedBatch]:
        """What was put in, a block at a time."""
        if not len(items):
            return
        known: dict[int, int] = {}  # position -> number of what is unchanged

        def same(i: int, digest: bytes) -> bool:
            number = self.catalog.unchanged(modality, items.source, keys[i], items.ids[i], digest)
            if number is not None:
                known[i] = number
            return number is not None

        for block in self.encoder.encode_batches(
            items, modality, _BLOCK,
            thumbnails=True, same=same, track=track, description=f"indexing {modality}",
        ):  # fmt: skip
            rows = zip(block.readable, block.codes.packed, block.digests, block.thumbnails)
            made = [new(i, code.tobytes(), digest, small) for i, code, digest, small in rows]
            self._store(modality, made, block.codes, done)
            self._keep(modality, [known.pop(i) for i in block.unchanged], done)
            done.problems += [Problem(items.describe(i), items.ids[i], why) for i, why in block.unreadable]
            yield block

    def _keep(self, modality: Modality, numbers: Sequence[int], done: IndexResult) -> None:
        """Count what is unchanged; another engine may lack what the catalog knows."""
        if self._engine:
            copy_codes(self.catalog, self.indexes[modality], np.unique(numbers).astype(np.int64))
        done.unchanged += len(numbers)
        done.numbers += numbers

    def _store(
        self, modality: Modality, new: Sequence[NewItem], codes: Codes, done: IndexResult
    ) -> None:
        """Catalog first, and what it says of the index is pending until the index has it, too."""
        stored = self.catalog.add(modality, new, self._engine)
        changed = {one.number: row for row, one in enumerate(stored) if one.recoded or self._engine}
        if changed:
            numbers = np.array(sorted(changed), np.int64)
            rows = np.array([changed[int(number)] for number in numbers], np.int64)
            self.indexes[modality].update(numbers, codes[rows])
            self.catalog.mark_done(self._engine, numbers.tolist())
        for one in stored:
            done.numbers.append(one.number)
            done.added += one.change == "added"
            done.updated += one.change == "updated"
            done.unchanged += one.change == "unchanged"

    def close(self) -> None:
        """Lets go of the run; a temporary one is deleted. `with` does it, too."""
        for index in self.indexes.values():
            index.close()
        self.catalog.close()
        if self.temporary is not None:
            self.temporary.cleanup()

    def __len__(self) -> int:
        """How many items can be found."""
        return sum(map(len, self.indexes.values()))
