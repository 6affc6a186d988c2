"""Weighted ranking: every backend against a loop, on random and clustered codes with ties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.index import Index, Ranking, open_index
from transhash.index.exact import ExactIndex
from transhash.index.grouped import segment as segments
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.grouped.segment import build, to_words
from transhash.index.kernel import native
from transhash.index.weighted import (
    MAX_COST,
    RANKING_MODES,
    BitWeights,
    RankingMode,
    check_ranking,
    query_weights,
    weighted_costs,
)

WEIGHTED_MODES: list[RankingMode] = ["tiebreak", "weighted"]
BITS = [8, 16, 24, 32, 40, 64, 96, 128, 256, 512]


def clustered(count: int, bits: int, seed: int) -> Codes:
    """Codes around 12 centers: many equal ones, many ties."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).integers(0, 256, (12, bits // 8), dtype=np.uint8)
    flips = np.packbits(generator.random((count, bits)) < 0.05, axis=1)
    return Codes(centers[generator.integers(0, 12, count)] ^ flips, bits)


def uniform(count: int, bits: int, seed: int) -> Codes:
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, 256, (count, bits // 8), dtype=np.uint8), bits)


def projected(codes: Codes, seed: int) -> np.ndarray:
    """Real values with the signs of the codes, some of them 0, many equal."""
    generator = np.random.default_rng(seed)
    sizes = generator.choice([0.0, 0.01, 0.3, 0.3, 1.0, 2.5], (len(codes), codes.bits))
    return sizes * codes.signs()


def by_loop(ids: np.ndarray, items: Codes, queries: Codes, z: np.ndarray, mode: str) -> list:
    """Return (ids, distances) of each query, computed from the signs and |tanh z|."""
    results = []
    for query, values in zip(queries.signs(), z, strict=True):
        confidence = np.abs(np.tanh(values))
        highest = confidence.max() or 1.0
        steps = [int(w) for w in np.rint(65535 * confidence / highest)]
        rows = []
        for number, code in zip(ids.tolist(), items.signs().tolist(), strict=True):
            differing = [b for b, (x, y) in enumerate(zip(query.tolist(), code)) if x != y]
            cost, distance = sum(steps[b] for b in differing), len(differing)
            key = (distance, cost) if mode == "tiebreak" else (cost, distance)
            rows.append(((*key, number), distance))
        rows.sort()
        results.append(([key[2] for key, _ in rows], [distance for _, distance in rows]))
    return results


def assert_ranks(ranking: Ranking, expected: list, k: int) -> None:
    for row, (ids, distances) in enumerate(expected):
        assert ranking.ids[row].tolist() == ids[:k]
        assert ranking.distances[row].tolist() == distances[:k]


def assert_same(left: Ranking, right: Ranking) -> None:
    for ours, theirs in zip(left, right, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(params=["exact", "grouped"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'index'}"


@pytest.mark.parametrize("mode", WEIGHTED_MODES)
@pytest.mark.parametrize("make", [clustered, uniform])
@pytest.mark.parametrize("bits", [8, 32, 40, 64, 128])
def test_exact_and_grouped_rank_like_a_plain_loop(
    url: str, bits: int, make, mode: RankingMode
) -> None:
    items, queries = make(150, bits, 1), make(3, bits, 2)
    ids = np.random.default_rng(3).permutation(999)[:150]
    z = projected(queries, 4)
    index = open_index(url, bits)
    index.add(ids, items)
    codes, weights = Codes.from_projections(z), query_weights(z, mode)
    expected = by_loop(ids, items, codes, z, mode)
    for k in (1, 7, 149, 150, 400):
        assert_ranks(index.search(codes, k, weights), expected, k)
    assert index.candidates(10) is None
    index.close()


@pytest.fixture(params=["avx512", "avx2", "popcnt", "neon", "portable"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        native.use(request.param)
    except (ValueError, AttributeError):
        pytest.skip(f"no {request.param} here")
    yield request.param
    native.use("auto")


@pytest.mark.parametrize("mode", WEIGHTED_MODES)
@pytest.mark.parametrize("bits", BITS)
def test_every_kernel_agrees_by_scan_and_by_tables(
    variant: str, bits: int, mode: RankingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(segments, "SPARE_BYTES", 10_000)
    items = Codes.concatenate([clustered(3000, bits, 1), uniform(1500, bits, 5)])
    z = projected(Codes.concatenate([clustered(5, bits, 2), uniform(2, bits, 6)]), 7)
    codes, weights = Codes.from_projections(z), query_weights(z, mode)
    ids = np.random.default_rng(3).permutation(50_000)[:4500].astype(np.int64)
    exact = ExactIndex(bits)
    exact.add(ids, items)
    segment = build(ids, to_words(items.packed), bits)
    assert segment.starts is not None
    for k in (1, 30, 2500):
        expected = exact.search(codes, k, weights)
        for probe_budget in (0.0, None, 1e9):
            for threads in (1, 3):
                ranking = segment.search(to_words(codes.packed), k, threads, probe_budget, weights)
                assert_same(ranking, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_segment_split_among_threads_agrees(threads: int) -> None:
    items = Codes.concatenate([clustered(300_000, 64, 1), uniform(100_000, 64, 2)])
    z = projected(Codes.concatenate([clustered(3, 64, 3), uniform(1, 64, 4)]), 5)
    index, exact = GroupedIndex(64), ExactIndex(64)
    index.threads = threads
    for each in (index, exact):
        each.add(np.arange(len(items)), items)
    codes = Codes.from_projections(z)
    for mode in WEIGHTED_MODES:
        weights = query_weights(z, mode)
        assert weights is not None
        for q in range(4):  # one at a time: that is what is split
            one = codes[q : q + 1], 50, weights[q : q + 1]
            assert_same(index.search(*one), exact.search(*one))


@pytest.mark.skipif(native is None, reason="the native kernel was not built")
@pytest.mark.parametrize("mode", WEIGHTED_MODES)
def test_tables_answer_queries_near_the_items_after_few_rows(mode: RankingMode) -> None:
    generator = np.random.default_rng(1)
    centers = uniform(1000, 128, 2).packed
    flips = np.packbits(generator.random((300_000, 128)) < 0.02, axis=1)
    items = Codes(centers[generator.integers(0, 1000, 300_000)] ^ flips, 128)
    z = np.abs(generator.normal(0, 1, (8, 128))) * Codes(centers[:8], 128).signs()
    weights = query_weights(z, mode)
    segment = build(np.arange(len(items)), to_words(items.packed), 128)
    assert segment.starts is not None
    words, k = to_words(Codes.from_projections(z).packed), 24
    output = np.empty((8, k), np.int64), np.empty((8, k), np.int32)
    answered, examined = native.search(
        *segment._arrays(words), k, 0.5, 1, *output, weights, np.empty((8, k), np.int64)
    )
    assert answered == 8
    assert examined < 8 * len(segment.words) / 50


@pytest.mark.parametrize("mode", WEIGHTED_MODES)
def test_changes_leave_grouped_equal_to_exact(
    mode: RankingMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Several segments, removed and replaced items, and new items in a delta."""
    monkeypatch.setattr(GroupedIndex, "flush_at", 60)
    index, exact = GroupedIndex.open(tmp_path, 32), ExactIndex(32)
    generator = np.random.default_rng(0)
    for step in range(12):
        fresh = np.arange(50) + step * 50
        known = generator.choice(step * 50 + 50, 20, replace=False)
        removed = generator.choice(step * 50 + 50, 15, replace=False)
        for each in (index, exact):
            each.add(fresh, clustered(50, 32, step))
            each.update(known, clustered(20, 32, step + 100))
            each.remove(removed)
        z = projected(clustered(4, 32, step + 200), step)
        codes, weights = Codes.from_projections(z), query_weights(z, mode)
        for k in (1, 20, 10_000):
            assert_same(index.search(codes, k, weights), exact.search(codes, k, weights))
    index.close()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_weights_rank_equally_in_exact_and_grouped(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([8, 24, 64, 72]))
    seed = data.draw(st.integers(0, 2**16))
    greatest = data.draw(st.sampled_from([0, 1, 3, 2**40, 2**55 - 1]))
    generator = np.random.default_rng(seed)
    count = data.draw(st.integers(0, 400))
    items = (clustered if seed % 2 else uniform)(count, bits, seed)
    queries = clustered(3, bits, seed + 1)
    weights = generator.integers(0, greatest + 1, (3, bits))
    index, exact = GroupedIndex(bits), ExactIndex(bits)
    for each in (index, exact):
        each.add(np.arange(count), items)
    k = data.draw(st.integers(1, 420))
    ranking = index.search(queries, k, weights)
    assert_same(ranking, exact.search(queries, k, weights))
    costs = weighted_costs(queries, items, weights)
    assert ranking.costs is not None
    np.testing.assert_array_equal(ranking.costs, np.sort(costs, axis=1)[:, :k])


def test_weights_of_one_are_hamming_distance(url: str) -> None:
    items, queries = clustered(500, 32, 1), clustered(5, 32, 2)
    index = open_index(url, 32)
    index.add(np.arange(500), items)
    weighted = index.search(queries, 60, np.ones((5, 32), np.int64))
    plain = index.search(queries, 60)
    np.testing.assert_array_equal(weighted.ids, plain.ids)
    np.testing.assert_array_equal(weighted.distances, plain.distances)
    np.testing.assert_array_equal(weighted.costs, plain.distances)
    assert plain.costs is None
    index.close()


def open_reranking(tmp_path: Path, backend: str) -> Index:
    if backend == "milvus":
        pytest.importorskip("milvus_lite")
        return open_index(f"milvus:{tmp_path / 'codes.db'}#images", 32)
    return open_index(f"{backend}:{tmp_path / 'index'}", 32)


@pytest.mark.parametrize("backend", ["faiss", "milvus"])
@pytest.mark.parametrize("mode", WEIGHTED_MODES)
def test_other_backends_rerank_their_candidates(
    tmp_path: Path, backend: str, mode: RankingMode
) -> None:
    items, z = clustered(900, 32, 1), projected(clustered(3, 32, 2), 3)
    codes, weights = Codes.from_projections(z), query_weights(z, mode)
    assert weights is not None
    index, exact = open_reranking(tmp_path, backend), ExactIndex(32)
    for each in (index, exact):
        each.add(np.arange(900), items)
    pool = index.candidates(5)
    assert pool is not None
    assert 5 < pool < 900
    ranking = index.search(codes, 5, weights)
    nearest = exact.search(codes, pool)
    for q in range(3):
        # FAISS returns the last tie group completely, so there may be more candidates.
        subset = ExactIndex(32)
        reach = nearest.distances[q, -1]
        rows = nearest.ids[q]
        if backend == "faiss":
            rows = np.flatnonzero(codes[q : q + 1].hamming(items)[0] <= reach)
        subset.add(rows, items[rows])
        assert_same(
            Ranking(*(column[q : q + 1] for column in ranking)),  # type: ignore[misc]
            subset.search(codes[q : q + 1], 5, weights[q : q + 1]),
        )
    assert_same(index.search(codes, 900, weights), exact.search(codes, 900, weights))
    assert index.search(codes[:0], 5, weights[:0]).ids.shape[0] == 0
    index.close()


@pytest.mark.parametrize("backend", ["exact", "grouped", "faiss"])
def test_an_empty_index_and_no_queries_return_nothing(backend: str) -> None:
    index = open_index(f"{backend}:", 16)
    codes, weights = clustered(2, 16, 0), np.ones((2, 16), np.int64)
    assert index.search(codes, 3, weights).ids.shape == (2, 0)
    index.add([4], codes[:1])
    assert index.search(codes[:0], 3, weights[:0]).ids.shape[0] == 0
    assert index.search(codes, 3, weights).ids.tolist() == [[4], [4]]


@pytest.mark.parametrize("backend", ["exact", "grouped", "faiss"])
def test_weights_that_do_not_fit_are_refused(backend: str) -> None:
    index, codes = open_index(f"{backend}:", 16), clustered(2, 16, 0)
    index.add([1, 2], codes)
    good = np.ones((2, 16), np.int64)
    for wrong in (good[:1], good[:, :8], good.astype(float), -good, good << 60):
        with pytest.raises(DataError, match="Weights must be"):
            index.search(codes, 1, wrong)


def test_all_returned_items_have_a_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedIndex, "flush_at", 4)
    index, codes = GroupedIndex(16), clustered(6, 16, 0)
    index.add(np.arange(6), codes)
    index.remove([0, 1, 2])
    index.add([9], codes[:1])
    ranking = index.search(codes, 4, np.ones((6, 16), np.int64))
    assert ranking.costs is not None
    assert (ranking.ids >= 0).all()
    assert (ranking.costs < MAX_COST).all()


def test_weights_are_proportional_to_tanh_at_any_scale() -> None:
    z = np.array([[1e-6, -2e-6, 4e-6, 0.0], [0.1, 5.0, -20.0, 0.0]])
    weights = query_weights(z, "weighted")
    assert weights is not None
    steps = (weights - 1) // 5
    np.testing.assert_allclose(steps[0] / 65535, [0.25, 0.5, 1, 0], atol=1e-4)
    np.testing.assert_allclose(steps[1] / 65535, [np.tanh(0.1), 1, 1, 0], atol=1e-4)
    assert query_weights(z, "hamming") is None
    nothing: BitWeights | None = query_weights(np.zeros((1, 8)), "tiebreak")
    assert nothing is not None
    assert set(nothing.ravel().tolist()) == {1}


def test_a_ranking_has_three_names() -> None:
    assert [check_ranking(mode) for mode in RANKING_MODES] == ["hamming", "tiebreak", "weighted"]
    with pytest.raises(DataError, match="cosine"):
        check_ranking("cosine")
