"""What the image would run, run here: no Docker is needed, and none is used."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from small_run import copy_small_run
from transhash.cli.search import serve

ROOT = Path(__file__).resolve().parents[1]


def instruction(name: str) -> list[str]:
    """The words of the last instruction of that name in the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)[-1]
    return list(json.loads(found[found.index("[") :])) if "[" in found else shlex.split(found)


def composed() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_image_serves_a_run_and_its_health_check_tells_whether_it_does(tmp_path: Path) -> None:
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

        def healthy() -> bool:
            python, *rest = instruction("HEALTHCHECK")
            assert python == "python"
            asked = [word.replace("127.0.0.1:8000", port[0]) for word in rest]
            assert asked != rest
            done = subprocess.run([sys.executable, *asked], capture_output=True)
            return done.returncode == 0

        assert healthy()
        service.terminate()
        service.wait()
        assert not healthy()
    finally:
        service.kill()
        service.wait()
        service.stdout.close()


def test_what_is_copied_into_the_image_is_not_left_out_of_what_docker_is_sent() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY ((?!--from).*) \S+$", text, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line.removeprefix("!") for line in sent if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_nobody_runs_as_root_and_only_this_machine_reaches_the_service() -> None:
    assert instruction("USER") != ["root"]
    services = composed()["services"]
    assert all(port.startswith("127.0.0.1:") for port in services["search"]["ports"])
    assert "ports" not in services["milvus"]


def test_the_composed_service_is_asked_for_what_the_command_line_knows() -> None:
    command, *words = composed()["services"]["search"]["command"]
    options = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert command == serve.__name__
    assert options <= set(serve.__annotations__)
    host, index = words[words.index("--host") + 1], words[words.index("--index") + 1]
    assert (host, index.split("/")[2]) == ("0.0.0.0", "milvus:19530")
