"""A real Milvus server from the PyPI wheel `milvus` that can be killed and restarted.

python tests/scale/milvus_server.py FOLDER       # start one, until Ctrl-C
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
TOKEN = "root:Milvus"  # the default of a new server with authorization
_HEALTH = 9091


class NoIsolation(Exception):
    """This machine does not allow a network namespace for the server."""


def isolation_command() -> list[str]:
    """Return a prefix that runs a command in its own network and mount namespace."""
    message = ""
    for options in (["--map-root-user"], []):  # user namespaces may be off; root needs none
        command = ["unshare", *options, "--net", "--mount"]
        try:
            result = subprocess.run([*command, "true"], capture_output=True, text=True)
        except OSError as error:
            raise NoIsolation(str(error)) from None
        if result.returncode == 0:
            return command
        message = message or result.stderr.strip()
    raise NoIsolation(message)


class MilvusServer:
    """A standalone server with all data in one folder; `url` is the same after a restart.

    Several can run at once: all ports except the one of `url` are in a separate namespace.
    """

    def __init__(self, folder: Path, programs: Path, isolation: Sequence[str]) -> None:
        import milvus

        with (programs / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # 250 MB to unpack: once per machine, not per test.
            milvus._initialize_data_files(str(programs))
        self.folder, self.programs, self._isolation = folder, programs, isolation
        config: Any = milvus.MilvusServerConfig(data_dir=str(folder))
        for (
            component
        ) in COMPONENTS:  # else it announces the address of an interface it does not have
            config.set(f"{component}.ip", "127.0.0.1")
        config.set("authorization_enabled", True)
        config.resolve()
        self._inside = int(config.get("proxy_port"))
        # Bound but never listening: the port stays reserved and refuses while the server is down.
        self._reserved = _bound(0)
        self.port = int(self._reserved.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the server itself

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
                    *self._isolation, sys.executable, "-IS", script,
                    str(outside.fileno()), str(self._inside), str(_HEALTH),
                    self.programs / "bin" / "milvus", "run", "standalone",
                ],
                cwd=self.folder, env=environment, pass_fds=[outside.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C goes to the tests, which then stop the server
            )  # fmt: skip
        assert self.process.stdout is not None
        try:
            ready, _, _ = select.select([self.process.stdout], [], [], wait)
            line = self.process.stdout.readline() if ready else b""
            if not line:
                problem = "ended" if ready else f"was not ready within {wait:.0f} s"
                raise RuntimeError(f"The Milvus server {problem}. Its log:\n{self.log()}")
        except BaseException:
            self.stop()
            raise
        self.pid = int(line)

    def kill(self) -> None:
        """Kill the server like a power failure: it cannot write anything."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Close the standard input of fence.py, which then stops the server."""
        if self.process is not None:
            self.process.communicate()
            self.process = None

    def close(self) -> None:
        self.stop()
        self._reserved.close()

    def log(self, lines: int = 40) -> str:
        """Return the last warnings and errors of its log."""
        text = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")
        entries = [s for s in text.splitlines() if "[DEBUG]" not in s and "[INFO]" not in s]
        return "\n".join(entries[-lines:])


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for part in ("data", "programs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    server = MilvusServer(folder / "data", folder / "programs", isolation_command())
    server.start()
    print(f"{server.url} MILVUS_TOKEN={TOKEN}", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        server.close()
