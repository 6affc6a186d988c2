"""`transhash serve` as a process that tests limit, stop, kill and start again."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import httpx

# The command itself, with shorter timeouts where a test would wait for them. Requests wait for the
# model almost as long as for their reply, because a busy machine may need that to load it.
_COMMAND = """
import sys
from transhash.service import limits, warm_up
warm_up._WAIT_SECONDS = 25.0
limits.HEAD_SECONDS, limits.STALL_SECONDS = {head}, {stall}
from transhash.cli import main
main()
"""


def wait_until_ready(url: str) -> None:
    """Wait for a server that replies with 503 while it loads its model."""
    end = time.monotonic() + 300
    while (reply := httpx.get(f"{url}ready", timeout=60)).status_code in (503, 504):
        assert "loading" in reply.text or reply.status_code == 504, reply.text
        assert time.monotonic() < end, "the server did not become ready"
        time.sleep(0.1)
    assert reply.status_code == 200, reply.text


class ServerProcess:
    """A running server; `files` limits the file descriptors of the process."""

    def __init__(
        self,
        run: Path,
        *options: str,
        files: int | None = None,
        head: float = 10.0,
        stall: float = 10.0,
        read_key: str = "",
        write_key: str = "",
    ) -> None:
        self.run, self.options, self.files = run, options, files
        self.keys = {"TRANSHASH_READ_KEY": read_key, "TRANSHASH_WRITE_KEY": write_key}
        self.code = _COMMAND.format(head=head, stall=stall)
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", self.code, "serve", str(self.run)]
        command += ["--port", str(self.port), *self.options]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `__exit__`)
        # Only if needed: with preexec_fn Python forks, which gRPC threads do not survive.
        prepare = None if self.files is None else self._limit_files
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=prepare,
            env=os.environ | self.keys,
        )
        assert self.process.stdout is not None
        link = re.search(r"(http://\S+:(\d+)/)(\S*)", self.process.stdout.readline())
        assert link, self.stderr()
        self.url, self.port, self.fragment = link[1], int(link[2]), link[3]

    def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> int:
        """Stop the server and return its exit code."""
        self.process.send_signal(stop_signal)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stderr(self) -> str:
        """Return what the server wrote to standard error."""
        self._log.seek(0)
        return self._log.read()

    def memory(self) -> int:
        """Return the resident memory in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _limit_files(self) -> None:
        if self.files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
