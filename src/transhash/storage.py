"""Files that are either whole or not there: write beside, sync, rename; one writer a folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from transhash.errors import DataError, EngineError

if sys.platform != "win32":
    import fcntl


def write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide a shared run from its other readers
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; is {path.parent} a folder transhash wrote?") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); write the folder anew") from None


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    write_bytes(path, save({name: np.asarray(t, order="C") for name, t in tensors.items()}))


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; is {path.parent} a folder transhash wrote?") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); write the folder anew") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
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


class WriterLock:
    """One writer a folder: an advisory lock that the system drops when the process ends.

    Held from construction to `release`; a second writer is refused with a sentence.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise EngineError(
                f"cannot write to {folder} ({error.strerror}); open it with read_only=True or "
                "choose another folder"
            ) from None
        if sys.platform == "win32":  # no flock there: keeping to one writer is left to the user
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise EngineError(
                f"{folder} is being written by process {holder or 'unknown'}; close it there, "
                "or open it here with read_only=True"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
