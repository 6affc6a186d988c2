"""Connects to a Milvus server or a Milvus Lite file, and retries calls during short outages."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from transhash.errors import DataError, EngineError, IndexNotFoundError
from transhash.index.base import check_stored_bits, missing_bits

_log = logging.getLogger("transhash")
_T = TypeVar("_T")

INDEX_TYPES = ("BIN_FLAT", "BIN_IVF_FLAT")
CONSISTENCY_LEVELS = ("Strong", "Session", "Bounded", "Eventually")
_MAX_LISTS = 65_536
_GLOG_LEVEL = "GLOG_minloglevel"  # environment variable of Milvus Lite's process
_INSTALL = "Install it: pip install 'transhash[milvus]'."


@dataclass(frozen=True)
class MilvusUrl:
    """A parsed "file.db#part" or "http://host:19530/collection?index=...#part"."""

    uri: str
    collection: str = "transhash"
    part: str = ""  # what follows "#", e.g. the modality
    index_type: str = "BIN_FLAT"
    nlist: int = 128  # BIN_IVF_FLAT: lists the codes are divided into
    nprobe: int | None = None  # BIN_IVF_FLAT: lists a query reads; None: all, which is exact
    consistency: str = "Strong"

    @property
    def is_lite(self) -> bool:
        return "://" not in self.uri

    @property
    def partition(self) -> str | None:
        return None if self.is_lite else self.part or None

    @property
    def collection_name(self) -> str:
        """The name in Milvus. Milvus Lite has no partitions, so there each part is a collection."""
        return f"{self.collection}_{self.part}" if self.is_lite and self.part else self.collection

    def __str__(self) -> str:
        part = f"#{self.part}" if self.part else ""
        return f"milvus:{self.uri}{'' if self.is_lite else '/' + self.collection}{part}"

    @classmethod
    def parse(cls, location: str) -> MilvusUrl:
        rest, _, part = location.partition("#")
        rest, _, query = rest.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if "://" in rest:
            uri, collection = _parse_server(rest)
        else:
            uri, collection = rest, options.pop("collection", "")
            if not uri.endswith(".db"):
                raise DataError(
                    f"milvus:{location} is neither a server nor a Milvus Lite file. Use "
                    "milvus:http://host:19530/collection, or a file that ends in .db."
                )
            if not re.fullmatch("[A-Za-z0-9._-]{1,36}", Path(uri).name):
                raise DataError(
                    f"{Path(uri).name!r} is not a valid name of a Milvus Lite file. "
                    "Use at most 36 letters, digits, dots, - and _."
                )
        collection = collection or cls.collection
        for kind, name in (("collection", collection), ("part after #", part or "_")):
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,200}", name):
                raise DataError(
                    f"{name!r} is not a valid name of a Milvus {kind}. Use letters, digits and _."
                )
        return cls(uri, collection, part, **_parse_options(location, options))


def _parse_server(url: str) -> tuple[str, str]:
    """Split "http://host:19530/collection" into address and collection."""
    if "@" in url:
        raise DataError(
            "A milvus: URL must not contain credentials, since URLs are logged. Set MILVUS_TOKEN, "
            "or MILVUS_USER and MILVUS_PASSWORD, in the environment."
        )
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number, or an IPv6 address is incomplete
        valid = False
    if not valid:
        raise DataError(f"{url} is not a server address. Use http://host:19530/collection.")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _parse_options(location: str, options: dict[str, str]) -> dict[str, Any]:
    def fail(message: str) -> DataError:
        return DataError(f"milvus:{location} has a wrong option. {message}")

    values: dict[str, Any] = {
        "index_type": options.pop("index", "BIN_FLAT").upper(),
        "consistency": options.pop("consistency", "Strong").capitalize(),
    }
    for name, allowed in (("index_type", INDEX_TYPES), ("consistency", CONSISTENCY_LEVELS)):
        if values[name] not in allowed:
            option = name.removesuffix("_type")
            raise fail(f"Set {option} to one of {', '.join(allowed)}, not {values[name]!r}.")
    for name in ("nlist", "nprobe"):
        if (text := options.pop(name, None)) is not None:
            if not text.isdecimal() or not 1 <= int(text) <= _MAX_LISTS:
                raise fail(f"Set {name} to an integer from 1 to {_MAX_LISTS:,}, not {text!r}.")
            values[name] = int(text)
    if options:
        raise fail(f"Use index, nlist, nprobe or consistency, not {next(iter(options))!r}.")
    return values


class LiteProcesses:
    """The processes that serve Milvus Lite files, shared within this process and counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}

    def acquire(self, path: str) -> str:
        """Return the address of the process that serves a file."""
        manager = _lite_manager()
        file = Path(path).absolute()
        with self._lock:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if not self._users.get(str(file)):
                    _check_not_open_elsewhere(file)
                with _quiet():
                    address = manager.start_and_get_uri(str(file))
            except OSError as error:
                raise EngineError(
                    f"Milvus Lite cannot write to {file.parent} ({error.strerror}). "
                    "Choose another folder."
                ) from None
            if address is None:
                raise EngineError(f"Milvus Lite cannot open {file}. Choose another file.")
            self._users[str(file)] = self._users.get(str(file), 0) + 1
        return str(address)

    def release(self, path: str) -> None:
        file = str(Path(path).absolute())
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                _lite_manager().release_server(file)


_lite_processes = LiteProcesses()


def _lite_manager() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still imports pkg_resources
        try:
            from milvus_lite import server_manager
        except ImportError as error:
            raise EngineError(f"Milvus Lite is not available ({error}). {_INSTALL}") from None
    return server_manager.server_manager_instance


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Milvus Lite while it starts a process; our errors say the same in a sentence.

    It logs to the root logger, and its process to standard error and to files in /tmp.
    """

    def is_from_others(record: logging.LogRecord) -> bool:
        return "milvus_lite" not in record.pathname

    root, level = logging.getLogger(), os.environ.get(_GLOG_LEVEL)
    root.addFilter(is_from_others)
    os.environ[_GLOG_LEVEL] = level or "3"
    try:
        yield
    finally:
        root.removeFilter(is_from_others)
        if level is None:
            del os.environ[_GLOG_LEVEL]


def _check_not_open_elsewhere(file: Path) -> None:
    """Raise if another process has the file open.

    Milvus Lite would also refuse, but it would delete the other process's lock file, so that a
    third process could open the file.
    """
    if sys.platform == "win32":
        raise EngineError(
            "Milvus Lite does not support Windows. Use a Milvus server "
            "(milvus:http://host:19530/collection) or another backend."
        )
    import fcntl

    with (file.parent / f".{file.name}.lock").open("a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(
                f"{file} is open in another process, and Milvus Lite allows only one. Stop that "
                "process, or use a Milvus server (milvus:http://host:19530/collection)."
            ) from None


COPY_WAIT = 120.0  # seconds to wait for an absent server while codes are written or copied
LOAD_TIMEOUT = 900.0  # seconds for loading or sealing a collection
_WARN_AFTER = 3.0  # seconds of waiting after which the user is told
# gRPC's default pauses between connection attempts grow to two minutes.
_GRPC_OPTIONS = {"grpc.initial_reconnect_backoff_ms": 200, "grpc.max_reconnect_backoff_ms": 2000}
# Error codes of a server that is starting, loading, has lost a node or has too many requests.
# Not 1, which pymilvus also uses for its own argument checks; servers add one of the words below.
_TRANSIENT_CODES = {2, 4, 8, 101, 103, 400, 401, 500, 501, 503, 601, 901, 902, 903}
_TRANSIENT_WORDS = re.compile(
    "unavailable|not available|not ready|not healthy|not loaded|not fully loaded|refused|reset"
    "|fail connecting|deadline|timeout|rate limit|no available|node not found"
    "|node not match",
    re.IGNORECASE,
)
_TRANSIENT_RPC = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}


@dataclass
class Connection:
    """One client; a failed call is retried with growing pauses for up to `max_wait` seconds."""

    url: MilvusUrl
    reading: bool = False  # a user waits for the result and would rather get an error
    timeout: float = 0.0  # of one request; 0: from the environment
    max_wait: float = 0.0
    _client: Any = None
    _lite_address: str = ""
    _reported: bool = False  # whether the current outage was logged

    def __post_init__(self) -> None:
        _import_pymilvus()
        short = self.reading and not self.url.is_lite
        self.timeout = self.timeout or seconds("MILVUS_TIMEOUT", 10.0 if short else 30.0)
        self.max_wait = self.max_wait or seconds("MILVUS_PATIENCE", 10.0 if short else COPY_WAIT)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a client method on the collection, with retries."""
        name = self.url.collection_name
        return self.retry(
            lambda client: getattr(client, method)(
                collection_name=name, timeout=self.timeout, **arguments
            )
        )

    def load(self) -> None:
        """Load the collection into the server's memory; a large one takes minutes."""
        timeout = max(self.timeout, LOAD_TIMEOUT)
        name = self.url.collection_name
        self.retry(lambda client: client.load_collection(name, timeout=timeout))

    def retry(self, action: Callable[[Any], _T], max_wait: float | None = None) -> _T:
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        max_wait = max_wait or self.max_wait
        start, pause = time.monotonic(), 0.2
        while True:
            try:
                result = action(self._connected())
                self._reported = False
                return result
            except (MilvusException, RpcError, ValueError) as error:
                if not is_transient(error):
                    raise EngineError(self._error_message(error)) from error
                waited = time.monotonic() - start
                if waited >= max_wait:
                    raise EngineError(
                        f"{self.url} did not answer for {waited:.0f} s ({_reason(error)}). Start "
                        "the server or check the address, then rerun the command. Stored items "
                        "are not lost."
                    ) from error
                if waited > _WARN_AFTER and not self._reported:
                    self._reported = True
                    _log.warning(
                        "%s does not answer (%s). Retrying for another %.0f s.",
                        self.url, _reason(error), max_wait - waited,
                    )  # fmt: skip
            time.sleep(min(pause, max_wait - waited))
            pause = min(2 * pause, 5.0)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lite_address:
            _lite_processes.release(self.url.uri)
            self._lite_address = ""

    def _connected(self) -> Any:
        """Return the client, one for all threads; its channel reconnects by itself."""
        if self._client is None:
            uri, wait = self.url.uri, min(self.timeout, 10.0)
            token = os.environ.get("MILVUS_TOKEN", "")
            user, password = os.environ.get("MILVUS_USER"), os.environ.get("MILVUS_PASSWORD")
            if not token and user and password:
                token = f"{user}:{password}"
            if self.url.is_lite:
                # It has to start a process from a binary of 100 MB.
                self._lite_address = self._lite_address or _lite_processes.acquire(uri)
                uri, wait, token = self._lite_address, max(self.timeout, 60.0), ""
            self._client = _import_pymilvus().MilvusClient(
                uri=uri, token=token, timeout=wait, dedicated=True, grpc_options=_GRPC_OPTIONS
            )
        return self._client

    def _error_message(self, error: Exception) -> str:
        reason = _reason(error)
        denied = "unauthenticated|auth check|authorization"
        if re.search(denied, str(_grpc_detail(error)), re.IGNORECASE):
            return (
                f"{self.url} refused the credentials ({reason}). Set MILVUS_TOKEN, or MILVUS_USER "
                "and MILVUS_PASSWORD."
            )
        return f"{self.url} refused the request: {reason}"


def open_collection(connection: Connection, bits: int | None, read_only: bool) -> int:
    """Create collection and partition if needed, load them and return the code length.

    Afterwards `connection.url` has the index type of the collection, whatever the URL said.
    """
    url, call = connection.url, connection.call
    if not call("has_collection"):
        if read_only:
            raise IndexNotFoundError(url)
        if bits is None:
            raise missing_bits(f"New index {url}")
        _create_collection(connection, bits)
    stored = _stored_bits(url, call("describe_collection"))
    check_stored_bits(url, stored, bits)
    if url.partition and not call("has_partition", partition_name=url.partition):
        if read_only:
            raise IndexNotFoundError(url)
        call("create_partition", partition_name=url.partition)
    index = call("describe_index", index_name="code")
    if index is None:  # the collection is new, or its creation was interrupted
        if read_only:
            raise IndexNotFoundError(url)
        _create_index(connection)
        index = call("describe_index", index_name="code")
    if index is None or index["metric_type"] != "HAMMING":
        raise _foreign_collection(url, "it has no HAMMING index named `code`")
    connection.url = replace(
        url, index_type=index["index_type"], nlist=int(index.get("nlist", url.nlist))
    )
    connection.load()
    return stored


def _stored_bits(url: MilvusUrl, collection: dict[str, Any]) -> int:
    from pymilvus import DataType

    types = {field["name"]: field["type"] for field in collection["fields"]}
    if types != {"id": DataType.INT64, "code": DataType.BINARY_VECTOR}:
        fields = ", ".join(f"{name} ({DataType(kind).name})" for name, kind in types.items())
        raise _foreign_collection(url, f"it has the fields {fields}")
    if collection["auto_id"]:
        raise _foreign_collection(url, "it generates its own ids")
    return next(int(f["params"]["dim"]) for f in collection["fields"] if f["name"] == "code")


def _foreign_collection(url: MilvusUrl, reason: str) -> EngineError:
    return EngineError(
        f"The collection {url.collection_name} at {url.uri} was not created by transhash: "
        f"{reason}. Choose another collection."
    )


def _create_collection(connection: Connection, bits: int) -> None:
    from pymilvus import DataType

    def create(client: Any) -> None:
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=bits)
        client.create_collection(
            connection.url.collection_name,
            schema=schema,
            consistency_level="Strong",
            timeout=connection.timeout,
        )

    connection.retry(create)


def _create_index(connection: Connection) -> None:
    url = connection.url

    def create(client: Any) -> None:
        index = client.prepare_index_params()
        params = {"nlist": url.nlist} if url.index_type == "BIN_IVF_FLAT" else {}
        index.add_index("code", index_type=url.index_type, metric_type="HAMMING", params=params)
        client.create_index(url.collection_name, index, timeout=connection.timeout)

    connection.retry(create)


def is_transient(error: Exception) -> bool:
    """Return whether retrying later may succeed."""
    from grpc import StatusCode

    error = _grpc_detail(error)
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    if isinstance(code, StatusCode):
        return code.name in _TRANSIENT_RPC
    return code in _TRANSIENT_CODES or bool(_TRANSIENT_WORDS.search(str(error)))


def _grpc_detail(error: BaseException) -> Any:
    """Return gRPC's error: pymilvus reports a wrong password as "server unavailable"."""
    from grpc import RpcError

    return error.__cause__ if isinstance(error.__cause__, RpcError) else error


def _reason(error: Exception) -> str:
    detail = _grpc_detail(error)
    message = getattr(detail, "message", None) or getattr(detail, "details", None) or detail
    text = str(message() if callable(message) else message).rpartition("last error: ")[2]
    return (text.strip() or type(detail).__name__).splitlines()[0][:300]


def _import_pymilvus() -> Any:
    is_first = "pymilvus" not in sys.modules  # whoever imported it before has chosen its logging
    if is_first:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it writes to standard error
    try:
        import pymilvus
    except ImportError:
        raise EngineError(f"The milvus backend needs pymilvus. {_INSTALL}") from None
    if is_first:  # it logs a page of traceback for every error that we report in a sentence
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


def seconds(name: str, default: float) -> float:
    """Return a duration from the environment."""
    value = os.environ.get(name, "")
    try:
        number = float(value) if value else default
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise DataError(f"{name} must be a number of seconds above 0, got {value!r}.")
    return number
