"""Calls to a Milvus server or file that outlast its short absences."""

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

# Where codes live in Milvus, read from what follows "milvus:" in a URL.

INDEX_TYPES = ("BIN_FLAT", "BIN_IVF_FLAT")
_MOST_LISTS = 65_536
CONSISTENCY = ("Strong", "Session", "Bounded", "Eventually")


@dataclass(frozen=True)
class MilvusUrl:
    """Where codes live: "file.db#part" or "http://host:19530/collection?index=...#part"."""

    uri: str
    collection: str = "transhash"
    part: str = ""  # what follows "#", e.g. the modality
    index_type: str = "BIN_FLAT"
    nlist: int = 128  # of BIN_IVF_FLAT: lists the codes are divided into
    nprobe: int | None = None  # of BIN_IVF_FLAT: lists a query looks at; None: all, hence exact
    consistency: str = "Strong"

    @property
    def embedded(self) -> bool:
        return "://" not in self.uri

    @property
    def partition(self) -> str | None:
        return None if self.embedded else self.part or None

    @property
    def table(self) -> str:
        """The collection that is spoken to. Milvus Lite has no partitions: a part is one there."""
        return f"{self.collection}_{self.part}" if self.embedded and self.part else self.collection

    def __str__(self) -> str:
        part = f"#{self.part}" if self.part else ""
        return f"milvus:{self.uri}{'' if self.embedded else '/' + self.collection}{part}"

    @classmethod
    def parse(cls, location: str) -> MilvusUrl:
        rest, _, part = location.partition("#")
        rest, _, query = rest.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if "://" in rest:
            uri, collection = _server(rest)
        else:
            uri, collection = rest, options.pop("collection", "")
            if not uri.endswith(".db"):
                raise DataError(
                    f"milvus:{location} is neither a server (milvus:http://host:19530/collection) "
                    "nor a Milvus Lite file, whose name ends in .db (milvus:./codes.db)"
                )
            if not re.fullmatch("[A-Za-z0-9._-]{1,36}", Path(uri).name):
                raise DataError(
                    "Milvus Lite takes up to 36 letters, digits, dots, - and _ in the name of a "
                    f"file, got {Path(uri).name!r}"
                )
        collection = collection or cls.collection
        for what, name in (("collection", collection), ("part after #", part or "_")):
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,200}", name):
                raise DataError(
                    f"Milvus takes letters, digits and _ in the name of a {what}, got {name!r}"
                )
        return cls(uri, collection, part, **_options(location, options))


def _server(url: str) -> tuple[str, str]:
    """Address and collection of "http://host:19530/collection"."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        good = False
    if "@" in url:
        raise DataError(
            "credentials do not belong in a milvus: URL, which ends up in logs; set "
            "MILVUS_TOKEN, or MILVUS_USER and MILVUS_PASSWORD, in the environment"
        )
    if not good:
        raise DataError(f"{url} is no address of a server; use http://host:19530/collection")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _options(location: str, options: dict[str, str]) -> dict[str, Any]:
    try:
        nprobe = options.pop("nprobe", None)
        chosen: dict[str, Any] = {
            "index_type": options.pop("index", "BIN_FLAT").upper(),
            "nlist": int(options.pop("nlist", MilvusUrl.nlist)),
            "nprobe": None if nprobe is None else int(nprobe),
            "consistency": options.pop("consistency", "Strong").capitalize(),
        }
    except ValueError as error:
        raise DataError(
            f"milvus:{location}: nlist and nprobe are whole numbers ({error})"
        ) from None
    for name in ("nlist", "nprobe"):
        if chosen[name] is not None and not 1 <= chosen[name] <= _MOST_LISTS:
            raise DataError(f"milvus:{location}: {name} goes from 1 to {_MOST_LISTS:,}")
    if options:
        raise DataError(
            f"milvus:{location}: there is no option {next(iter(options))!r}; "
            "use index, nlist, nprobe or consistency"
        )
    for name, allowed in (("index_type", INDEX_TYPES), ("consistency", CONSISTENCY)):
        if chosen[name] not in allowed:
            raise DataError(f"milvus:{location}: {chosen[name]} is not one of {', '.join(allowed)}")
    return chosen


# Milvus Lite: a process that serves one file to this process alone.

_LOGGING = "GLOG_minloglevel"


class LiteProcesses:
    """The processes of all files: shared within this process, ended with the last user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}

    def acquire(self, path: str) -> str:
        """The address of the process that serves a file."""
        manager = _manager()
        file = Path(path).absolute()
        with self._lock:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if not self._users.get(str(file)):
                    _check_free(file)
                with _quiet():
                    address = manager.start_and_get_uri(str(file))
            except OSError as error:
                raise EngineError(
                    f"Milvus Lite cannot write to {file.parent}: {error.strerror}"
                ) from None
            if address is None:
                raise EngineError(
                    f"{file} is not a file that Milvus Lite can open; name another one"
                )
            self._users[str(file)] = self._users.get(str(file), 0) + 1
        return str(address)

    def release(self, path: str) -> None:
        file = str(Path(path).absolute())
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                _manager().release_server(file)


files = LiteProcesses()


def _manager() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still imports pkg_resources
        try:
            from milvus_lite import server_manager
        except ImportError as error:
            raise EngineError(
                f"Milvus Lite cannot be loaded ({error}); pip install 'transhash[milvus]'"
            ) from None
    return server_manager.server_manager_instance


@contextmanager
def _quiet() -> Iterator[None]:
    """While a process is started: Milvus Lite's errors, which ours say in a sentence.

    It logs them to the root logger, and its process to standard error and to files in /tmp.
    """

    def of_others(record: logging.LogRecord) -> bool:
        return "milvus_lite" not in record.pathname

    root, level = logging.getLogger(), os.environ.get(_LOGGING)
    root.addFilter(of_others)
    os.environ[_LOGGING] = level or "3"
    try:
        yield
    finally:
        root.removeFilter(of_others)
        if level is None:
            del os.environ[_LOGGING]


def _check_free(file: Path) -> None:
    """Refuse a file that another process has open.

    Milvus Lite would refuse it, too, but take the other one's lock away: a third one came in.
    """
    if sys.platform == "win32":
        raise EngineError(
            "there is no Milvus Lite for Windows; use a Milvus server "
            "(milvus:http://host:19530/collection) or another engine"
        )
    import fcntl

    with (file.parent / f".{file.name}.lock").open("a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(
                f"{file} is open in another process, and Milvus Lite lets only one in; end "
                "that one, or use a Milvus server (milvus:http://host:19530/collection)"
            ) from None


_log = logging.getLogger("transhash")
_T = TypeVar("_T")
COPYING = 120.0  # seconds that a server may be away while codes are written or copied
LOADING = 900.0  # seconds that loading or sealing a collection may take
# gRPC's own pauses between attempts to connect grow to two minutes.
_CHANNEL = {"grpc.initial_reconnect_backoff_ms": 200, "grpc.max_reconnect_backoff_ms": 2000}
_SILENCE = 3.0  # seconds of waiting after which the user is told what is waited for
# Codes by which a server says "not now": starting up, loading, a node gone, too many requests.
# Not 1, which pymilvus also gives to what it refuses itself; servers add words to theirs.
_NOT_NOW = {2, 4, 8, 101, 103, 400, 401, 500, 501, 503, 601, 901, 902, 903}
_NOT_NOW_WORDS = re.compile(
    "unavailable|not available|not ready|not healthy|not loaded|not fully loaded|refused|reset"
    "|fail connecting|deadline|timeout|rate limit|no available|node not found"
    "|node not match",
    re.IGNORECASE,
)
_RPC_NOT_NOW = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}


@dataclass
class Connection:
    """One client; a call is tried again, ever more slowly, until `probe_budget` seconds are over."""

    place: MilvusUrl
    reading: bool = False  # then somebody waits for the answer, who would rather ask again
    timeout: float = 0.0  # of one request; 0: from the environment
    probe_budget: float = 0.0
    _client: Any = None
    _address: str = ""  # of the process that serves a Milvus Lite file
    _reported: bool = False  # that the server does not answer, once an absence

    def __post_init__(self) -> None:
        _import()
        soon = self.reading and not self.place.embedded
        self.timeout = self.timeout or seconds("MILVUS_TIMEOUT", 10.0 if soon else 30.0)
        self.probe_budget = self.probe_budget or seconds(
            "MILVUS_PATIENCE", 10.0 if soon else COPYING
        )

    def call(self, verb: str, **arguments: Any) -> Any:
        """client.verb(...), again and again while the server says that it is not there yet."""
        return self.retry(lambda client: getattr(client, verb)(timeout=self.timeout, **arguments))

    def retry(self, action: Callable[[Any], _T], probe_budget: float | None = None) -> _T:
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        probe_budget = probe_budget or self.probe_budget
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                result = action(self._connected())
                self._reported = False
                return result
            except (MilvusException, RpcError, ValueError) as error:
                if not is_transient(error):
                    raise EngineError(self._refusal(error)) from error
                waited = time.monotonic() - began
                if waited >= probe_budget:
                    raise EngineError(
                        f"{self.place} did not answer for {waited:.0f} s "
                        f"({_sentence(error)}); start the server or check the address, then give "
                        "the same command again: what was stored is kept"
                    ) from error
                if waited > _SILENCE and not self._reported:
                    self._reported = True
                    _log.warning(
                        "%s does not answer (%s); trying for another %.0f s",
                        self.place, _sentence(error), probe_budget - waited,
                    )  # fmt: skip
            time.sleep(min(pause, probe_budget - waited))
            pause = min(2 * pause, 5.0)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._address:
            files.release(self.place.uri)
            self._address = ""

    def _connected(self) -> Any:
        """The client, one for all threads; its channel finds a server that is back by itself."""
        if self._client is None:
            uri, wait = self.place.uri, min(self.timeout, 10.0)
            token = os.environ.get("MILVUS_TOKEN", "")
            user, password = os.environ.get("MILVUS_USER"), os.environ.get("MILVUS_PASSWORD")
            if not token and user and password:
                token = f"{user}:{password}"
            if self.place.embedded:
                # A process of its own has to start, from a binary of 100 MB.
                self._address = self._address or files.acquire(uri)
                uri, wait, token = self._address, max(self.timeout, 60.0), ""
            self._client = _import().MilvusClient(
                uri=uri, token=token, timeout=wait, dedicated=True, grpc_options=_CHANNEL
            )
        return self._client

    def _refusal(self, error: Exception) -> str:
        sentence = _sentence(error)
        if re.search(
            "unauthenticated|auth check|authorization", f"{_grpc_detail(error)}", re.IGNORECASE
        ):
            return (
                f"{self.place} refused the credentials; set MILVUS_TOKEN, or MILVUS_USER and "
                f"MILVUS_PASSWORD ({sentence})"
            )
        return f"{self.place} refused: {sentence}"


def open_collection(connection: Connection, bits: int | None, read_only: bool) -> int:
    """Collection and partition exist and are loaded afterwards; returns their code length.

    The connection's place then names the index that the collection has, whatever the URL said.
    """
    place, call = connection.place, connection.call
    if not call("has_collection", collection_name=place.table):
        if read_only:
            raise IndexNotFoundError(place)
        if bits is None:
            raise DataError(f"a new index at {place} needs its code length; pass bits=")
        _create(connection, bits)
    stored = _stored_bits(place, call("describe_collection", collection_name=place.table))
    if bits not in (None, stored):
        raise EngineError(f"{place} holds {stored}-bit codes, not {bits}-bit ones")
    part = place.partition
    if part and not call("has_partition", collection_name=place.table, partition_name=part):
        if read_only:
            raise IndexNotFoundError(place)
        call("create_partition", collection_name=place.table, partition_name=part)
    found = call("describe_index", collection_name=place.table, index_name="code")
    if found is None:  # a new collection, or whoever made it was interrupted
        if read_only:
            raise IndexNotFoundError(place)
        _index(connection)
        found = call("describe_index", collection_name=place.table, index_name="code")
    if found is None or found["metric_type"] != "HAMMING":
        raise EngineError(_foreign(place, "it has no HAMMING index of the name `code`"))
    connection.place = replace(
        place, index_type=found["index_type"], nlist=int(found.get("nlist", place.nlist))
    )
    # Reads the whole collection into the server's memory, which for a large one takes minutes.
    patient = max(connection.timeout, LOADING)
    connection.retry(lambda client: client.load_collection(place.table, timeout=patient))
    return stored


def _stored_bits(place: MilvusUrl, collection: dict[str, Any]) -> int:
    from pymilvus import DataType

    kinds = {field["name"]: field["type"] for field in collection["fields"]}
    if kinds != {"id": DataType.INT64, "code": DataType.BINARY_VECTOR}:
        found = ", ".join(f"{name} ({DataType(kind).name})" for name, kind in kinds.items())
        raise EngineError(_foreign(place, f"it has the fields {found}"))
    if collection["auto_id"]:
        raise EngineError(_foreign(place, "it numbers its items itself"))
    return next(int(f["params"]["dim"]) for f in collection["fields"] if f["name"] == "code")


def _foreign(place: MilvusUrl, why: str) -> str:
    return (
        f"the collection {place.table} at {place.uri} was not made by transhash: {why}; "
        "name another collection"
    )


def _create(connection: Connection, bits: int) -> None:
    from pymilvus import DataType

    def create(client: Any) -> None:
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=bits)
        client.create_collection(
            connection.place.table,
            schema=schema,
            consistency_level="Strong",
            timeout=connection.timeout,
        )

    connection.retry(create)


def _index(connection: Connection) -> None:
    place = connection.place

    def create(client: Any) -> None:
        index = client.prepare_index_params()
        params = {"nlist": place.nlist} if place.index_type == "BIN_IVF_FLAT" else {}
        index.add_index("code", index_type=place.index_type, metric_type="HAMMING", params=params)
        client.create_index(place.table, index, timeout=connection.timeout)

    connection.retry(create)


def is_transient(error: Exception) -> bool:
    """Whether an error is one that waiting may cure."""
    from grpc import StatusCode

    error = _grpc_detail(error)
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    if isinstance(code, StatusCode):
        return code.name in _RPC_NOT_NOW
    return code in _NOT_NOW or bool(_NOT_NOW_WORDS.search(str(error)))


def _grpc_detail(error: BaseException) -> Any:
    """What gRPC said: pymilvus says "server unavailable" of a wrong password, too."""
    from grpc import RpcError

    return error.__cause__ if isinstance(error.__cause__, RpcError) else error


def _import() -> Any:
    ours = "pymilvus" not in sys.modules  # who imported it before us chose how it logs
    if ours:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it writes to standard error itself
    try:
        import pymilvus
    except ImportError:
        raise EngineError(
            "the milvus engine needs pymilvus; pip install 'transhash[milvus]'"
        ) from None
    if ours:  # it logs a page of traceback for every refusal; our errors say it in a sentence
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


def _sentence(error: Exception) -> str:
    heard = _grpc_detail(error)
    message = getattr(heard, "message", None) or getattr(heard, "details", None) or heard
    text = str(message() if callable(message) else message).rpartition("last error: ")[2]
    return (text.strip() or type(heard).__name__).splitlines()[0][:300]


def seconds(name: str, default: float) -> float:
    """A time from the environment."""
    value = os.environ.get(name, "")
    try:
        number = float(value) if value else default
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise DataError(f"{name} is a number of seconds above 0, got {value!r}")
    return number
