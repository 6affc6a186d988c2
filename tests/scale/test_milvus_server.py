"""The engine against a real server: the contract, and a server killed while it is written to."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_server import TOKEN, MilvusServer

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.codes import Codes
from transhash.errors import EngineError
from transhash.index import open_index
from transhash.index.exact import ExactIndex
from transhash.index.milvus import MilvusIndex
from transhash.index.milvus import milvus as milvus_index

pytestmark = pytest.mark.server
_numbers = itertools.count()


def random_codes(count: int, bits: int, seed: int, spread: int = 256) -> Codes:
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, spread, (count, bits // 8), dtype=np.uint8), bits)


def assert_same(left: tuple[np.ndarray | None, ...], right: tuple[np.ndarray | None, ...]) -> None:
    for ours, theirs in zip(left, right, strict=True):
        if ours is None or theirs is None:  # costs, which a plain search does not have
            assert ours is theirs
            continue
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def wait_for_index(index: MilvusIndex, table: str, count: int) -> None:
    """Until searches use the index: before, a server compares with all items whatever it is."""
    client = index._connection._connected()
    deadline = time.monotonic() + 120
    while client.describe_index(table, "code")["indexed_rows"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    client.release_collection(table)
    client.load_collection(table)


def family(process: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return [process, *(i for child in parents if parents[child] == process for i in family(child))]


def listening(process: int) -> Iterator[tuple[Any, int]]:
    """Address and port of the sockets that a process has open in our network."""
    owned = {os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = columns = line.split()
            if state == "0A" and f"socket:[{columns[9]}]" in owned:
                host, port = (bytes.fromhex(half) for half in local.split(":"))
                words = [host[i : i + 4][::-1] for i in range(0, len(host), 4)]
                yield ipaddress.ip_address(b"".join(words)), int.from_bytes(port)


def test_a_server_can_be_reached_by_loopback_only(server: MilvusServer) -> None:
    assert server.process is not None
    processes = family(server.process.pid)
    assert server.pid in processes
    found = [address for process in processes for address in listening(process)]
    assert found
    assert all(host.is_loopback for host, _ in found)
    assert {port for _, port in found} == {server.port}
    for process in processes:  # what else they listen on is where no other interface is
        assert os.readlink(f"/proc/{process}/ns/net") != os.readlink("/proc/self/ns/net")
        interfaces = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def test_two_servers_run_at_once_and_leave_nothing_behind(
    server: MilvusServer, new_server: Callable[[], AbstractContextManager[MilvusServer]]
) -> None:
    with new_server() as second:
        assert second.process is not None
        processes = family(second.process.pid)
        assert second.port != server.port
        open_index(f"{second.url}/c#images", 16).close()
    assert not second.folder.exists()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", second.port))


@pytest.mark.parametrize("options", ["", "?index=BIN_IVF_FLAT&nlist=16"])
def test_a_server_answers_as_exact_does(server: MilvusServer, options: str) -> None:
    table = f"own{next(_numbers)}"
    place = f"{server.url.removeprefix('milvus:')}/{table}"
    index = MilvusIndex.open(f"{place}{options}#images", 32)
    exact = ExactIndex(32)
    codes, queries = random_codes(5_000, 32, 1, 3), random_codes(6, 32, 2, 3)
    ids = np.random.default_rng(3).permutation(50_000)[:5_000]
    index.ingest(ids, codes)
    exact.add(ids, codes)
    wait_for_index(index, table, len(ids))
    # The URL of a later command need not say which index the collection has.
    index.close()
    index = MilvusIndex.open(f"{place}#images", None)
    with pytest.raises(EngineError, match="already in the index"):
        index.add(ids[:3], codes[:3])
    for engine in (index, exact):
        engine.update(ids[:40], random_codes(40, 32, 4, 3))
        assert engine.remove([*ids[100:150], 10**9]) == 50
    assert len(index) == len(exact) == 4_950
    for k in (1, 10, 700):
        assert_same(index.search(queries, k), exact.search(queries, k))
    for radius in (0, 3, 9):
        assert_same(index.search_radius(queries, radius), exact.search_radius(queries, radius))
    stored, kept = index.export()
    assert np.array_equal(stored, exact.export()[0])
    assert kept == exact.export()[1]
    index.close()


def test_partitions_keep_the_modalities_apart(server: MilvusServer) -> None:
    url = f"{server.url}/own{next(_numbers)}"
    codes = random_codes(20, 16, 1)
    images, texts = open_index(f"{url}#images", 16), open_index(f"{url}#texts", 16)
    images.add(np.arange(20), codes)
    texts.add(np.arange(5), codes[5:10])
    assert (len(images), len(texts)) == (20, 5)
    assert texts.remove([0, 1, 19]) == 2
    assert (len(images), len(texts)) == (20, 3)
    assert images.search(codes[:1], 1).ids.tolist() == [[0]]
    assert open_index(f"{url}#images").bits == 16
    with pytest.raises(EngineError, match="16-bit codes, not 32-bit"):
        open_index(f"{url}#texts", 32)


def test_wrong_credentials_are_refused_at_once(
    server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    for token in ("root:wrong", ""):
        monkeypatch.setenv("MILVUS_TOKEN", token)
        with pytest.raises(EngineError, match="refused the credentials; set MILVUS_TOKEN"):
            open_index(f"{server.url}/c", 16)
    monkeypatch.setenv("MILVUS_USER", "root")
    monkeypatch.setenv("MILVUS_PASSWORD", "Milvus")
    open_index(f"{server.url}/own{next(_numbers)}", 16).close()
    assert time.monotonic() - began < 60  # and not after the patience one has with an absence


def test_collections_of_others_are_refused_and_unfinished_ones_finished(
    server: MilvusServer,
) -> None:
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(uri=server.url.removeprefix("milvus:"), token=TOKEN)

    def collection(kind: DataType, metric: str | None = None) -> str:
        name = f"own{next(_numbers)}"
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", kind, dim=32)
        client.create_collection(name, schema=schema, consistency_level="Strong")
        if metric is not None:
            params = client.prepare_index_params()
            params.add_index("code", index_type="BIN_FLAT", metric_type=metric)
            client.create_index(name, params)
        return f"{server.url}/{name}#images"

    with pytest.raises(EngineError, match=r"not made by transhash: .* code \(FLOAT_VECTOR\)"):
        open_index(collection(DataType.FLOAT_VECTOR), 32)
    with pytest.raises(EngineError, match="not made by transhash: it has no HAMMING index"):
        open_index(collection(DataType.BINARY_VECTOR, "JACCARD"), 32)
    unfinished = collection(DataType.BINARY_VECTOR)
    with pytest.raises(EngineError, match=r"No index at"):
        open_index(unfinished, 32, read_only=True)
    index = open_index(unfinished, 32)
    index.add([5], random_codes(1, 32, 1))
    assert index.search(random_codes(1, 32, 1), 1).ids.tolist() == [[5]]
    client.close()


def test_a_refusal_is_one_sentence_and_exit_2(server: MilvusServer, run: Path, data: Path) -> None:
    url = f"{server.url}/own{next(_numbers)}"
    open_index(f"{url}#images", 32).close()
    secure, texts = url.replace("http:", "https:"), data / "texts.tsv"
    search = ("search", str(run), "--text", "a boat", "--index")
    for command, environment, sentence in (
        ((*search, url), {}, "holds 32-bit codes, not 16-bit ones"),
        ((*search, f"{url}x"), {}, "No index at"),
        ((*search, url), {"MILVUS_TOKEN": "root:wrong"}, "refused the credentials"),
        ((*search, secure), {}, "did not answer for 1 s"),
        (("index", str(run), "--texts", str(texts), "--index", url), {}, "holds 32-bit codes"),
    ):
        result = subprocess.run(
            [sys.executable, "-m", "transhash", *command],
            env=os.environ | {"MILVUS_PATIENCE": "1"} | environment, capture_output=True, text=True,
        )  # fmt: skip
        assert result.returncode == 2
        assert re.fullmatch(f"error: .*{sentence}.*\n", result.stderr), result.stderr


def test_searching_threads_and_an_export_outlast_a_server_that_is_killed(
    server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "BATCH", 500)
    url = f"{server.url}/own{next(_numbers)}#images"
    ids, codes = np.arange(2_000), random_codes(2_000, 32, 5)
    writer = open_index(url, 32)
    writer.add(ids, codes)
    writer.close()
    monkeypatch.setenv("MILVUS_PATIENCE", "2")
    monkeypatch.setenv("MILVUS_TIMEOUT", "2")
    index = MilvusIndex.open(url.removeprefix("milvus:"), 32, read_only=True)
    monkeypatch.setenv("MILVUS_PATIENCE", "300")  # of the export
    expected = index.search(codes[:1], 5).ids.tolist()
    answers: list[list[Any]] = [[] for _ in range(4)]
    done = threading.Event()

    def keep_asking(mine: list[Any]) -> None:
        while not done.is_set():
            try:
                mine.append(index.search(codes[:1], 5).ids.tolist())
            except BaseException as error:
                mine.append(error)

    threads = [threading.Thread(target=keep_asking, args=(mine,)) for mine in answers]
    for thread in threads:
        thread.start()
    blocks = index.export_blocks()
    parts = [next(blocks)]
    server.kill()
    time.sleep(6)  # long enough that every thread is told
    server.start()
    parts.extend(blocks)
    deadline = time.monotonic() + 180
    while any(mine[-1] != expected for mine in answers):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    done.set()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.concatenate([part for part, _ in parts]), ids)
    for mine in answers:
        errors = [answer for answer in mine if answer != expected]
        assert errors
        assert all(isinstance(error, EngineError) for error in errors)
        assert all("did not answer for" in str(error) for error in errors)
    index.close()


def test_a_server_killed_in_the_middle_of_an_ingest_loses_and_doubles_nothing(
    server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "BATCH", 2_000)
    ids, codes = np.arange(40_000) * 3, random_codes(40_000, 64, 8)
    location = f"{server.url.removeprefix('milvus:')}/own{next(_numbers)}#images"
    index = MilvusIndex.open(location, 64)

    def kill_at(batch: int, then: Any = None) -> Any:
        def track(items: Any, description: str, total: Any = None, start: int = 0) -> Any:
            for number, item in enumerate(items):
                if number == batch:
                    # While a request is under way, not between two of them.
                    threading.Timer(0.01, lambda: (server.kill(), then and then())).start()
                yield item

        return track

    index._connection.probe_budget, index._connection.timeout = 3.0, 3.0
    with pytest.raises(EngineError, match="did not answer for 3 s"):
        index.ingest(ids, codes, kill_at(6))
    server.start()
    index._connection.probe_budget, index._connection.timeout = 180.0, 60.0
    there = len(index)  # the same object finds the server that is back
    assert 0 < there < len(ids)
    # Killed again, and back by itself while the ingest waits.
    back = lambda: (time.sleep(1.0), server.start())  # noqa: E731
    sent = index.ingest(ids, codes, kill_at(13, back))
    assert sent >= len(ids) - there
    assert len(index) == len(ids)
    stored, kept = index.export()
    assert np.array_equal(stored, ids)
    assert kept == codes
    exact = ExactIndex(64)
    exact.add(ids, codes)
    queries = random_codes(5, 64, 9)
    assert_same(index.search(queries, 50), exact.search(queries, 50))
    assert index.ingest(ids, codes) == 0
    index.close()
