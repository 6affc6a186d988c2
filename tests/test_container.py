"""Run what the Docker image would run, without Docker."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from small_run import copy_small_run
from transhash.cli.search import serve

ROOT = Path(__file__).resolve().parents[1]


def instruction(name: str) -> list[str]:
    """Return the arguments of the last instruction of that name in the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    line = re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)[-1]
    return list(json.loads(line[line.index("[") :])) if "[" in line else shlex.split(line)


def compose_file() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_image_serves_a_run_and_has_a_health_check(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    copy_small_run(tmp_path)
    assert instruction("ENTRYPOINT") == ["transhash"]
    words = [str(tmp_path / "run") if word == "/data/run" else word for word in instruction("CMD")]
    service = subprocess.Popen(
        [sys.executable, "-u", "-m", "transhash", *words, "--port", "0"], encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert service.stdout is not None
    try:
        port = re.search(r"127\.0\.0\.1:(\d+)", service.stdout.readline())
        assert port is not None

        def is_healthy() -> bool:
            python, *rest = instruction("HEALTHCHECK")
            assert python == "python"
            arguments = [word.replace("127.0.0.1:8000", port[0]) for word in rest]
            assert arguments != rest
            check = subprocess.run([sys.executable, *arguments], capture_output=True)
            return check.returncode == 0

        end = time.monotonic() + 60  # the start period: models are loaded first
        while not is_healthy():
            assert time.monotonic() < end
            time.sleep(0.5)
        service.terminate()
        service.wait()
        assert not is_healthy()
    finally:
        service.kill()
        service.wait()
        service.stdout.close()


def test_files_copied_into_the_image_are_not_in_dockerignore() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY ((?!--from).*) \S+$", text, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line.removeprefix("!") for line in sent if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_does_not_run_as_root_and_ports_are_on_loopback() -> None:
    assert instruction("USER") != ["root"]
    services = compose_file()["services"]
    assert all(port.startswith("127.0.0.1:") for port in services["search"]["ports"])
    assert "ports" not in services["milvus"]


def test_the_compose_command_uses_existing_options() -> None:
    command, *words = compose_file()["services"]["search"]["command"]
    options = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert command == serve.__name__
    assert options <= set(serve.__annotations__)
    host, index = words[words.index("--host") + 1], words[words.index("--index") + 1]
    assert (host, index.split("/")[2]) == ("0.0.0.0", "milvus:19530")
