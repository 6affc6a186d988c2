"""Sync: make a run match a folder or file by adding, updating and removing items."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transhash.data.collection import Collection, Modality, Problem, check_modality, text_keys
from transhash.data.inputs import drop_duplicates
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_both,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.data.tables import MAYBE_CUT, is_complete, is_table
from transhash.errors import DataError, EmptySourceError
from transhash.features.decode_processes import decode_isolated
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog
from transhash.search.sources import FileStamps, ListedItem
from transhash.search.writer import IndexResult, IndexWriter
from transhash.storage import content_digest, read_regular

_CHUNK_ROWS = 1024  # items removed at a time
_MIN_LOST = 2  # items; one that is deleted is no sign of a missing disk


@dataclass(frozen=True)
class SyncPlan:
    """Items of one modality in a source, and the items of the run that it has no longer."""

    modality: Modality
    source: str
    items: Collection[Any] | None  # None: the source is missing or empty
    removed: list[ListedItem]
    added: list[str]  # keys of items that the run does not have
    count: int  # items that the run has of this source
    tail: Sequence[ListedItem] = ()  # removed, and in the run just after the last of the source

    @property
    def problems(self) -> tuple[Problem, ...]:
        return () if self.items is None else self.items.problems


def plan_sync(catalog: Catalog, path: Path) -> list[SyncPlan]:
    """Compare a source with the catalog; return one plan per modality and change nothing.

    A source that exists but cannot be read, or changes while it is read, is an error.
    """
    source = str(path.resolve())
    modalities = [check_modality(name) for name in catalog.sources.modalities(source)]
    collections: list[tuple[Modality, Collection[Any] | None]]
    before = _file_stamp(path)
    try:
        collections = list(_read(path, modalities))
    except EmptySourceError:
        if not modalities:
            raise
        collections = [(modality, None) for modality in modalities]
    if _file_stamp(path) != before:
        raise DataError(f"{path} changed while it was read. Sync when it is complete.")
    return [_plan(catalog, modality, source, items) for modality, items in collections]


def find_losses(catalog: Catalog, plans: Sequence[SyncPlan]) -> dict[str, str]:
    """Return a phrase for each source that may be missing a part, such as a disk, by source.

    Such a source is missing or empty, lost half of its items or everything in a folder, or is a
    table that may be cut off. Files that come back under another path are not lost.
    """
    names = Counter(_base_name(plan, key) for plan in plans for key in plan.added)
    losses: dict[str, str] = {}
    for plan in plans:
        lost = []
        for item in plan.removed:
            name = _base_name(plan, item.key)
            if names[name] > 0:
                names[name] -= 1  # renamed or moved
            else:
                lost.append(item)
        count = min(len(lost), len(plan.removed) - len(plan.added))  # edited lines of a text
        loss = ""
        if plan.items is None:
            if plan.removed:
                loss = f"{plan.source} is missing or empty ({_amount(plan)})"
        elif count >= _MIN_LOST and 2 * count >= plan.count:
            loss = f"{plan.source} lost {count:,} of {plan.count:,} {plan.modality}"
        elif plan.removed and _may_be_cut(catalog, plan, lost):
            loss = f"{plan.source} may be cut off at its end ({_amount(plan)})"
        elif folder := _lost_folder(plan.source, lost):
            loss = f"the folder {folder} is missing or empty"
        if loss:
            losses.setdefault(plan.source, loss)
    return losses


def without_sources(plans: Sequence[SyncPlan], sources: Container[str]) -> list[SyncPlan]:
    """Return the plans of the other sources.

    They remove no item whose file may have moved to one of these sources, where it is not added.
    """
    moved = {
        _base_name(plan, key) for plan in plans if plan.source in sources for key in plan.added
    }
    return [
        replace(
            plan, removed=[item for item in plan.removed if _base_name(plan, item.key) not in moved]
        )
        for plan in plans
        if plan.source not in sources
    ]


def sync(
    writer: IndexWriter,
    plans: Sequence[SyncPlan],
    track: Track = no_progress,
    *,
    reread: bool = False,
    allow_shrink: bool = False,
) -> tuple[list[IndexResult], int]:
    """Apply plans together; return the result of indexing each and the number of removed items.

    Unless `allow_shrink`, nothing is changed if `find_losses` returns a phrase.

    Items of all plans are removed before any is added, so that a file that was moved from one
    source to another is added again. If the process is killed, the next writer makes catalog and
    index consistent, and the same call resumes.
    """
    losses = {} if allow_shrink else find_losses(writer.catalog, plans)
    if losses:
        first, *others = losses.values()
        more = f" and {len(others)} more" if others else ""
        raise DataError(
            f"Nothing was synced, because {first}{more}. Check the source, preview with "
            "--dry-run, or use --allow-shrink to remove the items."
        )
    removed = remove_missing(writer, plans, track)
    return [add_items(writer, plan, track, reread=reread) for plan in plans], removed


def remove_missing(writer: IndexWriter, plans: Sequence[SyncPlan], track: Track) -> int:
    """Remove the items that the sources no longer have; return their number."""
    removed = 0
    for plan in plans:
        ids = [item.id for item in plan.removed]
        starts = range(0, len(ids), _CHUNK_ROWS)
        for start in track(starts, f"removing {plan.modality}"):
            removed += writer.remove(plan.modality, ids[start : start + _CHUNK_ROWS])
    return removed


def add_items(
    writer: IndexWriter, plan: SyncPlan, track: Track, *, reread: bool = False
) -> IndexResult:
    """Add the new items of a source and update the others."""
    if plan.items is None:
        return IndexResult()
    if plan.modality == "images":
        return writer.add_images(plan.items, track, reread=reread)
    return writer.add_texts(plan.items, track)


def preview_sync(
    catalog: Catalog, plan: SyncPlan, track: Track = no_progress, *, reread: bool = False
) -> IndexResult:
    """Return what `sync` would do; new and changed files are read."""
    result = IndexResult()
    if plan.items is None:
        return result
    items: Collection[Any] = plan.items
    if plan.modality == "images":
        items = drop_duplicates(items)
        result.unchanged += len(plan.items) - len(items)
        if items.features is None and not reread:
            rows, numbers = FileStamps(items).find_unchanged(catalog, track)
            result.unchanged += len(numbers)
            items = items.take(rows)
    keys = _item_keys(plan.modality, items)
    for row in track(range(len(items)), f"comparing {plan.modality}", len(items)):
        item = (plan.modality, plan.source, keys[row])
        digest, reason = _read_digest(items, row)
        if reason is None and catalog.find_unchanged(*item, items.ids[row], digest) is not None:
            result.unchanged += 1
            continue
        reason = reason or _image_problem(items, row)
        if reason is not None:
            result.problems.append(Problem(items.describe(row), items.ids[row], reason))
        elif catalog.sources.find_number(*item) is not None:
            result.updated += 1
        else:
            result.added += 1
    return result


def _read(
    path: Path, modalities: Sequence[Modality]
) -> Iterator[tuple[Modality, Collection[Any] | None]]:
    """Read the modalities that the run has of a source; of a new source, the one it contains."""
    is_features = path.suffix.lower() == ".npy"
    if is_features and not modalities:
        raise DataError(
            f"{path} has features of unknown modality. Index it once with --images or --texts."
        )
    if len(modalities) == 2 and path.is_dir():
        yield from zip(("images", "texts"), read_both(path))
        return
    if is_features or (modalities and path.is_dir()):
        for modality in modalities:
            yield modality, read_images(path) if modality == "images" else read_texts(path)
        return
    manifest = read_manifest(path)
    if not modalities:
        if {"image", "text"} <= manifest.columns:
            raise DataError(
                f"{path} contains images and texts. Index it once with --images, --texts or both."
            )
        modalities = ["images" if "image" in manifest.columns else "texts"]
    for modality in modalities:
        read = manifest_images if modality == "images" else manifest_texts
        yield modality, read(manifest)


def _plan(
    catalog: Catalog, modality: Modality, source: str, items: Collection[Any] | None
) -> SyncPlan:
    """Compare the items of a source with the catalog.

    Items that the source no longer lists are removed, except files that may still exist.
    """
    keys = {} if items is None else dict.fromkeys(_item_keys(modality, items))
    last = next(reversed(keys), None)
    is_folder = os.path.isdir(source)
    count, after_last = 0, None
    removed: list[ListedItem] = []
    for item in catalog.sources.list_items(modality, source):
        count += 1
        if item.key in keys:
            after_last = len(removed) if item.key == last else None
            del keys[item.key]
        elif is_folder:
            if _file_state(os.path.join(source, item.key)) == "missing":
                removed.append(item)
        elif item.path is None or _file_state(item.path) != "unknown":
            removed.append(item)
    tail = () if after_last is None else removed[after_last:]
    return SyncPlan(modality, source, items, removed, list(keys), count, tail)


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Return size and time of a table, None for a folder or a missing file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return None if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)


def _base_name(plan: SyncPlan, key: str) -> tuple[Modality, str]:
    return plan.modality, key.replace("\\", "/").rpartition("/")[2]


def _amount(plan: SyncPlan) -> str:
    return f"{len(plan.removed):,} {plan.modality} would be removed"


def _may_be_cut(catalog: Catalog, plan: SyncPlan, lost: Container[ListedItem]) -> bool:
    """Return whether a table seems to lack its end, as one does that is being written."""
    items, path = plan.items, Path(plan.source)
    if items is None or not is_table(path) or not path.is_file():
        return False
    if sum(item in lost for item in plan.tail) >= _MIN_LOST:
        return True
    if any(MAYBE_CUT in problem.reason for problem in items.problems):
        return True
    if is_complete(path) or plan.modality != "texts" or not len(items):
        return False
    # The end of its last text may be missing, unless the run has just that text.
    key, digest = _item_keys("texts", items)[-1], _read_digest(items, len(items) - 1)[0]
    number = catalog.find_unchanged("texts", plan.source, key, items.ids[-1], digest)
    return number is None


def _lost_folder(source: str, lost: Sequence[ListedItem]) -> str | None:
    """Return a folder that had several items and has no file any more, or None."""
    has_file: dict[str, bool] = {source: True}
    counts: Counter[str] = Counter()
    for item in lost:
        path = os.path.join(source, item.key) if os.path.isdir(source) else item.path
        folder, top = os.path.dirname(path or ""), ""
        while folder and folder != source and folder != os.path.dirname(folder):
            if folder not in has_file:
                has_file[folder] = any(files for _, _, files in os.walk(folder))
            if has_file[folder]:
                break
            top, folder = folder, os.path.dirname(folder)
        if top:
            counts[top] += 1
    folder, count = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
    return folder if count >= _MIN_LOST else None


def _file_state(path: str) -> str:
    """Return missing, present, or unknown for a file in a folder that cannot be entered."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):
        return "unknown"
    return "present"


def _item_keys(modality: Modality, items: Collection[Any]) -> Sequence[str]:
    return items.ids if modality == "images" else text_keys(items)


def _image_problem(items: Collection[Any], row: int) -> str | None:
    """Return why an image cannot be used, or None."""
    if items.features is not None or isinstance(items.items[row], str):
        return None
    pixels = decode_isolated(items.items[row], 256)
    return pixels if isinstance(pixels, str) else None


def _read_digest(items: Collection[Any], row: int) -> tuple[bytes, str | None]:
    """Return the digest of an item's content, and why it cannot be read or None."""
    if items.features is not None:
        return content_digest(items.features[row].tobytes()), None
    item = items.items[row]
    if not isinstance(item, Path):
        data = item.encode("utf-8", "replace") if isinstance(item, str) else item
        return content_digest(data), None
    try:
        return content_digest(read_regular(item)), None
    except OSError as error:
        return b"", f"cannot be read ({error.strerror})"
