"""One writer a folder: an advisory lock that the system drops when the process ends."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from transhash.errors import EngineError

if sys.platform != "win32":
    import fcntl


class WriterLock:
    """Held from construction to `release`; a second writer is refused with a sentence."""

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
