"""One suite for all backends: each returns the results of `exact`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.codes import MAX_BITS, Codes
from transhash.errors import DataError, EngineError
from transhash.index import Index, open_index
from transhash.index.exact import ExactIndex

BACKENDS = ["exact", "faiss", "grouped"]
Open = Callable[[int], Index]


def random_codes(count: int, bits: int, seed: int = 0, spread: int = 256) -> Codes:
    """A small `spread` means few distinct bytes, so that codes repeat and distances tie."""
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, spread, (count, bits // 8), dtype=np.uint8), bits)


@pytest.fixture(
    params=[f"{backend}-{store}" for backend in BACKENDS for store in ("memory", "disk")]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    backend, store = request.param.split("-")
    url = f"{backend}:" if store == "memory" else f"{backend}:{tmp_path / 'index'}"
    return lambda bits: open_index(url, bits)


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 40, 64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("spread", [256, 2])
def test_search_agrees_with_exact_for_every_code_length(
    opened: Open, bits: int, spread: int
) -> None:
    codes, queries = random_codes(700, bits, 1, spread), random_codes(9, bits, 2, spread)
    ids = np.random.default_rng(3).permutation(5_000)[:700]
    exact = ExactIndex(bits)
    exact.add(ids, codes)
    with opened(bits) as index:
        index.add(ids, codes)
        for k in (1, 10, 699, 700, 800):
            assert_same(index.search(queries, k), exact.search(queries, k))


def test_equal_distances_come_by_ascending_id(opened: Open) -> None:
    index = opened(16)
    code = random_codes(1, 16)
    index.add([9, 4, 30, 1], Codes(np.repeat(code.packed, 4, axis=0), 16))
    ranking = index.search(code, 3)
    assert ranking.ids.tolist() == [[1, 4, 9]]
    assert ranking.distances.tolist() == [[0, 0, 0]]


def test_add_update_and_remove_follow_a_plain_history(opened: Open) -> None:
    index, exact = opened(32), ExactIndex(32)
    generator = np.random.default_rng(5)
    for step in range(12):
        codes = random_codes(40, 32, step, 3)
        fresh = np.arange(40) + step * 40
        known = generator.choice(step * 40 + 40, 40, replace=False)
        for each in (index, exact):
            each.add(fresh, codes)
            each.update(known, random_codes(40, 32, step + 100, 3))
        removed = generator.choice(step * 40 + 80, 15, replace=False)
        assert index.remove(removed) == exact.remove(removed)
        assert len(index) == len(exact)
        queries = random_codes(5, 32, step + 200, 3)
        assert_same(index.search(queries, 25), exact.search(queries, 25))
    (ids, codes), (exact_ids, exact_codes) = index.export(), exact.export()
    assert np.array_equal(ids, exact_ids)
    assert codes == exact_codes


def test_an_empty_index_returns_nothing(opened: Open) -> None:
    index = opened(16)
    queries = random_codes(2, 16)
    assert index.search(queries, 3).ids.shape == (2, 0)
    assert index.search(queries, 3).distances.shape == (2, 0)
    assert len(index.search(queries[:0], 3).ids) == 0
    assert index.remove([3]) == 0
    assert len(index) == 0
    ids, codes = index.export()
    assert len(ids) == len(codes) == 0


def test_k_may_be_any_integer_and_the_result_is_as_wide_as_the_index(opened: Open) -> None:
    index = opened(16)
    codes = random_codes(5, 16)
    index.add(np.arange(5), codes)
    index.remove([3])
    assert_same(index.search(codes, np.int64(3)), index.search(codes, 3))  # type: ignore[arg-type]
    everything = index.search(codes, 10**9)
    assert everything.ids.shape == everything.distances.shape == (5, 4)
    assert_same(everything, index.search(codes, 4))
    for wrong in (1.5, "3", None):
        with pytest.raises(DataError, match="integer"):
            index.search(codes, wrong)  # type: ignore[arg-type]


def test_the_longest_codes_are_searched_and_longer_ones_refused(opened: Open) -> None:
    codes = random_codes(30, MAX_BITS)
    index, exact = opened(np.int64(MAX_BITS)), ExactIndex(MAX_BITS)  # type: ignore[arg-type]
    for each in (index, exact):
        each.add(np.arange(30), codes)
    assert_same(index.search(codes[:4], 9), exact.search(codes[:4], 9))
    index.close()
    for bits in (MAX_BITS + 8, 10**9):
        with pytest.raises(DataError, match="65,528"):
            opened(bits)


def test_strided_ids_and_codes_are_stored_as_they_read(opened: Open) -> None:
    index = opened(32)
    wide = random_codes(20, 64).packed
    index.add(np.arange(60)[::3], Codes(wide[:, ::2], 32))
    ids, codes = index.export()
    assert np.array_equal(ids, np.arange(0, 60, 3))
    assert np.array_equal(codes.packed, wide[:, ::2])
    assert index.search(Codes(wide[::-2, ::2], 32), 1).distances.tolist() == [[0]] * 10


def test_ingest_sends_missing_and_changed_items(opened: Open) -> None:
    index, codes = opened(32), random_codes(300, 32)
    ids = np.random.default_rng(0).permutation(1000)[:300]
    index.add(ids[:100], codes[:100])
    index.add([5000], codes[:1])
    index.update(ids[:7], random_codes(7, 32, 9))
    assert index.ingest(ids, codes) == 207
    assert index.ingest(ids, codes) == 0
    index.wait_until_ready()
    assert len(index) == 301
    order = np.argsort(ids)
    stored_ids, stored_codes = index.export()
    assert np.array_equal(stored_ids[:-1], ids[order])
    assert stored_codes[:-1] == codes[order]
    with pytest.raises(DataError, match="twice"):
        index.ingest([1, 1], codes[:2])


def test_trial_queries_never_change_results(opened: Open) -> None:
    index, codes = opened(64), random_codes(40_000, 64)
    index.set_trial_queries(codes[:100])
    index.add(np.arange(40_000), codes)
    expected = index.search(codes[:5], 20)
    for trials in (random_codes(3, 64, 5), codes[:0]):
        index.set_trial_queries(trials)
        assert_same(index.search(codes[:5], 20), expected)


def test_wrong_items_are_refused_and_nothing_is_stored(opened: Open) -> None:
    index = opened(16)
    index.add([7], random_codes(1, 16))
    with pytest.raises(EngineError, match="7 is already"):
        index.add([8, 7], random_codes(2, 16))
    with pytest.raises(DataError, match="twice"):
        index.add([8, 8], random_codes(2, 16))
    with pytest.raises(DataError, match="0 or more"):
        index.add([-1], random_codes(1, 16))
    with pytest.raises(DataError, match="integers"):
        index.add([0.5], random_codes(1, 16))
    with pytest.raises(DataError, match="one id per code"):
        index.add([1, 2], random_codes(1, 16))
    with pytest.raises(EngineError, match="32-bit"):
        index.add([8], random_codes(1, 32))
    with pytest.raises(EngineError, match="32-bit"):
        index.search(random_codes(1, 32), 1)
    with pytest.raises(DataError, match="got 0"):
        index.search(random_codes(1, 16), 0)
    assert len(index) == 1


def test_ids_may_be_as_large_as_63_bits(opened: Open) -> None:
    index = opened(64)
    ids = [2**63 - 1, 0, 2**40, 2**32]
    codes = random_codes(4, 64)
    index.add(ids, codes)
    assert index.search(codes, 1).ids[:, 0].tolist() == ids
    assert index.remove([2**40, 5]) == 1
    assert sorted(index.export()[0].tolist()) == [0, 2**32, 2**63 - 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_gives_back_what_was_stored(backend: str, tmp_path: Path) -> None:
    url = f"{backend}:{tmp_path / 'index'}"
    codes = random_codes(300, 32, 1, 4)
    with open_index(url, 32) as index:
        index.add(np.arange(300) * 3, codes)
        index.remove([3, 6])
        index.update([9], random_codes(1, 32, 2))
        expected = index.search(codes[:10], 20)
    with open_index(url) as again:
        assert again.bits == 32
        assert len(again) == 298
        assert_same(again.search(codes[:10], 20), expected)
    with pytest.raises(EngineError, match="32-bit codes, not 64-bit"):
        open_index(url, 64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_writer_is_refused_and_a_reader_is_not(backend: str, tmp_path: Path) -> None:
    url = f"{backend}:{tmp_path / 'index'}"
    with open_index(url, 16) as writer:
        writer.add([1], random_codes(1, 16))
        with pytest.raises(EngineError, match="process"):
            open_index(url)
        with open_index(url, read_only=True) as reader:
            assert len(reader) == 1
            with pytest.raises(EngineError, match="read-only"):
                reader.add([2], random_codes(1, 16))
    open_index(url).close()


def test_a_wrong_index_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="backend 'fais'"):
        open_index("fais:here", 16)
    with pytest.raises(DataError, match="bits="):
        open_index(tmp_path / "new")
    with pytest.raises(DataError, match="multiple of 8"):
        open_index("exact:", 12)
    with pytest.raises(EngineError, match="No index at"):
        open_index(tmp_path / "new", 16, read_only=True)
    for wrong in ("", None):
        with pytest.raises(DataError, match="index URL"):
            open_index(wrong, 16)  # type: ignore[arg-type]


def assert_same(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    for ours, theirs in zip(left, right, strict=True):
        if ours is None:  # the costs, of a search without weights
            assert theirs is None
            continue
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
