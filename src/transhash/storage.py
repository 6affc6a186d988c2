"""Files that are either whole or not there: write beside, sync, rename; one writer a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from transhash.errors import DataError, EngineError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file whose content is `path`'s, on disk for good, once the block ends without error."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _replace(draft, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise EngineError(
                f"cannot write {path} ({error.strerror or error}); what was there is kept: make "
                "room or choose another place, then try again"
            ) from None
        raise


def _replace(draft: Path, path: Path) -> None:
    """Rename over what is there; Windows refuses while somebody reads that, so wait a little."""
    for _ in range(100 if sys.platform == "win32" else 0):
        with contextlib.suppress(PermissionError):
            draft.replace(path)
            return
        time.sleep(0.01)
    draft.replace(path)


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder last through a power cut."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_seeking = threading.Lock()


def seek_and_read(descriptor: int, most: int, at: int) -> bytes:
    """`os.pread` where the system has none; other threads may do the same meanwhile."""
    with _seeking:
        os.lseek(descriptor, at, os.SEEK_SET)
        return os.read(descriptor, min(most, 1 << 30))


def seek_and_write(descriptor: int, content: bytes, at: int) -> int:
    """`os.pwrite` where the system has none."""
    with _seeking:
        os.lseek(descriptor, at, os.SEEK_SET)
        return os.write(descriptor, content[: 1 << 30])


if sys.platform == "win32":
    read_at, write_at = seek_and_read, seek_and_write
else:
    read_at, write_at = os.pread, os.pwrite


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; is {path.parent} a folder transhash wrote?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); write the folder anew") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None


def content_digest(content: bytes) -> bytes:
    """Return the 16-byte BLAKE2b digest by which equal contents are recognized."""
    return hashlib.blake2b(content, digest_size=16).digest()


def file_digest(path: Path) -> str:
    """Return the hexadecimal BLAKE2b digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    write_bytes(path, save({name: np.asarray(t, order="C") for name, t in tensors.items()}))


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; is {path.parent} a folder transhash wrote?") from None
    except (SafetensorError, ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); write the folder anew") from None


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes `folder`'s place only when the block ends without error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        os.chmod(temporary, 0o755)
        yield temporary
        old = None
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
            os.replace(folder, old / folder.name)
        os.replace(temporary, folder)
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


_READ_ONLY = "open it with read_only=True"


class WriterLock:
    """One writer a folder: an advisory lock that the system drops when the process ends.

    Held from construction to `release`; a second writer is refused with a sentence. A forked
    child does not inherit it: two processes behind one lock would overwrite each other.
    """

    def __init__(self, folder: Path, hint: str = _READ_ONLY) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._descriptor = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _forking:
                self._descriptor = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
                _locks.add(self)
            _lock(self._descriptor)
            if not _is_at(self._descriptor, folder / "writer.lock"):  # taken away meanwhile
                raise BlockingIOError
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            self.release()
            raise EngineError(
                f"{folder} is being written by process {holder or 'unknown'}; close it there, "
                f"{hint} or choose another folder"
            ) from None
        except OSError as error:
            self.release()
            raise EngineError(
                f"cannot write to {folder} ({error.strerror}); allow it"
                f"{f', {_READ_ONLY}' if hint == _READ_ONLY else ''} or choose another folder"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the next writer is told no number
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(self._process).encode())

    @property
    def held(self) -> bool:
        """Whether this process may write: not after `release`, nor in a child of the opener."""
        return self._descriptor >= 0

    def check(self) -> None:
        """Refuses where this process may not write, before it does."""
        if self._process != os.getpid():
            raise EngineError(
                f"{self._folder} was opened by process {self._process}, and only that one may "
                "write to it; open it again in this process once it is closed there"
            )
        if not self.held:
            raise EngineError(f"{self._folder} was closed; open it again")

    def release(self) -> None:
        if self.held:
            with contextlib.suppress(OSError):
                if self._process == os.getpid():
                    # For good, though a child just forked may not have closed its copy yet.
                    _unlock(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release  # nobody can write any more


if sys.platform == "win32":
    # What is locked there cannot be read either, so a byte far behind the number of the process.
    _LOCKED = 1 << 30

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError from None
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
else:

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


_locks: WeakSet[WriterLock] = WeakSet()
_forking = threading.Lock()  # so that no lock is born unseen while the process is copied


def _release_in_child() -> None:
    _forking.release()
    for lock in _locks:
        lock.release()  # the child's copy only; the parent holds on


if sys.platform != "win32":
    os.register_at_fork(
        before=_forking.acquire,
        after_in_parent=_forking.release,
        after_in_child=_release_in_child,
    )
