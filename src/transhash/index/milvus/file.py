"""Milvus Lite: a process that serves one file to this process alone."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transhash.errors import EngineError

_LOGGING = "GLOG_minloglevel"


class Files:
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


files = Files()


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
