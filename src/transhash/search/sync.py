"""Sync: make a run match a folder or file by adding, updating and removing items."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transhash.data.collection import Collection, Modality, Problem, check_modality, text_keys
from transhash.data.inputs import drop_duplicates
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
)
from transhash.errors import DataError
from transhash.features.decode import open_image
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog
from transhash.search.sources import FileStamps
from transhash.search.writer import IndexResult, IndexWriter
from transhash.storage import content_digest

_CHUNK_ROWS = 1024  # items removed at a time


@dataclass(frozen=True)
class SyncPlan:
    """Items of one modality in a source, and the items of the run that it has no longer."""

    modality: Modality
    source: str
    items: Collection[Any] | None  # None: the source is missing or empty, and that is allowed
    removed: list[str]  # ids

    @property
    def problems(self) -> tuple[Problem, ...]:
        return () if self.items is None else self.items.problems


def plan_sync(catalog: Catalog, path: Path, *, allow_empty: bool = False) -> list[SyncPlan]:
    """Compare a source with the catalog; return one plan per modality and change nothing.

    A source that is missing, empty or unreadable is refused unless `allow_empty`, because a disk
    that is not mounted looks like that.
    """
    source = str(path.resolve())
    modalities = [check_modality(name) for name in catalog.sources.modalities(source)]
    try:
        collections = list(_read(path, modalities))
    except DataError as error:
        if not modalities:
            raise
        ids = {m: [item.id for item in catalog.sources.list_items(m, source)] for m in modalities}
        if not allow_empty:
            counts = " and ".join(f"{len(ids[m]):,} {m}" for m in modalities)
            raise DataError(
                f"{error} {path} is missing or empty, so its {counts} were not removed. Use "
                "--allow-empty to remove them."
            ) from None
        return [SyncPlan(modality, source, None, ids[modality]) for modality in modalities]
    return [
        SyncPlan(modality, source, items, list(_removed_ids(catalog, modality, items)))
        for modality, items in collections
    ]


def sync(
    writer: IndexWriter,
    plans: Sequence[SyncPlan],
    track: Track = no_progress,
    *,
    reread: bool = False,
) -> tuple[list[IndexResult], int]:
    """Apply plans together; return the result of indexing each and the number of removed items.

    Items of all plans are removed before any is added, so that a file that was moved from one
    source to another is added again. If the process is killed, the next writer makes catalog and
    index consistent, and the same call resumes.
    """
    removed = 0
    for plan in plans:
        for start in range(0, len(plan.removed), _CHUNK_ROWS):
            removed += writer.remove(plan.modality, plan.removed[start : start + _CHUNK_ROWS])
    results = []
    for plan in plans:
        if plan.items is None:
            results.append(IndexResult())
        elif plan.modality == "images":
            results.append(writer.add_images(plan.items, track, reread=reread))
        else:
            results.append(writer.add_texts(plan.items, track))
    return results, removed


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


def _read(path: Path, modalities: Sequence[Modality]) -> Iterator[tuple[Modality, Collection[Any]]]:
    """Read the modalities that the run has of a source; of a new source, the one it contains."""
    is_features = path.suffix.lower() == ".npy"
    if is_features and not modalities:
        raise DataError(
            f"{path} has features of unknown modality. Index it once with --images or --texts."
        )
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


def _removed_ids(catalog: Catalog, modality: Modality, items: Collection[Any]) -> Iterator[str]:
    """Yield ids of items that the source no longer lists, except files that may still exist."""
    keys = set(_item_keys(modality, items))
    is_folder = os.path.isdir(items.source)
    for item in catalog.sources.list_items(modality, items.source):
        if item.key in keys:
            continue
        if is_folder:
            if _file_state(os.path.join(items.source, item.key)) == "missing":
                yield item.id
        elif item.path is None or _file_state(item.path) != "unknown":
            yield item.id


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
    image = open_image(items.items[row], 256)
    return image if isinstance(image, str) else None


def _read_digest(items: Collection[Any], row: int) -> tuple[bytes, str | None]:
    """Return the digest of an item's content, and why it cannot be read or None."""
    if items.features is not None:
        return content_digest(items.features[row].tobytes()), None
    item = items.items[row]
    if not isinstance(item, Path):
        data = item.encode("utf-8", "replace") if isinstance(item, str) else item
        return content_digest(data), None
    try:
        return content_digest(item.read_bytes()), None
    except OSError as error:
        return b"", f"cannot be read ({error.strerror})"
