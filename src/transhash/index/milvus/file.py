"""Milvus Lite: a process that serves one file to this process alone."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from transhash.errors import EngineError


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
            from milvus_lite import server, server_manager
        except ImportError as error:
            raise EngineError(
                f"Milvus Lite cannot be loaded ({error}); pip install 'transhash[milvus]'"
            ) from None
    # Its errors go to the root logger; ours say the same in a sentence.
    server.logger = server_manager.logger = logging.getLogger("pymilvus")
    # Else the process writes to standard error, and leaves log files in /tmp whenever it starts.
    os.environ.setdefault("GLOG_minloglevel", "3")
    return server_manager.server_manager_instance


def _check_free(file: Path) -> None:
    """Refuse a file that another process has open.

    Milvus Lite would refuse it, too, but take the other one's lock away: a third one came in.
    """
    import fcntl  # not on Windows, where there is no Milvus Lite either

    with (file.parent / f".{file.name}.lock").open("a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(
                f"{file} is open in another process, and Milvus Lite lets only one in; end "
                "that one, or use a Milvus server (milvus:http://host:19530/collection)"
            ) from None
