"""Atomic files and folders, JSON and tensor files, and a lock that allows one writer per folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
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
    """Yield a temporary file that durably replaces `path` when the block ends without error."""
    draft = _draft_of(path)
    try:
        make_folder(path.parent)
        _remove_abandoned(path.parent)
        with draft.open("xb") as file:
            _lock_draft(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # which cannot rename an open file
                draft.replace(path)
        if sys.platform == "win32":
            _replace(draft, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise EngineError(
                f"Cannot write {path} ({error.strerror or error}). Its previous content is "
                "unchanged. Free disk space or choose another folder, then try again."
            ) from None
        raise


_DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{12}\.draft(\.old)?")
_ABANDONED_SECONDS = 60.0  # since the last write; a draft may not be locked yet
_checked_folders: set[Path] = set()  # by this process


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")


def _lock_draft(descriptor: int) -> bool:
    """Lock a draft until it is closed or its process ends; return whether that was possible."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has it, or the file system has no locks
        return False
    return True


def _remove_abandoned(parent: Path) -> None:
    """Remove drafts of processes that were killed, once per process and folder."""
    if parent in _checked_folders:
        return
    _checked_folders.add(parent)
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            match = _DRAFT.fullmatch(name)
            # An old folder is needed until its name has a folder again.
            if match and not (match[2] and not (parent / match[1]).exists()):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(parent / name)


def _remove_if_abandoned(draft: Path) -> None:
    if time.time() - draft.stat().st_mtime < _ABANDONED_SECONDS:
        return
    if sys.platform == "win32":
        _remove(draft)  # refused while a file is open
        return
    descriptor = os.open(draft, os.O_RDONLY)
    try:
        if _lock_draft(descriptor):
            _remove(draft)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace(draft: Path, path: Path) -> None:
    """Rename over `path`. Windows refuses while another process reads it, so retry for a second."""
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
    """Make new names in a folder survive a power failure."""
    if sys.platform == "win32":  # cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, whose names then survive a power failure."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:  # without this, all that is synced below it could be lost
        sync_folder(path.parent)


_seek_lock = threading.Lock()


def seek_and_read(descriptor: int, size: int, offset: int) -> bytes:
    """Do what `os.pread` does on systems without it. Thread-safe."""
    with _seek_lock:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, min(size, 1 << 30))


def seek_and_write(descriptor: int, content: bytes, offset: int) -> int:
    """Do what `os.pwrite` does on systems without it. Thread-safe."""
    with _seek_lock:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, content[: 1 << 30])


if sys.platform == "win32":
    read_at, write_at = seek_and_read, seek_and_write
else:
    read_at, write_at = os.pread, os.pwrite


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file to read; a pipe, socket or device, which might never end, is an OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)  # nonblocking: a pipe would wait for a writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    reason = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
    raise OSError(code, reason, str(path))


def check_regular(path: Path) -> None:
    """Raise a DataError for a pipe, socket or device, before a library opens it."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file. Restore a backup or replace it.")


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read a file that `open_regular` opens."""
    with open_regular(path) as file:
        return file.read()


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}). Create the folder again.") from None
    except FileNotFoundError as error:
        if not recover_folder(path.parent):
            raise _unreadable(path, error) from None
        return read_json(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing. Pass a folder created by transhash.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"Cannot read {path} ({reason}). Restore a backup or create the folder again.")


def content_digest(content: bytes) -> bytes:
    """Return the 16-byte BLAKE2b digest by which equal contents are recognized."""
    return hashlib.blake2b(content, digest_size=16).digest()


def file_digest(path: Path) -> str:
    """Return the hexadecimal BLAKE2b digest of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    write_bytes(path, save({name: np.asarray(t, order="C") for name, t in tensors.items()}))


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        check_regular(path)
        return dict(load_file(path))
    except (SafetensorError, ValueError, OSError) as error:
        raise _unreadable(path, error) from None


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that durably replaces `folder` when the block ends without error.

    At any time the name has the old folder or the new one. Where the system cannot exchange two
    folders, a kill may leave none, until `recover_folder` is called.
    """
    make_folder(folder.parent)
    _remove_abandoned(folder.parent)
    recover_folder(folder)
    draft = _draft_of(folder)
    draft.mkdir(mode=0o755)
    descriptor = -1 if sys.platform == "win32" else os.open(draft, os.O_RDONLY)
    try:
        if descriptor >= 0:
            _lock_draft(descriptor)
        yield draft
        replace_folder(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def recover_folder(folder: Path) -> bool:
    """Move a folder back that `atomic_folder` had moved away when it was killed."""
    if folder.exists():
        return False
    for old in folder.parent.glob(f".{glob.escape(folder.name)}.*.draft.old"):
        with contextlib.suppress(OSError):
            os.rename(old, folder)
            return True
    return False


def replace_folder(draft: Path, folder: Path) -> None:
    """Give a complete draft next to `folder` its name, durably, and delete the previous folder."""
    _sync_content(draft)
    old = _exchange_folders(draft, folder)
    sync_folder(folder.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _exchange_folders(draft: Path, folder: Path) -> Path | None:
    """Give the draft the folder's name; return where the previous folder is, if there was one."""
    if not folder.exists():
        os.replace(draft, folder)
        return None
    if _swap(draft, folder):
        return draft
    old = draft.with_name(f"{draft.name}.old")
    os.replace(folder, old)
    try:
        os.replace(draft, folder)
    except OSError:
        os.replace(old, folder)
        raise
    return old


def _swap(a: Path, b: Path) -> bool:
    """Exchange two names in one step; return False if the system cannot."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            rename_swap = 2
            return bool(libc.renamex_np(os.fsencode(a), os.fsencode(b), rename_swap) == 0)
        at_fdcwd, rename_exchange = -100, 2
        names = (at_fdcwd, os.fsencode(a), at_fdcwd, os.fsencode(b))
        return bool(libc.renameat2(*names, rename_exchange) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def _sync_content(folder: Path) -> None:
    for current, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(current, name)
            if not os.path.islink(path):
                with open(path, "r+b" if sys.platform == "win32" else "rb") as file:
                    os.fsync(file.fileno())
        sync_folder(Path(current))


_READ_ONLY = "open it with read_only=True"


class WriterLock:
    """Allows one writer per folder, by an advisory lock that ends with the process.

    Held from construction to `release`. A second writer gets an EngineError. A forked child does
    not inherit the lock, because two processes sharing it would overwrite each other's data.
    """

    def __init__(
        self, folder: Path, hint: str = _READ_ONLY, name: str = "writer.lock", note: str = ""
    ) -> None:
        """Lock the folder; `lock_holder` tells others the process number and the note."""
        self._folder = folder
        self._process = os.getpid()
        self._descriptor = -1
        try:
            make_folder(folder)
            with _fork_lock:
                self._descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
                _locks.add(self)
            _lock(self._descriptor)
            if not _is_at(self._descriptor, folder / name):  # deleted meanwhile
                raise BlockingIOError
        except BlockingIOError:
            process, _ = _read_lock(self._descriptor)
            self.release()
            raise EngineError(
                f"{folder} is locked by process {process or 'unknown'}. Stop that process, {hint} "
                "or choose another folder."
            ) from None
        except OSError as error:
            self.release()
            raise EngineError(
                f"Cannot write to {folder} ({error.strerror}). Change its permissions"
                f"{f', {_READ_ONLY}' if hint == _READ_ONLY else ''} or choose another folder."
            ) from None
        with contextlib.suppress(OSError):  # a full disk: only the process number is lost
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{self._process} {note}".strip().encode())

    @property
    def held(self) -> bool:
        """Whether this process may write: false after `release` and in a forked child."""
        return self._descriptor >= 0

    def check(self) -> None:
        """Raise an EngineError if this process may not write."""
        if self._process != os.getpid():
            raise EngineError(
                f"{self._folder} was opened for writing by process {self._process}. Close it "
                "there, then open it in this process."
            )
        if not self.held:
            raise EngineError(f"{self._folder} is closed. Open it again.")

    def release(self) -> None:
        if self.held:
            with contextlib.suppress(OSError):
                if self._process == os.getpid():
                    # A child forked just now may not have closed its copy yet.
                    _unlock(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release


def lock_holder(folder: Path, name: str = "writer.lock") -> tuple[str, str] | None:
    """Return process number and note of the process that has a lock, or None if none has it."""
    try:
        descriptor = os.open(folder / name, os.O_RDWR)
    except OSError:
        return None
    try:
        _lock(descriptor)
        _unlock(descriptor)
        return None
    except BlockingIOError:
        return _read_lock(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read_lock(descriptor: int) -> tuple[str, str]:
    process, _, note = os.read(descriptor, 500).decode(errors="replace").strip().partition(" ")
    return process, note


if sys.platform == "win32":
    # Locked bytes cannot be read on Windows, so lock one far behind the process number.
    _LOCK_OFFSET = 1 << 30

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCK_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError from None
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCK_OFFSET, os.SEEK_SET)
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
_fork_lock = threading.Lock()  # held during fork, so that `_locks` lists every open lock


def _release_in_child() -> None:
    _fork_lock.release()
    for lock in _locks:
        lock.release()  # closes the child's copy; the parent keeps the lock


if sys.platform != "win32":
    os.register_at_fork(
        before=_fork_lock.acquire,
        after_in_parent=_fork_lock.release,
        after_in_child=_release_in_child,
    )
