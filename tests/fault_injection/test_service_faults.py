"""A short round of each fault injection for the service; the scripts run longer ones."""

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


def test_a_killed_server_keeps_acknowledged_writes(run: Path) -> None:
    outcome = service_kills.inject_faults(run, rounds=2)
    assert outcome.acknowledged > 0
    assert (outcome.lost, outcome.not_removed, outcome.mixed) == (0, 0, 0)


def test_many_or_half_open_connections_do_not_block_others(run: Path) -> None:
    for row in service_connections.inject_faults(run, connections=300, half=60, timeout=5.0):
        statuses = {**row.get("replies", {}), **row.get("health", {}), **row.get("search", {})}
        assert {str(status).split()[-1] for status in statuses} == {"200"}, row
        before, after = row["descriptors"]
        assert after <= before + 8  # a new thread keeps a few open


def test_mixed_use_leaks_neither_memory_nor_descriptors(run: Path) -> None:
    result = service_soak.soak(run, seconds=12)
    assert set(result["statuses"]) <= service_soak.ALLOWED
    assert result["requests"] > 50
    assert result["votes"]
    assert result["syncs"] > 1
    assert result["exit"] == 0
    # A leak of one descriptor or 100 KiB per request would show.
    _, usual, last = result["descriptors"]
    assert last <= usual + 12
    _, warm, end = result["memory_mib"]
    assert end - warm < result["requests"] * 0.1
