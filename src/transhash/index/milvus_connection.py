"""Calls to a Milvus server or file that outlast its short absences."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from transhash.errors import DataError, EngineError
from transhash.index.milvus_place import Place

T = TypeVar("T")
LOADING = 900.0  # seconds that loading or sealing a collection may take
# Codes by which a server says "not now": starting up, loading, a node gone, too many requests.
_NOT_NOW = {1, 2, 4, 8, 101, 103, 400, 401, 500, 501, 503, 601, 901, 902, 903}
_NOT_NOW_WORDS = re.compile(
    "unavailable|not available|not ready|not healthy|not loaded|not fully loaded|refused|reset"
    "|fail connecting|closed channel|deadline|timeout|rate limit|no available|node not found"
    "|not match",
    re.IGNORECASE,
)
_RPC_NOT_NOW = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}


@dataclass
class Connection:
    """One client; a call is tried again, ever more slowly, until `patience` seconds are over."""

    place: Place
    timeout: float = field(default_factory=lambda: _seconds("MILVUS_TIMEOUT", 30.0))
    patience: float = field(default_factory=lambda: _seconds("MILVUS_PATIENCE", 120.0))
    _client: Any = None
    _address: str = ""  # of the process that serves a Milvus Lite file

    def call(self, verb: str, **arguments: Any) -> Any:
        """client.verb(...), again and again while the server says that it is not there yet."""
        return self.persist(lambda client: getattr(client, verb)(timeout=self.timeout, **arguments))

    def persist(self, action: Callable[[Any], T]) -> T:
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        deadline, pause = time.monotonic() + self.patience, 0.2
        while True:
            try:
                return action(self._connected())
            except (MilvusException, RpcError, ValueError) as error:
                # gRPC raises ValueError for a channel that another thread has just closed.
                if not passing(error):
                    raise EngineError(self._refusal(error)) from error
                if time.monotonic() + pause > deadline:
                    raise EngineError(
                        f"{self.place} did not answer for {self.patience:.0f} s "
                        f"({_sentence(error)}); start the server or check the address, then give "
                        "the same command again: what was stored is kept"
                    ) from error
                self._disconnect()
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def close(self) -> None:
        self._disconnect()
        if self._address:
            _files.release(self.place.uri)
            self._address = ""

    def _connected(self) -> Any:
        if self._client is None:
            pymilvus = _import()
            uri, wait = self.place.uri, min(self.timeout, 10.0)
            if self.place.embedded:
                # A process of its own has to start, from a binary of 100 MB.
                self._address = self._address or _files.acquire(uri)
                uri, wait = self._address, max(self.timeout, 60.0)
            token = os.environ.get("MILVUS_TOKEN", "")
            user, password = os.environ.get("MILVUS_USER"), os.environ.get("MILVUS_PASSWORD")
            if not token and user and password:
                token = f"{user}:{password}"
            self._client = pymilvus.MilvusClient(uri=uri, token=token, timeout=wait, dedicated=True)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _refusal(self, error: Exception) -> str:
        sentence = _sentence(error)
        if re.search("unauthenticated|auth check failure|permission", f"{error}", re.IGNORECASE):
            return (
                f"{self.place} refused the credentials; set MILVUS_TOKEN, or MILVUS_USER and "
                f"MILVUS_PASSWORD ({sentence})"
            )
        return f"{self.place} refused: {sentence}"


def prepare(connection: Connection, bits: int | None, read_only: bool) -> int:
    """Collection and partition exist and are loaded afterwards; returns their code length.

    The connection's place then names the index that the collection has, whatever the URL said.
    """
    place, call = connection.place, connection.call
    if not call("has_collection", collection_name=place.table):
        if read_only:
            raise EngineError(f"there is no index at {place} to read; add items first")
        if bits is None:
            raise DataError(f"a new index at {place} needs its code length; pass bits=")
        _create(connection, bits)
    fields = call("describe_collection", collection_name=place.table)["fields"]
    stored = next((int(f["params"]["dim"]) for f in fields if f["name"] == "code"), None)
    if stored is None:
        raise EngineError(
            f"the collection {place.table} at {place.uri} was not made by transhash: it has "
            "no field `code`; name another collection"
        )
    if bits not in (None, stored):
        raise EngineError(f"{place} holds {stored}-bit codes, not {bits}-bit ones")
    part = place.partition
    if part and not call("has_partition", collection_name=place.table, partition_name=part):
        if read_only:
            raise EngineError(f"there is no index at {place} to read; add items first")
        call("create_partition", collection_name=place.table, partition_name=part)
    found = call("describe_index", collection_name=place.table, index_name="code")
    connection.place = replace(
        place, index_type=found["index_type"], nlist=int(found.get("nlist", place.nlist))
    )
    # Reads the whole collection into the server's memory, which for a large one takes minutes.
    patient = max(connection.timeout, LOADING)
    connection.persist(lambda client: client.load_collection(place.table, timeout=patient))
    return stored


def _create(connection: Connection, bits: int) -> None:
    place = connection.place

    def create(client: Any) -> None:
        from pymilvus import DataType

        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=bits)
        index = client.prepare_index_params()
        params = {"nlist": place.nlist} if place.index_type == "BIN_IVF_FLAT" else {}
        index.add_index("code", index_type=place.index_type, metric_type="HAMMING", params=params)
        client.create_collection(
            place.table,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
            timeout=connection.timeout,
        )

    connection.persist(create)


def passing(error: Exception) -> bool:
    """Whether an error is one that waiting may cure."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    name = getattr(code, "name", "")
    if name:
        return name in _RPC_NOT_NOW
    return code in _NOT_NOW or bool(_NOT_NOW_WORDS.search(str(error)))


class _Files:
    """Milvus Lite's processes, one a file: shared within this process, ended with the last user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}

    def acquire(self, path: str) -> str:
        """The address of the process that serves a file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it still imports pkg_resources
            try:
                from milvus_lite.server_manager import server_manager_instance as manager
            except ImportError as error:
                raise EngineError(
                    f"Milvus Lite cannot be loaded ({error}); "
                    "pip install 'milvus-lite>=2.4,<3' 'setuptools<81'"
                ) from None
        file = Path(path).absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            address = manager.start_and_get_uri(str(file))
            if address is None:
                raise EngineError(
                    f"{file} is open in another process, and Milvus Lite lets only one in; end "
                    "that one, or use a Milvus server (milvus:http://host:19530/collection)"
                )
            self._users[str(file)] = self._users.get(str(file), 0) + 1
        return str(address)

    def release(self, path: str) -> None:
        from milvus_lite.server_manager import server_manager_instance as manager

        file = str(Path(path).absolute())
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                manager.release_server(file)


_files = _Files()


def _import() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise EngineError(
            "the milvus engine needs pymilvus; pip install 'transhash[milvus]'"
        ) from None
    # It logs a page of traceback for every refusal; our errors say the same in a sentence.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


def _sentence(error: Exception) -> str:
    message = getattr(error, "message", None) or getattr(error, "details", None) or error
    return str(message() if callable(message) else message).strip().splitlines()[0][:300]


def _seconds(name: str, default: float) -> float:
    value = os.environ.get(name, "")
    try:
        return float(value) if value else default
    except ValueError:
        raise DataError(f"{name} is a number of seconds, got {value!r}") from None
