"""The same 1e5 codes in every backend: the same distances, the same ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from milvus_server import MilvusServer

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.codes import Codes
from transhash.index import Index, open_index

COUNT = 100_000


def clustered() -> tuple[np.ndarray, Codes, Codes]:
    """Codes around few centers like learned codes, so that most distances tie."""
    generator = np.random.default_rng(0)
    centers = generator.integers(0, 256, (2_000, 8), dtype=np.uint8)
    flips = np.packbits(generator.random((COUNT, 64)) < 0.04, axis=1)
    codes = Codes(centers[generator.integers(0, 2_000, COUNT)] ^ flips, 64)
    return generator.permutation(10 * COUNT)[:COUNT], codes, codes[np.arange(10) * 7]


def check(index: Index, expected: Index) -> None:
    ids, codes, queries = clustered()
    assert index.ingest(ids, codes) == COUNT
    index.wait_until_ready()
    pairs = [
        (index.search(queries, 100), expected.search(queries, 100)),
        (index.search(queries[:1], 20_000), expected.search(queries[:1], 20_000)),
    ]
    for ours, theirs in pairs:
        for left, right in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.fixture(scope="module")
def expected() -> Index:
    exact = open_index("exact:", 64)
    ids, codes, _ = clustered()
    exact.add(ids, codes)
    return exact


@pytest.mark.slow
@pytest.mark.parametrize("url", ["grouped:", "faiss:", "milvus:{}/codes.db"])
def test_local_backends_rank_equally(url: str, expected: Index, tmp_path: Path) -> None:
    with open_index(url.format(tmp_path), 64) as index:
        check(index, expected)


@pytest.mark.server
def test_a_server_ranks_equally(server: MilvusServer, expected: Index) -> None:
    with open_index(f"{server.url}/agree#images", 64) as index:
        check(index, expected)
