"""`transhash serve` in a process of its own, to be starved, stopped, killed and started again."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

# The command itself, with shorter patience where a test would wait for it to end.
_COMMAND = """
import sys
from transhash.service import limits
limits.HEAD_SECONDS, limits.STALL_SECONDS = {head}, {stall}
from transhash.cli import main
main()
"""


class Served:
    """A served run; `files` is the number of file descriptors the process may have."""

    def __init__(
        self,
        run: Path,
        *options: str,
        files: int | None = None,
        head: float = 10.0,
        stall: float = 10.0,
    ) -> None:
        self.run, self.options, self.files = run, options, files
        self.code = _COMMAND.format(head=head, stall=stall)
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", self.code, "serve", str(self.run)]
        command += ["--port", str(self.port), *self.options]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `complaints`)
        # Only where needed: with it Python forks, which threads of gRPC here do not outlive.
        prepare = None if self.files is None else self._starve
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, preexec_fn=prepare
        )
        assert self.process.stdout is not None
        said = re.search(r"(http://\S+:(\d+)/)(\S*)", self.process.stdout.readline())
        assert said, self.complaints()
        self.url, self.port, self.fragment = said[1], int(said[2]), said[3]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(how)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def complaints(self) -> str:
        """What it wrote to standard error since it started."""
        self._log.seek(0)
        return self._log.read()

    def memory(self) -> int:
        """KiB in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _starve(self) -> None:
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
