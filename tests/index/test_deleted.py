"""Deleted and replaced items do not slow searches down: counted in rows, not in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index import Ranking
from transhash.index.exact import ExactIndex
from transhash.index.grouped import segment as segments
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.grouped.segment import Segment, build, to_words
from transhash.index.kernel import native

needs_kernel = pytest.mark.skipif(native is None, reason="the native kernel was not built")


def clustered(count: int, bits: int, seed: int, flip: float = 0.03) -> Codes:
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).integers(0, 256, (20, bits // 8), dtype=np.uint8)
    flips = np.packbits(generator.random((count, bits)) < flip, axis=1)
    return Codes(centers[generator.integers(0, 20, count)] ^ flips, bits)


def assert_same(left: Ranking, right: Ranking) -> None:
    for ours, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(ours, theirs)  # type: ignore[arg-type]


def rows_examined(index: GroupedIndex, query: Codes, k: int) -> int:
    """Return how many codes the kernel compares with the query."""
    words, total = to_words(query.packed), 0
    for part in index._state.everything:
        deleted = part._deleted_bits if part.all_deleted else None
        output = np.empty((1, k), np.int64), np.empty((1, k), np.int32)
        segment = part.segment
        total += native.search(
            *segment._arrays(words, deleted), k, segment.probe_budget, 1, *output
        )[1]
    return total


@needs_kernel
@pytest.mark.parametrize("replaced", [False, True])
def test_a_search_examines_as_few_rows_as_after_compacting(replaced: bool) -> None:
    index, codes = GroupedIndex(64), clustered(200_000, 64, 1)
    index.add(np.arange(200_000), codes)
    query = codes[7:8]
    nearest = np.argsort(query.hamming(codes)[0], kind="stable")
    fresh = rows_examined(index, query, 24)
    for count in (100, 1_000, 8_000, 12_000):
        if replaced:
            index.update(nearest[:count], Codes(~codes.packed[nearest[:count]], 64))
        else:
            index.remove(nearest[:count])
        examined, delta = rows_examined(index, query, 24), len(index._delta)
        assert index._state.parts[0].all_deleted == count
        compact = GroupedIndex(64)
        compact.add(*index.export())
        # Not exactly: how the tables take turns depends on the number of rows.
        assert examined - delta <= 1.25 * rows_examined(compact, query, 24)
        assert_same(index.search(query, 24), compact.search(query, 24))
    assert fresh < 12_000  # fewer than were deleted: passing over them one by one would show


@needs_kernel
@pytest.mark.parametrize("bits", [8, 32, 64, 128, 256])
@pytest.mark.parametrize("weighted", [False, True])
def test_deleted_items_are_left_out_by_scan_and_by_tables(
    bits: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(segments, "SPARE_BYTES", 10_000)
    codes, queries = clustered(6000, bits, 1, 0.01), clustered(4, bits, 2)
    generator = np.random.default_rng(3)
    weights = generator.integers(0, 900, (4, bits)) if weighted else None
    for ids in (np.arange(50, 6050), generator.permutation(50_000)[:6000]):
        segment = build(ids, to_words(codes.packed), bits)
        assert segment.starts is not None
        exact, deleted = ExactIndex(bits), None
        exact.add(ids, codes)
        for _ in range(3):  # each time with the bitmaps of the earlier ones
            removed = generator.choice(exact.export()[0], 1500, replace=False)
            exact.remove(removed)
            deleted = segment.mark_deleted(removed, deleted)
            for k in (1, 40, 1500):
                for probe_budget in (0.0, 1e9):
                    for threads in (1, 3):
                        ranking = segment.search(
                            to_words(queries.packed), k, threads, probe_budget, weights, deleted
                        )
                        assert_same(ranking, exact.search(queries, k, weights))


def test_a_part_with_many_deleted_items_is_rewritten(tmp_path: Path) -> None:
    index = GroupedIndex.open(tmp_path / "index", 32)
    index.flush_at = 320
    codes = clustered(3200, 32, 1)
    index.add(np.arange(3200), codes)
    rewritten = 0
    for step in range(100):
        before = index._generation.number
        if step % 2:
            index.remove(np.arange(step * 30, step * 30 + 30))
        else:
            index.update(np.arange(step * 30, step * 30 + 30), codes[:30])
        rewritten += index._generation.number > before
        for part in index._state.parts:
            assert part.all_deleted <= max(20, part.segment.items // 16)
    assert rewritten < 60  # not at every change
    assert len(index) == 1700
    index.close()
    with GroupedIndex.open(tmp_path / "index", None) as again:
        again.verify()
        assert len(again) == 1700


@needs_kernel
def test_corrupt_arrays_are_an_error_when_items_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(segments, "SPARE_BYTES", 10_000)
    codes = clustered(200_000, 32, 1)
    segment = build(np.arange(200_000), to_words(codes.packed), 32)
    assert segment.starts is not None
    for name in ("starts", "orders", "offsets", "ids"):
        arrays = {key: array.copy() for key, array in segment.arrays().items()}
        arrays[name].reshape(-1)[1:] = 0xFFFFFFF0
        corrupt = Segment(**{"sorted_ids": None, **arrays})
        with pytest.raises(EngineError, match="corrupt"):
            corrupt.mark_deleted(np.arange(0, 200_000, 2))
    deleted = segment.mark_deleted(np.arange(5))
    short = deleted._replace(rows=deleted.rows[:, 1:].copy())
    with pytest.raises(EngineError, match="bitmaps"):
        segment.search(to_words(codes[:1].packed), 3, deleted=short)


@needs_kernel
@pytest.mark.parametrize("weighted", [False, True])
def test_a_limit_leaves_out_only_items_beyond_it(weighted: bool) -> None:
    codes, queries = clustered(5000, 64, 1), clustered(6, 64, 2)
    weights = np.random.default_rng(3).integers(0, 900, (6, 64)) if weighted else None
    segment = build(np.arange(5000), to_words(codes.packed), 64)
    words = to_words(queries.packed)
    whole = segment.search(words, 300, weights=weights)
    values = whole.distances.astype(np.int64) if whole.costs is None else whole.costs
    limits = np.ascontiguousarray(values[:, 40])
    within = segment.search(words, 300, weights=weights, limits=limits)
    for q in range(6):
        count = np.searchsorted(values[q], limits[q], side="right")
        assert within.ids[q, :count].tolist() == whole.ids[q, :count].tolist()
        assert (within.ids[q, count:] == -1).all()
