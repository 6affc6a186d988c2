"""IndexWriter: add, update and remove items in the catalog and the indexes of a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality, Problem, check_modality, text_keys
from transhash.data.inputs import drop_duplicates, to_images, to_texts
from transhash.errors import DataError, type_name
from transhash.index import Index
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog, NewItem
from transhash.search.consistency import compare, complete_pending, copy_codes, repair_index
from transhash.search.sources import FileStamps
from transhash.storage import content_digest

if TYPE_CHECKING:
    from transhash.features.decode import ImageSummary
    from transhash.model.encoder import Encoder
    from transhash.model.shards import CodeShard

_log = logging.getLogger("transhash")
# By item number, what a program passed as the item: all its objects, and the position in them.
ItemObjects = dict[int, tuple[Sequence[Any], int]]
# Items added at a time: bounds memory, what an interruption repeats, and the wait until an image
# that was read is found.
_BATCH_SIZES: dict[Modality, int] = {"images": 256, "texts": 1024}


@dataclass
class IndexResult:
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)  # of skipped items
    numbers: list[int] = field(default_factory=list)  # of the other items


class IndexWriter:
    """Writes items to the catalog and the indexes of a run."""

    def __init__(
        self,
        encoder: Encoder,
        catalog: Catalog,
        indexes: dict[Modality, Index],
        index_url: str = "",
    ) -> None:
        self.encoder = encoder
        self.catalog = catalog
        self.indexes = indexes
        self.index_url = index_url  # name of these indexes in the catalog; "" is the run's own
        # Entered for each batch of changes, where several threads write.
        self.exclusive: Callable[[], AbstractContextManager[object]] = nullcontext
        self.objects: ItemObjects = {}

    def reconcile(self) -> None:
        """Bring the indexes up to date with the catalog, in case a writer was killed.

        Codes are compared only if the counts differ.
        """
        count = complete_pending(self.catalog, self.index_url, self.indexes)
        if count:
            _log.warning(
                "Finished indexing %d items that an earlier command left incomplete.", count
            )
        if self.index_url or self.catalog.index_urls() != [""]:
            return  # with several indexes, none needs to have all codes
        for modality, index in self.indexes.items():
            if len(index) != self.catalog.count(modality):
                difference = compare(self.catalog, modality, index)
                repair_index(self.catalog, modality, index, difference)
                _log.warning(
                    "The index of %s did not match %s. Added %d codes, replaced %d, removed %d.",
                    modality, self.catalog.path, len(difference.missing),
                    len(difference.mismatched), len(difference.orphaned),
                )  # fmt: skip

    def add_images(
        self, images: Any, track: Track = no_progress, *, reread: bool = False
    ) -> IndexResult:
        """Encode and index images in batches; unchanged images are skipped.

        Images are a folder or file, a list of paths, bytes, PIL images or arrays, a data frame or
        a data set. Files with the same size and time as before are read only if `reread` is true.
        """
        images = to_images(images)
        unique = drop_duplicates(images)
        result = IndexResult(unchanged=len(images) - len(unique))
        images = unique
        stamps = FileStamps(images) if images.features is None else None
        if stamps is not None and not reread:
            rows, numbers = stamps.find_unchanged(self.catalog, track)
            if numbers:
                known = np.delete(np.arange(len(images)), rows)
                self._note_objects(images, known.tolist(), numbers)
                images = images.take(rows)
                stamps = FileStamps(images)
                self._count_unchanged("images", numbers, result)
        self._add(images, images.ids, "images", stamps, track, result)
        if len(unique) and len(result.problems) == len(unique):
            first = result.problems[0]
            raise DataError(
                f"None of the {len(unique)} images can be read (first: {first.location}: "
                f"{first.reason}). Check the files."
            )
        return result

    def add_texts(self, texts: Any, track: Track = no_progress) -> IndexResult:
        """Encode and index texts: a file, a list, a data frame or a data set."""
        texts = to_texts(texts)
        result = IndexResult()
        self._add(texts, text_keys(texts), "texts", None, track, result)
        return result

    def add_image(
        self, data: bytes, item_id: str, code: Codes, summary: ImageSummary | None
    ) -> IndexResult:
        """Index one image that is not in a file, given its code and summary."""
        digest = content_digest(data)
        new = _with_summary(NewItem(item_id, code.packed[0].tobytes(), digest=digest), summary)
        result = IndexResult()
        self._write("images", [new], code, result)
        return result

    def add_codes(self, modality: Modality, shards: Iterable[CodeShard]) -> IndexResult:
        """Index items that were encoded elsewhere, without texts or thumbnails."""
        result = IndexResult()
        for shard in shards:
            new = [
                NewItem(name, code.tobytes(), source=shard.source, key=key)
                for name, key, code in zip(shard.ids, shard.keys, shard.codes.packed, strict=True)
            ]
            self._write(modality, new, shard.codes, result)
        return result

    def remove(self, modality: Modality, item_ids: Sequence[str]) -> int:
        """Remove items and return how many there were.

        They are removed from the index first, so that no search returns an unknown item.
        """
        check_modality(modality)
        if isinstance(item_ids, str) or not isinstance(item_ids, Iterable):
            raise DataError(f"The ids are {type_name(item_ids)}. Pass a list of ids.")
        with self.exclusive():
            items = [self.catalog.find(modality, item_id) for item_id in item_ids]
            numbers = list(dict.fromkeys(item.number for item in items if item is not None))
            self.catalog.mark_pending(self.index_url, numbers)
            self.indexes[modality].remove(np.array(numbers, dtype=np.int64))
            self.catalog.remove(self.index_url, numbers)
        for number in numbers:
            self.objects.pop(number, None)
        return len(numbers)

    def _add(
        self,
        items: Collection[Any],
        keys: Sequence[str],
        modality: Modality,
        stamps: FileStamps | None,
        track: Track,
        result: IndexResult,
    ) -> None:
        if not len(items):
            return
        unchanged: dict[int, int] = {}  # position -> number
        is_folder = os.path.isdir(items.source)

        def is_unchanged(i: int, digest: bytes) -> bool:
            number = self.catalog.find_unchanged(
                modality, items.source, keys[i], items.ids[i], digest
            )
            if number is not None:
                unchanged[i] = number
            return number is not None

        for batch in self.encoder.encode_batches(
            items, modality, _BATCH_SIZES[modality],
            summaries=True, is_unchanged=is_unchanged, track=track,
            description=f"indexing {modality}",
        ):  # fmt: skip
            new = []
            rows = zip(batch.readable, batch.codes.packed, batch.digests, batch.summaries)
            for i, code, digest, summary in rows:
                data = None if items.features is not None else items.items[i]
                text = data if isinstance(data, str) else None
                path = os.path.abspath(data) if isinstance(data, Path) else None
                stamp = stamps[i] if stamps else None
                item = NewItem(
                    items.ids[i], code.tobytes(), text, None, path, items.source, keys[i], digest,
                    stamp, _location(items.source, keys[i], path, is_folder=is_folder),
                )  # fmt: skip
                new.append(_with_summary(item, summary))
            written = self._write(modality, new, batch.codes, result)
            self._note_objects(items, batch.readable, written)
            numbers = [unchanged.pop(i) for i in batch.unchanged]
            self._count_unchanged(modality, numbers, result)
            self._note_objects(items, batch.unchanged, numbers)
            if stamps is not None:
                pairs = [(keys[i], stamp) for i in batch.unchanged if (stamp := stamps[i])]
                self.catalog.sources.update_stamps(modality, items.source, pairs)
            result.problems += [
                Problem(items.describe(i), items.ids[i], reason) for i, reason in batch.unreadable
            ]

    def _note_objects(
        self, items: Collection[Any], rows: Sequence[int], numbers: Sequence[int]
    ) -> None:
        if items.objects is not None:
            for row, number in zip(rows, numbers, strict=True):
                self.objects[number] = items.objects, items.object_row(row)

    def _count_unchanged(
        self, modality: Modality, numbers: Sequence[int], result: IndexResult
    ) -> None:
        if self.index_url:  # which may lack codes that the catalog has
            copy_codes(self.catalog, self.indexes[modality], np.unique(numbers).astype(np.int64))
        result.unchanged += len(numbers)
        result.numbers += numbers

    def _write(
        self, modality: Modality, new: Sequence[NewItem], codes: Codes, result: IndexResult
    ) -> list[int]:
        """Write to the catalog, then to the index; items are pending in between.

        Return their numbers.
        """
        with self.exclusive():
            stored = self.catalog.add(modality, new, self.index_url)
            rows = {row.number: i for i, row in enumerate(stored) if row.recoded or self.index_url}
            if rows:
                numbers = sorted(rows)
                chosen = codes[np.array([rows[number] for number in numbers], np.int64)]
                self.indexes[modality].update(np.array(numbers, np.int64), chosen)
                self.catalog.mark_done(self.index_url, numbers)
        for item in stored:
            result.numbers.append(item.number)
            result.added += item.change == "added"
            result.updated += item.change == "updated"
            result.unchanged += item.change == "unchanged"
        return [item.number for item in stored]


def _with_summary(item: NewItem, summary: ImageSummary | None) -> NewItem:
    if summary is None:
        return item
    thumbnail, fingerprint, metadata = summary
    return replace(item, thumbnail=thumbnail, fingerprint=fingerprint, metadata=metadata)


def _location(source: str, key: str, path: str | None, *, is_folder: bool) -> str | None:
    """Return the path of an item's file inside its source, or inside the folder of its table."""
    if is_folder:
        return key
    if path is None:
        return None
    folder = os.path.dirname(source)
    name = path[len(folder) + 1 :] if source and path.startswith(folder + os.sep) else None
    return Path(name or os.path.basename(path)).as_posix()
