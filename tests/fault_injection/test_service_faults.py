"""A short round of each of the service's tortures; the scripts beside this take longer ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'transhash[serve]'")

from fault_injection import service_connections, service_kills, service_soak
from service.small_run import build_run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    return Path(shutil.copytree(build_run(tmp_path_factory.getbasetemp()), tmp_path / "run"))


def test_a_killed_service_has_kept_what_it_acknowledged(run: Path) -> None:
    outcome = service_kills.torture(run, matching_rounds=2)
    assert outcome.acknowledged > 0
    assert (outcome.lost, outcome.undead, outcome.neither) == (0, 0, 0)


def test_crowds_at_the_door_keep_nobody_out(run: Path) -> None:
    for row in service_connections.torture(run, connections=300, half=60, probe_budget=1.0):
        statuses = {**row.get("answers", {}), **row.get("health", {}), **row.get("search", {})}
        assert {str(status).split()[-1] for status in statuses} == {"200"}, row
        before, after = row["descriptors"]
        assert after <= before + 8  # a thread that worked for the first time keeps a few


def test_mixed_use_leaks_neither_memory_nor_descriptors(run: Path) -> None:
    found = service_soak.soak(run, seconds=12)
    assert set(found["statuses"]) <= service_soak.ALLOWED
    assert found["requests"] > 50
    assert found["exit"] == 0
    # A leak of one descriptor or 100 KiB a request would show.
    _, usual, last = found["descriptors"]
    assert last <= usual + 12
    _, warm, end = found["memory_mib"]
    assert end - warm < found["requests"] * 0.1
