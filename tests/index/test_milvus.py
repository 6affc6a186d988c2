"""Milvus Lite: the contract of all backends, and what is specific to Milvus."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from test_contract import (  # noqa: F401
    Open,
    assert_same,
    random_codes,
    test_add_update_and_remove_follow_a_plain_history,
    test_an_empty_index_returns_nothing,
    test_equal_distances_come_by_ascending_id,
    test_ids_may_be_as_large_as_63_bits,
    test_ingest_sends_missing_and_changed_items,
    test_k_may_be_any_integer_and_the_result_is_as_wide_as_the_index,
    test_search_agrees_with_exact_for_every_code_length,
    test_strided_ids_and_codes_are_stored_as_they_read,
    test_wrong_items_are_refused_and_nothing_is_stored,
)

from transhash.codes import Codes
from transhash.errors import DataError, EngineError
from transhash.index import milvus as milvus_index
from transhash.index import milvus_client, open_index
from transhash.index.exact import ExactIndex
from transhash.index.milvus import MilvusIndex
from transhash.index.milvus_client import Connection, MilvusUrl, is_transient

_numbers = itertools.count()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One file for all tests, one collection per test: every file starts a process."""
    path = tmp_path_factory.mktemp("milvus") / "codes.db"
    with open_index(f"milvus:{path}", 8):
        yield path


@pytest.fixture
def opened(file: Path) -> Open:
    return lambda bits: open_index(f"milvus:{file}?collection=c{next(_numbers)}", bits)


def test_a_tie_group_larger_than_a_response_is_complete_and_ordered_by_id(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "MAX_RESULTS", 64)  # the real limit is 16,384
    index, exact = opened(16), ExactIndex(16)
    codes = random_codes(3_000, 16, 1, 2)  # four distinct codes, so about 750 items per distance
    ids = np.random.default_rng(2).permutation(90_000)[:3_000]
    index.add(ids, codes)
    exact.add(ids, codes)
    queries = random_codes(4, 16, 3, 2)
    for k in (1, 40, 63, 64, 65, 1_000, 2_999, 4_000):
        assert_same(index.search(queries, k), exact.search(queries, k))


def test_one_tie_group_above_the_real_limit_of_a_response(opened: Open) -> None:
    index = opened(16)
    same = Codes(np.tile(np.array([[3, 7]], np.uint8), (20_000, 1)), 16)
    ids = np.arange(20_000)[::-1] * 2
    index.add(ids, same)
    assert index.search(same[:1], 5).ids.tolist() == [[0, 2, 4, 6, 8]]
    assert np.array_equal(index.search(same[:1], 20_000).ids, [np.arange(20_000) * 2])


def test_a_file_stores_both_modalities_separately(tmp_path: Path) -> None:
    url = f"milvus:{tmp_path / 'codes.db'}"
    codes = random_codes(300, 32, 1, 4)
    images, texts = open_index(url + "#images", 32), open_index(url + "#texts", 32)
    images.add(np.arange(300) * 3, codes)
    texts.add([3], codes[7:8])  # the id of an image
    images.remove([3, 6])
    images.update([9], random_codes(1, 32, 2))
    expected = images.search(codes[:10], 20)
    images.close()
    assert len(texts) == 1
    texts.close()
    again = open_index(url + "#images")
    assert again.bits == 32
    assert len(again) == 298
    assert_same(again.search(codes[:10], 20), expected)
    with pytest.raises(EngineError, match="32-bit codes, not 64-bit"):
        open_index(url + "#images", 64)
    with pytest.raises(EngineError, match=r"No index at .*#sounds"):
        MilvusIndex.open(f"{tmp_path / 'codes.db'}#sounds", 32, read_only=True)
    reader = MilvusIndex.open(f"{tmp_path / 'codes.db'}#images", None, read_only=True)
    with pytest.raises(EngineError, match="read-only"):
        reader.update([9], codes[:1])
    reader.close()
    again.close()


def test_opening_read_only_creates_nothing(file: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"No index at milvus:.*typo.db#images"):
        open_index(f"milvus:{tmp_path / 'sub' / 'typo.db'}#images", 32, read_only=True)
    assert not list(tmp_path.iterdir())
    url = f"milvus:{file}?collection=typo"
    for _ in range(2):  # the second time would find what the first created
        with pytest.raises(EngineError, match=r"No index at"):
            open_index(url, 32, read_only=True)


def test_an_interrupted_ingest_continues_where_it_stopped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "_CHUNK_ROWS", 100)
    index = MilvusIndex.open(f"{file}?collection=c{next(_numbers)}", 32)
    ids, codes = np.arange(950) * 7, random_codes(950, 32, 4)

    def interrupt(items, description, total=None, start=0):  # type: ignore[no-untyped-def]
        for number, item in enumerate(items):
            if number == 4:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        index.ingest(ids, codes, interrupt)
    assert len(index) == 400
    assert index.ingest(ids, codes) == 550
    assert index.ingest(ids, codes) == 0
    changed = Codes(codes.packed.copy(), 32)
    changed.packed[5] ^= 1
    assert index.ingest(ids, changed) == 1
    stored_ids, stored_codes = index.export()
    assert np.array_equal(stored_ids, ids)
    assert stored_codes == changed


def test_a_file_open_in_another_process_is_refused(tmp_path: Path) -> None:
    url = f"milvus:{tmp_path / 'one.db'}"
    index = open_index(url, 8)
    index.add([1], random_codes(1, 8))
    script = f"from transhash.index import open_index; open_index({url!r})"
    for _ in range(2):  # the first refusal must not release the lock
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "is open in another process" in other.stderr
    index.close()
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


def test_a_file_that_milvus_lite_cannot_open_is_named_without_other_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.db").write_text("not a database")
    with pytest.raises(EngineError, match=r"cannot open .*notes.db"):
        open_index(f"milvus:{tmp_path / 'notes.db'}", 8)
    with pytest.raises(EngineError, match=r"cannot write to .*notes.db"):
        open_index(f"milvus:{tmp_path / 'notes.db' / 'codes.db'}", 8)
    assert "".join(capfd.readouterr()) == ""


def test_an_unreachable_server_is_retried_and_then_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILVUS_PATIENCE", "2")
    monkeypatch.setenv("MILVUS_TIMEOUT", "1")
    monkeypatch.setattr(milvus_client, "_WARN_AFTER", 0.5)
    with pytest.raises(EngineError, match=r"milvus:http://127.0.0.1:1/c did not answer for 2 s"):
        open_index("milvus:http://127.0.0.1:1/c", 16)
    (warning,) = caplog.messages  # one per outage, not per attempt
    assert "another 1 s" in warning


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://me:secret@host:19530/c", "MILVUS_TOKEN"),
        ("somewhere", "ends in .db"),
        ("a.db?index=HNSW", "HNSW"),
        ("a.db?depth=3", "depth"),
        ("a.db?nlist=few", "nlist"),
        ("a.db?nprobe=0", "nprobe"),
        ("a.db?index", "BIN_IVF_FLAT"),
        ("my codes.db", "36 letters"),
        (f"{'long' * 9}.db", "36 letters"),
        ("http://host:port/c", "not a server address"),
        ("http://[::1/c", "not a server address"),
        ("http:///c", "not a server address"),
        ("ftp://host/c", "not a server address"),
        ("http://host:19530/my-codes", "my-codes"),
    ],
)
def test_a_wrong_url_is_refused(location: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_index(f"milvus:{location}", 16)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_wrong_duration_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TIMEOUT", value)
    with pytest.raises(DataError, match=f"MILVUS_TIMEOUT .* '{value}'"):
        open_index("milvus:http://127.0.0.1:1/c", 16)


def test_without_pymilvus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pymilvus", "grpc"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineError, match=r"pip install 'transhash\[milvus\]'"):
        open_index("milvus:http://127.0.0.1:1/c", 16)


def test_a_search_waits_less_than_a_copy() -> None:
    url = MilvusUrl.parse("http://host/c")
    assert Connection(url, reading=True).max_wait < Connection(url).max_wait


def test_ivf_is_refused_by_milvus_lite_before_anything_starts() -> None:
    with pytest.raises(EngineError, match="BIN_IVF_FLAT"):
        open_index("milvus:a.db?index=BIN_IVF_FLAT", 16)


def test_urls_are_parsed() -> None:
    url = MilvusUrl.parse("http://host:19530/photos?index=bin_ivf_flat&nlist=64&nprobe=8#images")
    assert url.uri == "http://host:19530"
    assert (url.collection_name, url.partition) == ("photos", "images")
    assert (url.index_type, url.nlist, url.nprobe) == ("BIN_IVF_FLAT", 64, 8)
    lite = MilvusUrl.parse("./codes.db#texts")
    assert (lite.collection_name, lite.partition) == ("transhash_texts", None)
    assert MilvusUrl.parse("http://host?nlist=32").nprobe is None  # all lists, hence exact


def test_only_transient_errors_are_retried() -> None:
    from pymilvus.exceptions import MilvusException, ParamError

    assert is_transient(MilvusException(code=2, message="Fail connecting to server"))
    assert is_transient(MilvusException(code=65535, message="collection not loaded"))
    assert is_transient(MilvusException(code=1, message="service not ready"))
    assert not is_transient(MilvusException(code=1100, message="invalid parameter"))
    assert not is_transient(MilvusException(code=65535, message="metric type not match"))
    assert not is_transient(ParamError(message="limit is not a number"))
    calls = []
    connection = Connection(MilvusUrl.parse("http://127.0.0.1:1/c"), timeout=1, max_wait=5)
    connection._client = object()

    def flaky(client: object) -> str:
        calls.append(client)
        if len(calls) < 3:
            raise MilvusException(code=8, message="rate limit")
        return "ok"

    connection._connected = lambda: connection._client  # type: ignore[method-assign]
    assert connection.retry(flaky) == "ok"
    assert len(calls) == 3


def test_opening_a_file_does_not_change_logging_or_the_environment(file: Path) -> None:
    script = f"""
import logging, os, pymilvus
root, theirs = logging.getLogger(), logging.getLogger("pymilvus")
def settings():
    return (dict(os.environ), root.level, list(root.filters), theirs.level)
before = settings()
from transhash.index import open_index
open_index({f"milvus:{file.with_name('apart.db')}"!r}, 8).close()
from milvus_lite import server
assert server.logger is root
assert settings() == before, (before, settings())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
