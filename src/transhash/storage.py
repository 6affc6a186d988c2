"""Files that are either whole or not there: write beside, sync, rename."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from transhash.errors import DataError


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
