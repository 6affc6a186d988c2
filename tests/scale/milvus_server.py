"""A real Milvus server from the PyPI wheel `milvus`, to be started, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

COMPONENTS = (
    "rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode",
)  # fmt: skip


class MilvusServer:
    """Standalone, all data under one folder; `url` stays the same over restarts."""

    def __init__(self, folder: Path, programs: Path) -> None:
        import milvus

        # 250 MB to unpack: once a machine, not once a test.
        milvus._initialize_data_files(str(programs))
        self.folder, self.programs = folder, programs
        config: Any = milvus.MilvusServerConfig(data_dir=str(folder))
        for component in COMPONENTS:  # the parts of the server speak over loopback only
            config.set(f"{component}.ip", "127.0.0.1")
        config.resolve()
        self.port = int(config.get("proxy_port"))
        self.health, socket = config.resolve_port(9091)
        socket.close()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"milvus:http://127.0.0.1:{self.port}"

    def start(self, wait: float = 180.0) -> None:
        library = f"{self.programs / 'bin'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self.health),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": library,
        }
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "bin" / "milvus", "run", "standalone"],
                cwd=self.folder, env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended; see {self.folder / 'server.log'}")
            try:
                address = f"http://127.0.0.1:{self.health}/healthz"
                with urllib.request.urlopen(address, timeout=5) as answer:
                    if b"OK" in answer.read():
                        return
            except OSError:
                pass
            time.sleep(0.2)
        self.kill()
        raise TimeoutError(f"the server was not ready within {wait:.0f} s")

    def kill(self) -> None:
        """As a power cut would: no chance to write anything."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
