"""A real Milvus server from the PyPI wheel `milvus`, to be started, killed and started again.

python tests/scale/milvus_server.py FOLDER       # one to try things on, until Ctrl-C
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMPONENTS = (
    "rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode",
)  # fmt: skip
TOKEN = "root:Milvus"  # what a new server with authorization knows
_HEALTH = 9091


class NoFence(Exception):
    """This machine gives us no network namespace to keep the server in."""


def fence() -> list[str]:
    """The command that gives another one interfaces and mounts of its own, root or not."""
    said = ""
    for options in (["--map-root-user"], []):  # user namespaces may be off; root needs none
        command = ["unshare", *options, "--net", "--mount"]
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, text=True)
        except OSError as error:
            raise NoFence(str(error)) from None
        if tried.returncode == 0:
            return command
        said = said or tried.stderr.strip()
    raise NoFence(said)


class MilvusServer:
    """Standalone, all data under one folder; `url` stays the same over restarts.

    Any number of them may run: ports other than the one of `url` are in a namespace each.
    """

    def __init__(self, folder: Path, programs: Path, fence: Sequence[str]) -> None:
        import milvus

        with (programs / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # 250 MB to unpack: once a machine, not once a test.
            milvus._initialize_data_files(str(programs))
        self.folder, self.programs, self._fence = folder, programs, fence
        config: Any = milvus.MilvusServerConfig(data_dir=str(folder))
        for component in COMPONENTS:  # else it announces the address of an interface it lacks
            config.set(f"{component}.ip", "127.0.0.1")
        config.set("authorization_enabled", True)
        config.resolve()
        self._inside = int(config.get("proxy_port"))
        # Bound but never listening: the port stays ours, and refuses while the server is away.
        self._reserved = _bound(0)
        self.port = int(self._reserved.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the server itself, inside the fence

    @property
    def url(self) -> str:
        return f"milvus:http://127.0.0.1:{self.port}"

    def start(self, wait: float = 300.0) -> None:
        library = f"{self.programs / 'bin'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(_HEALTH),
            "LD_LIBRARY_PATH": library,
        }
        script = Path(__file__).with_name("fence.py")
        with (self.folder / "server.log").open("ab") as log, _bound(self.port) as outside:
            self.process = subprocess.Popen(
                [
                    *self._fence, sys.executable, "-IS", script,
                    str(outside.fileno()), str(self._inside), str(_HEALTH),
                    self.programs / "bin" / "milvus", "run", "standalone",
                ],
                cwd=self.folder, env=environment, pass_fds=[outside.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then end the server
            )  # fmt: skip
        assert self.process.stdout is not None
        try:
            heard, _, _ = select.select([self.process.stdout], [], [], wait)
            said = self.process.stdout.readline() if heard else b""
            if not said:
                what = "ended" if heard else f"was not ready within {wait:.0f} s"
                raise RuntimeError(f"the Milvus server {what}; its last words:\n{self.log()}")
        except BaseException:
            self.stop()
            raise
        self.pid = int(said)

    def kill(self) -> None:
        """As a power cut would: no chance to write anything."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """The fence ends when its standard input does, after the server."""
        if self.process is not None:
            self.process.communicate()
            self.process = None

    def close(self) -> None:
        self.stop()
        self._reserved.close()

    def log(self, lines: int = 40) -> str:
        """The last of what it said, less its chatter."""
        text = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")
        said = [s for s in text.splitlines() if "[DEBUG]" not in s and "[INFO]" not in s]
        return "\n".join(said[-lines:])


def _bound(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for part in ("data", "programs"):
        (place / part).mkdir(parents=True, exist_ok=True)
    server = MilvusServer(place / "data", place / "programs", fence())
    server.start()
    print(f"{server.url} MILVUS_TOKEN={TOKEN}", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        server.close()
