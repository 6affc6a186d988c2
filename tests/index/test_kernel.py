"""The native kernel: every variant, both ways to answer, threads, and life without it."""

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
SCAN, TABLES = 0.0, 1e9  # patience: none, and more than any query needs


def clustered(count: int, bits: int, seed: int) -> Codes:
    """Codes around 20 centres: many equal ones, many ties."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).integers(0, 256, (20, bits // 8), dtype=np.uint8)
    flips = np.packbits(generator.random((count, bits)) < 0.03, axis=1)
    return Codes(centres[generator.integers(0, 20, count)] ^ flips, bits)


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
    monkeypatch.setattr(segments, "TABLES_FROM", 0)
    monkeypatch.setattr(segments, "SPARE", 10_000)


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
        for patience in (SCAN, None, TABLES):
            for threads in (1, 3, 7):
                ranking = segment.search(words, k, threads, patience)
                np.testing.assert_array_equal(ranking.ids, expected.ids)
                np.testing.assert_array_equal(ranking.distances, expected.distances)
    for radius in (0, 3, bits // 4):
        near = exact.search_radius(queries, radius)
        for patience in (SCAN, None, TABLES):
            for ours, theirs in zip(segment.within(words, radius, 2, patience), near):
                np.testing.assert_array_equal(ours, theirs)


@needs_kernel
def test_tables_are_exact_for_queries_far_from_everything() -> None:
    codes = clustered(200_000, 32, 1)
    queries = Codes(np.random.default_rng(5).integers(0, 256, (8, 4), dtype=np.uint8), 32)
    segment = build(np.arange(200_000), to_words(codes.packed), 32)
    assert segment.starts is not None
    words = to_words(queries.packed)
    by_scan = segment.search(words, 500, 1, SCAN)
    for patience in (None, 0.1, TABLES):
        by_tables = segment.search(words, 500, 1, patience)
        np.testing.assert_array_equal(by_tables.ids, by_scan.ids)
        np.testing.assert_array_equal(by_tables.distances, by_scan.distances)


@pytest.mark.parametrize("bits", [8, 24, 32, 56, 64, 72, 512])
def test_words_keep_the_bytes_and_their_order(bits: int) -> None:
    packed = np.random.default_rng(0).integers(0, 256, (500, bits // 8), dtype=np.uint8)
    words = to_words(packed)
    np.testing.assert_array_equal(to_packed(words, bits), packed)
    order = segments.code_order(words)
    expected = sorted(range(500), key=lambda row: bytes(packed[row]))
    assert order.tolist() == expected


def test_memory_stays_within_twice_the_codes_and_eight_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SPARE", 8)
    generator = np.random.default_rng(0)
    for bits in (32, 64, 128):
        packed = generator.integers(0, 256, (300_000, bits // 8), dtype=np.uint8)
        for ids in (np.arange(300_000), np.sort(generator.choice(2**31, 300_000, replace=False))):
            segment = build(ids, to_words(packed), bits)
            assert segment.nbytes <= 300_000 * (2 * bits // 8 + 8)


@needs_kernel
def test_damaged_arrays_are_an_error_and_not_a_crash() -> None:
    codes = clustered(200_000, 32, 1)
    segment = build(np.arange(200_000), to_words(codes.packed), 32)
    assert segment.starts is not None
    assert segment.orders is not None
    assert segment.offsets is not None
    words = to_words(clustered(40, 32, 2).packed)
    for name in ("starts", "orders", "offsets"):
        arrays = {key: array.copy() for key, array in segment.arrays().items()}
        arrays[name][:] = 0xFFFFFFF0
        damaged = Segment(**{"sorted_ids": None, **arrays})
        with pytest.raises(EngineError, match="index is damaged"):
            damaged.search(words, 10, 1, TABLES)
    short = Segment(segment.words, segment.offsets[:-1], segment.ids, None, None, None)
    with pytest.raises(EngineError, match="do not fit together"):
        short.search(words, 10)


def test_status_is_a_sentence() -> None:
    assert kernel_status().startswith("Hamming search scans with ")
    assert kernel_status().endswith(".")


@pytest.mark.parametrize("value", ["0", "no-such-kernel", "portable"])
def test_the_switch_chooses_the_kernel_and_says_why(value: str) -> None:
    said = run_python(
        "from transhash.index.kernel import kernel_status; print(kernel_status())", value
    )
    if value == "0":
        assert "scans with FAISS" in said
        assert "TRANSHASH_NATIVE=0" in said
    elif native is not None:
        assert "native kernel" in said
        assert value in said


def test_without_the_kernel_faiss_does_the_scan() -> None:
    """The whole contract again, in a process that cannot use the kernel."""
    tests = Path(__file__).parent
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *(str(tests / "test_contract.py"), "-k", "grouped and not disk-256"),
        ],
        env={**os.environ, "TRANSHASH_NATIVE": "0"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-2000:]


def run_python(source: str, switch: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TRANSHASH_NATIVE": switch},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout
