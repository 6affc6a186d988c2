"""The native kernel: every variant, scan and tables, threads, and the fallback without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index.exact import ExactIndex
from transhash.index.grouped import segment as segments
from transhash.index.grouped.segment import Segment, build, to_packed, to_words
from transhash.index.kernel import kernel_status, native

needs_kernel = pytest.mark.skipif(native is None, reason="the native kernel was not built")
SCAN, TABLES = 0.0, 1e9  # probe budgets: none, and more than any query needs


def clustered(count: int, bits: int, seed: int) -> Codes:
    """Codes around 20 centers: many equal ones, many ties."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).integers(0, 256, (20, bits // 8), dtype=np.uint8)
    flips = np.packbits(generator.random((count, bits)) < 0.03, axis=1)
    return Codes(centers[generator.integers(0, 20, count)] ^ flips, bits)


@pytest.fixture(params=["avx512", "avx2", "popcnt", "neon", "portable"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        native.use(request.param)
    except (ValueError, AttributeError):
        pytest.skip(f"no {request.param} here")
    yield request.param
    native.use("auto")


@pytest.fixture(autouse=True)
def _tables_for_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(segments, "SPARE_BYTES", 10_000)


@needs_kernel
@pytest.mark.parametrize("bits", [8, 16, 24, 32, 40, 64, 96, 128, 256, 320, 512])
def test_every_variant_and_method_agrees_with_exact(variant: str, bits: int) -> None:
    codes, queries = clustered(6000, bits, 1), clustered(6, bits, 2)
    ids = np.random.default_rng(3).permutation(50_000)[:6000].astype(np.int64)
    exact = ExactIndex(bits)
    exact.add(ids, codes)
    segment = build(ids, to_words(codes.packed), bits)
    assert segment.starts is not None
    assert len(segment.starts) == (bits + 15) // 16
    words = to_words(queries.packed)
    for k in (1, 30, 2500):
        expected = exact.search(queries, k)
        for probe_budget in (SCAN, None, TABLES):
            for threads in (1, 3, 7):
                ranking = segment.search(words, k, threads, probe_budget)
                np.testing.assert_array_equal(ranking.ids, expected.ids)
                np.testing.assert_array_equal(ranking.distances, expected.distances)
    distances = queries.hamming(codes)
    for radius in (0, 3, bits // 4):
        for probe_budget in (SCAN, TABLES):
            counts, hits, _ = native.within(*segment._arrays(words), radius, probe_budget, 2)
            within = [np.flatnonzero(row <= radius) for row in distances]
            assert np.frombuffer(counts, np.int64).tolist() == [len(rows) for rows in within]
            expected_ids = [
                ids[rows[np.lexsort((ids[rows], d[rows]))]] for rows, d in zip(within, distances)
            ]
            np.testing.assert_array_equal(
                np.frombuffer(hits, np.int64), np.concatenate(expected_ids)
            )


@needs_kernel
def test_tables_are_exact_for_queries_far_from_everything() -> None:
    codes = clustered(200_000, 32, 1)
    queries = Codes(np.random.default_rng(5).integers(0, 256, (8, 4), dtype=np.uint8), 32)
    segment = build(np.arange(200_000), to_words(codes.packed), 32)
    assert segment.starts is not None
    words = to_words(queries.packed)
    by_scan = segment.search(words, 500, 1, SCAN)
    for probe_budget in (None, 0.1, TABLES):
        by_tables = segment.search(words, 500, 1, probe_budget)
        np.testing.assert_array_equal(by_tables.ids, by_scan.ids)
        np.testing.assert_array_equal(by_tables.distances, by_scan.distances)


@pytest.mark.parametrize("bits", [8, 24, 32, 56, 64, 72, 512])
def test_words_preserve_the_bytes_and_their_order(bits: int) -> None:
    packed = np.random.default_rng(0).integers(0, 256, (500, bits // 8), dtype=np.uint8)
    words = to_words(packed)
    np.testing.assert_array_equal(to_packed(words, bits), packed)
    order = segments.code_order(words)
    expected = sorted(range(500), key=lambda row: bytes(packed[row]))
    assert order.tolist() == expected


def test_memory_stays_within_twice_the_codes_and_eight_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SPARE_BYTES", 8)
    generator = np.random.default_rng(0)
    for bits in (32, 64, 128):
        packed = generator.integers(0, 256, (300_000, bits // 8), dtype=np.uint8)
        for ids in (np.arange(300_000), np.sort(generator.choice(2**31, 300_000, replace=False))):
            segment = build(ids, to_words(packed), bits)
            assert segment.nbytes <= 300_000 * (2 * bits // 8 + 8)


@needs_kernel
def test_corrupt_arrays_are_an_error_and_not_a_crash() -> None:
    codes = clustered(200_000, 32, 1)
    segment = build(np.arange(200_000), to_words(codes.packed), 32)
    assert segment.starts is not None
    assert segment.orders is not None
    assert segment.offsets is not None
    words = to_words(clustered(40, 32, 2).packed)
    for name in ("starts", "orders", "offsets"):
        arrays = {key: array.copy() for key, array in segment.arrays().items()}
        arrays[name][:] = 0xFFFFFFF0
        corrupt = Segment(**{"sorted_ids": None, **arrays})
        with pytest.raises(EngineError, match="corrupt"):
            corrupt.search(words, 10, 1, TABLES)
    short = Segment(segment.words, segment.offsets[:-1], segment.ids, None, None, None)
    with pytest.raises(EngineError, match="do not match"):
        short.search(words, 10)


ORDERS = {
    "ascending": np.arange(5000),
    "descending": np.arange(5000)[::-1],
    "last first": np.roll(np.arange(5000), 1),  # every median of three is the second smallest
    "halves in turn": np.arange(5000).reshape(2, 2500).T.ravel(),
    "any": np.random.default_rng(0).permutation(5000),
}


@needs_kernel
@pytest.mark.parametrize("order", ORDERS)
def test_tied_items_are_ordered_by_id_however_they_are_stored(order: str) -> None:
    words = np.arange(1 << 20, dtype=np.uint32)
    words = words[np.bitwise_count(words) == 8][:5000, None]  # all equally far from 0
    ids = 3 * ORDERS[order].astype(np.int64)
    segment = Segment(words, None, ids, np.sort(ids), None, None)
    for k in (1, 10, 2499, 5000, 6000):
        ranking = segment.search(np.zeros((1, 1), np.uint32), k)
        count = min(k, 5000)
        assert ranking.ids[0, :count].tolist() == list(range(0, 3 * count, 3))
        assert (ranking.ids[0, count:] == -1).all()


@needs_kernel
def test_a_hundred_thousand_ties_with_the_last_id_first_are_sorted() -> None:
    """Quicksort alone takes n² / 4 steps here, which is seconds."""
    words = np.arange(1 << 20, dtype=np.uint32)
    words = words[np.bitwise_count(words) == 8][:100_000, None]
    ids = np.roll(np.arange(100_000), 1)
    segment = Segment(words, None, ids, np.sort(ids), None, None)
    ranking = segment.search(np.zeros((1, 1), np.uint32), 100_000)
    np.testing.assert_array_equal(ranking.ids[0], np.arange(100_000))


@needs_kernel
def test_an_array_that_cannot_be_read_is_named_in_a_type_error() -> None:
    segment = build(np.arange(500), to_words(clustered(500, 32, 1).packed), 32)
    words = to_words(clustered(6, 32, 2).packed)
    with pytest.raises(TypeError, match=r"queries must be .* got ndarray"):
        segment.search(words[::2], 3)
    with pytest.raises(TypeError, match=r"queries must be .* got list"):
        native.within(*segment._arrays([1, 2]), 3, 0.0, 1)
    ranking = np.zeros((6, 3), np.int64), np.zeros((6, 3), np.int32)
    ranking[0].setflags(write=False)
    for outputs in (ranking, (b"", ranking[1])):
        with pytest.raises(TypeError, match="out_ids must be"):
            native.search(*segment._arrays(words), 3, 0.0, 1, *outputs)


@needs_kernel
def test_sizes_that_do_not_fit_the_output_are_refused_even_when_their_product_wraps() -> None:
    segment = build(np.arange(500), to_words(clustered(500, 32, 1).packed), 32)
    words = to_words(clustered(8, 32, 2).packed)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    for k in (0, -1, 3, 1 << 58, 1 << 61, (1 << 63) - 1):
        with pytest.raises(ValueError, match="output"):
            native.search(*segment._arrays(words), k, 0.0, 1, *nothing)
    with pytest.raises(OverflowError):
        native.search(*segment._arrays(words), 1 << 64, 0.0, 1, *nothing)
    with pytest.raises(ValueError, match="radius"):
        native.within(*segment._arrays(words), -1, 0.0, 1)


def counted(
    words: np.ndarray, queries: np.ndarray, truth: tuple[object, ...], threads: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    stride = words.shape[1] * words.itemsize
    tables = np.zeros((len(queries), width), np.int64), np.zeros((len(queries), width), np.int64)
    native.count(words, stride, queries, *truth, threads, *tables)
    return tables


@needs_kernel
@pytest.mark.parametrize("bits", [8, 16, 32, 40, 64, 128, 192, 256, 512])
def test_every_variant_counts_as_numpy_does(variant: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes, queries = clustered(6001, bits, 1), clustered(13, bits, 2)
    labels, query_labels = rng.random((6001, 9)) < 0.2, rng.random((13, 9)) < 0.2
    related = (query_labels[:, None] & labels).any(axis=2)
    known = rng.random(related.shape) < 0.5
    distances = queries.hamming(codes)

    def pack(truth: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.packbits(truth, axis=1, bitorder="little"))

    def histogram(some: np.ndarray) -> np.ndarray:
        return np.stack(
            [np.bincount(row[here], minlength=bits + 1) for row, here in zip(distances, some)]
        )

    everything = np.ones_like(related)
    for truth, counts in (
        ((query_labels, pack(labels.T), None, None), (everything, related)),
        ((None, None, pack(related), None), (everything, related)),
        ((None, None, pack(related), pack(known)), (known, related & known)),
    ):
        for threads in (1, 3):
            arrays = to_words(codes.packed), to_words(queries.packed)
            items, hits = counted(*arrays, truth, threads, bits + 1)
            np.testing.assert_array_equal(items, histogram(counts[0]))
            np.testing.assert_array_equal(hits, histogram(counts[1]))


@needs_kernel
def test_counting_refuses_arrays_that_do_not_fit() -> None:
    words = to_words(clustered(20, 32, 1).packed)
    queries = to_words(clustered(4, 32, 2).packed)
    labels, holders = np.ones((4, 2), np.bool_), np.ones((2, 3), np.uint8)
    bits = np.ones((4, 3), np.uint8)
    for truth in (
        (labels[:3].copy(), holders, None, None),
        (labels, holders.ravel()[:5].copy(), None, None),
        (None, holders, None, None),
        (None, None, bits[:3], None),
        (None, None, bits, bits[:3]),
        (None, None, None, None),
    ):
        with pytest.raises(ValueError, match="do not match"):
            counted(words, queries, truth, 1, 33)
    with pytest.raises(ValueError, match="code length"):
        native.count(words, 3, queries, labels, holders, None, None, 1, bits, bits)
    with pytest.raises(ValueError, match="distance"):
        counted(words, queries, (labels, holders, None, None), 1, 2)
    with pytest.raises(TypeError, match="holders must be"):
        counted(words, queries, (labels, np.ones((3, 2), np.uint8).T, None, None), 1, 33)


def test_status_is_a_sentence() -> None:
    assert kernel_status().startswith("Hamming search uses ")
    assert kernel_status().endswith(".")


@pytest.mark.parametrize("value", ["0", "no-such-kernel", "portable"])
def test_the_switch_chooses_the_kernel_and_the_status_says_why(value: str) -> None:
    status = run_python(
        "from transhash.index.kernel import kernel_status; print(kernel_status())", value
    )
    if value == "0":
        assert "uses FAISS" in status
        assert "TRANSHASH_NATIVE=0" in status
    elif native is not None:
        assert "native kernel" in status
        assert value in status


def test_without_the_kernel_faiss_scans() -> None:
    """Run the contract tests in a process that cannot use the kernel."""
    tests = Path(__file__).parent
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *(str(tests / "test_contract.py"), "-k", "grouped and not disk-256"),
        ],
        env={**os.environ, "TRANSHASH_NATIVE": "0"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-2000:]


def run_python(source: str, switch: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TRANSHASH_NATIVE": switch},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout
