"""Short versions of power_loss.py: what was reported survives a power failure."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from power_loss import SCENARIOS, cut_power


def has_strace() -> bool:
    """Return whether strace is installed and may trace."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_strace(), reason="needs strace (apt-get install strace) and ptrace"),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_reported_survives_a_power_failure(scenario: str, tmp_path: Path) -> None:
    tally = cut_power(tmp_path.resolve(), scenario, states=40)
    assert tally.acknowledged
    assert tally.calls > 100  # the recording is not empty
