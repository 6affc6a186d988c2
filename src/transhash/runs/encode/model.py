"""A model that turns items into shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from transhash.codes import Codes
from transhash.data.collection import Collection, Problem
from transhash.errors import DataError
from transhash.features.image import Part
from transhash.runs.catalog import Modality
from transhash.runs.encode.shards import write_codes
from transhash.runs.encoder import Encoder

Shard = tuple[Path, Collection[Any]]  # where it is written, and of what


class ShardEncoder:
    """A model, loaded once, that writes shards."""

    def __init__(self, run: str, modality: Modality, workers: int | None, device: str) -> None:
        self.encoder = Encoder.load(run, device)
        self.modality = modality
        self.workers = workers

    def write(self, shards: Sequence[Shard]) -> Iterator[int]:
        """Write every shard; yields how many more items are done."""
        rows = self._image_rows if self.modality == "images" else self._text_rows
        if shards and shards[0][1].features is not None:
            rows = self._given_rows
        yield from rows(shards)

    def _given_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        for path, items in shards:
            assert items.features is not None
            self._finish(path, items.features, items.ids, [])
            yield len(items)

    def _text_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        words = self.encoder.text_features
        if words is None:
            raise DataError("this model takes precomputed text features; give a .npy")
        for path, items in shards:
            self._finish(path, words.transform(items.items), items.ids, [])
            yield len(items)

    def _image_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        """One stream of images through all shards, which are hashed and written beside it."""
        features = self.encoder.image_features
        if features is None:
            raise DataError("this model takes precomputed image features; give a .npy")
        paths = [path for _, items in shards for path in items.items]
        lengths = [len(items) for _, items in shards]
        parts = _cut_parts(features.stream(paths, self.workers), lengths)
        finishing: deque[Future[None]] = deque()
        # One core for hashing: the others are busy, and BLAS threads would wait for each other.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(1) as writer:
            for path, items in shards:
                rows: list[npt.NDArray[Any]] = []
                good: list[int] = []
                bad: list[tuple[int, str]] = []
                while len(good) + len(bad) < len(items):
                    part = next(parts)
                    rows.append(part.rows)
                    good += part.good
                    bad += part.bad
                    yield len(part.items)
                ids = [items.ids[i] for i in good]
                problems = [Problem(str(items.items[i]), items.ids[i], why) for i, why in bad]
                finishing.append(
                    writer.submit(self._finish, path, np.concatenate(rows), ids, problems)
                )
                if len(finishing) > 1:  # bounded: rows must not pile up
                    finishing.popleft().result()
            for future in finishing:
                future.result()

    def _finish(
        self, path: Path, rows: npt.NDArray[Any], ids: Sequence[str], problems: list[Problem]
    ) -> None:
        codes = Codes(np.zeros((0, self.encoder.bits // 8), np.uint8), self.encoder.bits)
        if len(ids):
            hasher = self.encoder.hasher
            encode = hasher.encode_images if self.modality == "images" else hasher.encode_texts
            codes = encode(rows)
        write_codes(path, ids, codes, problems)


def _cut_parts(parts: Iterable[Part], lengths: Sequence[int]) -> Iterator[Part]:
    """The parts, cut where a shard ends, with positions counted from its beginning."""
    ends = iter(np.cumsum(lengths).tolist())
    first = end = at = 0
    for part in parts:
        while part.items:
            if at == end:
                first, end = end, next(ends)
            good = [i - first for i in part.good if i < end]
            bad = [(i - first, why) for i, why in part.bad if i < end]
            yield Part(good, part.rows[: len(good)], bad)
            part = Part(part.good[len(good) :], part.rows[len(good) :], part.bad[len(bad) :])
            at += len(good) + len(bad)
