"""A run kept in step with a folder or file: what is new, changed or gone there."""

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

_BLOCK = 1024  # items forgotten at a time


@dataclass(frozen=True)
class SyncPlan:
    """One kind of items of a folder or file, as it is now, and what the run has of it no more."""

    modality: Modality
    origin: str
    items: Collection[Any] | None  # None: the source is gone or empty, and was to be
    removed: list[str]  # ids

    @property
    def problems(self) -> tuple[Problem, ...]:
        return () if self.items is None else self.items.problems


def plan_sync(catalog: Catalog, path: Path, *, allow_empty: bool = False) -> list[SyncPlan]:
    """What there is to keep in step with; nothing is changed.

    A source that is gone, empty or cannot be read is refused, because a disk that is not mounted
    looks like that, unless with `allow_empty` its items are to go.
    """
    catalog.require_current_format()
    origin = str(path.resolve())
    known = [check_modality(kind) for kind in catalog.origins.modalities(origin)]
    try:
        found = list(_read(path, known))
    except DataError as error:
        if not known:
            raise
        counts = {kind: sum(1 for _ in catalog.origins.listing(kind, origin)) for kind in known}
        if not allow_empty:
            what = " and ".join(f"{count:,} {kind}" for kind, count in counts.items())
            raise DataError(
                f"{error}; its {what} in this run were not forgotten: if they are to go, add "
                "--forget-all"
            ) from None
        return [SyncPlan(kind, origin, None, _all(catalog, kind, origin)) for kind in known]
    return [
        SyncPlan(kind, origin, items, list(_vanished(catalog, kind, items)))
        for kind, items in found
    ]


def sync(
    engine: IndexWriter, source: SyncPlan, track: Track = no_progress, *, reread: bool = False
) -> tuple[IndexResult, int]:
    """The run as the source is: what became of its items, and how many were forgotten.

    What vanished goes first, so that its ids are free. Killed in between, catalog and index agree
    when the next writer opens them, and the same call goes on.
    """
    forgotten = 0
    for start in range(0, len(source.removed), _BLOCK):
        forgotten += engine.remove(source.modality, source.removed[start : start + _BLOCK])
    if source.items is None:
        return IndexResult(), forgotten
    if source.modality == "images":
        return engine.add_images(source.items, track, reread=reread), forgotten
    return engine.add_texts(source.items, track), forgotten


def preview_sync(
    catalog: Catalog, source: SyncPlan, track: Track = no_progress, *, reread: bool = False
) -> IndexResult:
    """What `sync` would add, update, leave and skip: new and changed files are read."""
    if source.items is None:
        return IndexResult()
    done = IndexResult()
    items: Collection[Any] = source.items
    if source.modality == "images":
        given = len(items)
        items = drop_duplicates(items)
        done.unchanged += given - len(items)
        if items.features is None and not reread:
            rows, numbers = FileStamps(items).unchanged(catalog, track)
            done.unchanged += len(numbers)
            items = items.take(rows)
    keys = _keys(source.modality, items)
    for row in track(range(len(items)), f"comparing {source.modality}", len(items)):
        digest = _digest(items, row)
        place = (source.modality, source.origin, keys[row])
        if isinstance(digest, str):
            done.problems.append(Problem(items.describe(row), items.ids[row], digest))
        elif catalog.unchanged(*place, items.ids[row], digest) is not None:
            done.unchanged += 1
        elif (flaw := _flaw(items, row)) is not None:
            done.problems.append(Problem(items.describe(row), items.ids[row], flaw))
        elif catalog.origins.number_at(*place) is not None:
            done.updated += 1
        else:
            done.added += 1
    return done


def _read(path: Path, known: Sequence[Modality]) -> Iterator[tuple[Modality, Collection[Any]]]:
    """The kinds that the run has of it; of a new source the one kind that it holds."""
    if path.suffix.lower() == ".npy" and not known:
        raise DataError(
            f"{path} may hold either kind of features; index it once by --images or --texts"
        )
    if path.suffix.lower() == ".npy" or (known and path.is_dir()):
        for kind in known:
            yield kind, read_images(path) if kind == "images" else read_texts(path)
        return
    manifest = read_manifest(path)
    modalities: list[Modality] = list(known)
    if not modalities:
        if {"image", "text"} <= manifest.columns:
            raise DataError(
                f"{path} holds images and texts; index it once by --images, --texts or both, to "
                "say which are meant"
            )
        modalities = ["images" if "image" in manifest.columns else "texts"]
    for kind in modalities:
        yield kind, manifest_images(manifest) if kind == "images" else manifest_texts(manifest)


def _vanished(catalog: Catalog, modality: Modality, items: Collection[Any]) -> Iterator[str]:
    """Ids of what the source lists no more; a file that may still be there is kept."""
    listed = set(_keys(modality, items))
    folder = os.path.isdir(items.source)
    for item in catalog.origins.listing(modality, items.source):
        if item.key is None or item.key in listed:
            continue
        if folder:
            if _file(os.path.join(items.source, item.key)) == "gone":
                yield item.id
        elif item.source is None or _file(item.source) != "unknown":
            yield item.id


def _file(path: str) -> str:
    """gone, there, or unknown: in a folder that cannot be entered."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except (OSError, ValueError):
        return "unknown"
    return "there"


def _all(catalog: Catalog, modality: Modality, origin: str) -> list[str]:
    return [item.id for item in catalog.origins.listing(modality, origin)]


def _keys(modality: Modality, items: Collection[Any]) -> Sequence[str]:
    return items.ids if modality == "images" else text_keys(items)


def _flaw(items: Collection[Any], row: int) -> str | None:
    """Why a picture could not be used, if it could not."""
    if items.features is not None or isinstance(items.items[row], str):
        return None
    image = open_image(items.items[row], 256)
    return image if isinstance(image, str) else None


def _digest(items: Collection[Any], row: int) -> bytes | str:
    """Of an item's content; or why there is none."""
    if items.features is not None:
        return content_digest(items.features[row].tobytes())
    item = items.items[row]
    if not isinstance(item, Path):
        return content_digest(item.encode("utf-8", "replace") if isinstance(item, str) else item)
    try:
        return content_digest(item.read_bytes())
    except OSError as error:
        return f"cannot be read ({error.strerror})"
