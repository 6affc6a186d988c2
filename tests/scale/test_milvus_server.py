"""The Milvus backend with a real server: the contract, and a server killed during writes."""

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
from transhash.index import milvus as milvus_index
from transhash.index import open_index
from transhash.index.exact import ExactIndex
from transhash.index.milvus import MilvusIndex

pytestmark = pytest.mark.server
_numbers = itertools.count()


def random_codes(count: int, bits: int, seed: int, spread: int = 256) -> Codes:
    generator = np.random.default_rng(seed)
    return Codes(generator.integers(0, spread, (count, bits // 8), dtype=np.uint8), bits)


def assert_same(left: tuple[np.ndarray | None, ...], right: tuple[np.ndarray | None, ...]) -> None:
    for ours, theirs in zip(left, right, strict=True):
        if ours is None or theirs is None:  # the costs of a search without weights
            assert ours is theirs
            continue
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def wait_for_index(index: MilvusIndex, collection: str, count: int) -> None:
    """Wait until searches use the index: before that a server scans all items."""
    client = index._connection._connected()
    deadline = time.monotonic() + 120
    while client.describe_index(collection, "code")["indexed_rows"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    client.release_collection(collection)
    client.load_collection(collection)


def family(process: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return [process, *(i for child in parents if parents[child] == process for i in family(child))]


def listening(process: int) -> Iterator[tuple[Any, int]]:
    """Yield address and port of the listening sockets of a process in our network."""
    owned = {os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = columns = line.split()
            if state == "0A" and f"socket:[{columns[9]}]" in owned:
                host, port = (bytes.fromhex(half) for half in local.split(":"))
                words = [host[i : i + 4][::-1] for i in range(0, len(host), 4)]
                yield ipaddress.ip_address(b"".join(words)), int.from_bytes(port)


def test_a_server_listens_on_loopback_only(server: MilvusServer) -> None:
    assert server.process is not None
    processes = family(server.process.pid)
    assert server.pid in processes
    addresses = [address for process in processes for address in listening(process)]
    assert addresses
    assert all(host.is_loopback for host, _ in addresses)
    assert {port for _, port in addresses} == {server.port}
    for process in processes:  # all other ports are in a namespace without another interface
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
def test_a_server_returns_the_results_of_exact(server: MilvusServer, options: str) -> None:
    collection = f"own{next(_numbers)}"
    location = f"{server.url.removeprefix('milvus:')}/{collection}"
    index = MilvusIndex.open(f"{location}{options}#images", 32)
    exact = ExactIndex(32)
    codes, queries = random_codes(5_000, 32, 1, 3), random_codes(6, 32, 2, 3)
    ids = np.random.default_rng(3).permutation(50_000)[:5_000]
    index.ingest(ids, codes)
    exact.add(ids, codes)
    wait_for_index(index, collection, len(ids))
    # The URL of a later command does not need the index type.
    index.close()
    index = MilvusIndex.open(f"{location}#images", None)
    with pytest.raises(EngineError, match="already"):
        index.add(ids[:3], codes[:3])
    for each in (index, exact):
        each.update(ids[:40], random_codes(40, 32, 4, 3))
        assert each.remove([*ids[100:150], 10**9]) == 50
    assert len(index) == len(exact) == 4_950
    for k in (1, 10, 700):
        assert_same(index.search(queries, k), exact.search(queries, k))
    ids, codes = index.export()
    assert np.array_equal(ids, exact.export()[0])
    assert codes == exact.export()[1]
    index.close()


def test_partitions_separate_the_modalities(server: MilvusServer) -> None:
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
    start = time.monotonic()
    for token in ("root:wrong", ""):
        monkeypatch.setenv("MILVUS_TOKEN", token)
        with pytest.raises(EngineError, match="credentials"):
            open_index(f"{server.url}/c", 16)
    monkeypatch.setenv("MILVUS_USER", "root")
    monkeypatch.setenv("MILVUS_PASSWORD", "Milvus")
    open_index(f"{server.url}/own{next(_numbers)}", 16).close()
    assert time.monotonic() - start < 60  # without retries


def test_foreign_collections_are_refused_and_incomplete_ones_completed(
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

    with pytest.raises(EngineError, match=r"not created by transhash: .*FLOAT_VECTOR"):
        open_index(collection(DataType.FLOAT_VECTOR), 32)
    with pytest.raises(EngineError, match="HAMMING"):
        open_index(collection(DataType.BINARY_VECTOR, "JACCARD"), 32)
    incomplete = collection(DataType.BINARY_VECTOR)
    with pytest.raises(EngineError, match=r"No index at"):
        open_index(incomplete, 32, read_only=True)
    index = open_index(incomplete, 32)
    index.add([5], random_codes(1, 32, 1))
    assert index.search(random_codes(1, 32, 1), 1).ids.tolist() == [[5]]
    client.close()


def test_errors_of_a_server_are_one_line_and_exit_2(
    server: MilvusServer, run: Path, data: Path
) -> None:
    url = f"{server.url}/own{next(_numbers)}"
    open_index(f"{url}#images", 32).close()
    secure, texts = url.replace("http:", "https:"), data / "texts.tsv"
    search = ("search", str(run), "--text", "a boat", "--index")
    for command, environment, message in (
        ((*search, url), {}, "has 32-bit codes, not 16-bit codes"),
        ((*search, f"{url}x"), {}, "No index at"),
        ((*search, url), {"MILVUS_TOKEN": "root:wrong"}, "refused the credentials"),
        ((*search, secure), {}, "did not answer for 1 s"),
        (("index", str(run), "--texts", str(texts), "--index", url), {}, "has 32-bit codes"),
    ):
        result = subprocess.run(
            [sys.executable, "-m", "transhash", *command],
            env=os.environ | {"MILVUS_PATIENCE": "1"} | environment, capture_output=True, text=True,
        )  # fmt: skip
        assert result.returncode == 2
        lines = [line for line in result.stderr.splitlines() if not line.endswith(" so far")]
        assert len(lines) == 1, result.stderr  # next to the progress of a slow machine
        assert re.fullmatch(f"error: .*{message}.*", lines[0])


def test_searches_and_an_export_survive_the_restart_of_a_killed_server(
    server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "_CHUNK_ROWS", 500)
    url = f"{server.url}/own{next(_numbers)}#images"
    ids, codes = np.arange(2_000), random_codes(2_000, 32, 5)
    writer = open_index(url, 32)
    writer.add(ids, codes)
    writer.close()
    monkeypatch.setenv("MILVUS_PATIENCE", "2")
    monkeypatch.setenv("MILVUS_TIMEOUT", "2")
    index = MilvusIndex.open(url.removeprefix("milvus:"), 32, read_only=True)
    monkeypatch.setenv("MILVUS_PATIENCE", "300")  # for the export
    expected = index.search(codes[:1], 5).ids.tolist()
    results: list[list[Any]] = [[] for _ in range(4)]
    finished = threading.Event()

    def search_repeatedly(mine: list[Any]) -> None:
        while not finished.is_set():
            try:
                mine.append(index.search(codes[:1], 5).ids.tolist())
            except BaseException as error:
                mine.append(error)

    threads = [threading.Thread(target=search_repeatedly, args=(mine,)) for mine in results]
    for thread in threads:
        thread.start()
    blocks = index.export_blocks()
    parts = [next(blocks)]
    server.kill()
    time.sleep(6)  # long enough for an error in every thread
    server.start()
    parts.extend(blocks)
    deadline = time.monotonic() + 180
    while any(mine[-1] != expected for mine in results):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    finished.set()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.concatenate([part for part, _ in parts]), ids)
    for mine in results:
        errors = [result for result in mine if result != expected]
        assert errors
        assert all(isinstance(error, EngineError) for error in errors)
        assert all("did not answer for" in str(error) for error in errors)
    index.close()


def test_a_server_killed_during_an_ingest_loses_and_duplicates_nothing(
    server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "_CHUNK_ROWS", 2_000)
    ids, codes = np.arange(40_000) * 3, random_codes(40_000, 64, 8)
    location = f"{server.url.removeprefix('milvus:')}/own{next(_numbers)}#images"
    index = MilvusIndex.open(location, 64)

    def kill_at(batch: int, then: Any = None) -> Any:
        def track(items: Any, description: str, total: Any = None, start: int = 0) -> Any:
            for number, item in enumerate(items):
                if number == batch:
                    # During a request, not between two of them.
                    threading.Timer(0.01, lambda: (server.kill(), then and then())).start()
                yield item

        return track

    index._connection.max_wait, index._connection.timeout = 3.0, 3.0
    with pytest.raises(EngineError, match="did not answer for 3 s"):
        index.ingest(ids, codes, kill_at(6))
    server.start()
    index._connection.max_wait, index._connection.timeout = 180.0, 60.0
    stored = len(index)  # the same object reconnects
    assert 0 < stored < len(ids)
    # Killed again, and restarted while the ingest waits.
    restart = lambda: (time.sleep(1.0), server.start())  # noqa: E731
    sent = index.ingest(ids, codes, kill_at(13, restart))
    assert sent >= len(ids) - stored
    assert len(index) == len(ids)
    stored_ids, stored_codes = index.export()
    assert np.array_equal(stored_ids, ids)
    assert stored_codes == codes
    exact = ExactIndex(64)
    exact.add(ids, codes)
    queries = random_codes(5, 64, 9)
    assert_same(index.search(queries, 50), exact.search(queries, 50))
    assert index.ingest(ids, codes) == 0
    index.close()
