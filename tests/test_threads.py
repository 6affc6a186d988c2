"""Threads follow the CPUs that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

from transhash.errors import DataError
from transhash.threads import cgroup_quota, cpu_count, limit_threads


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize(
    ("content", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("nonsense", None)]
)
def test_a_version_2_cgroup_limits_cpus(tmp_path: Path, content: str, quota: float | None) -> None:
    write(tmp_path / "cpu.max", content)
    assert cgroup_quota(tmp_path) == quota


@pytest.mark.parametrize(("limit", "quota"), [("50000", 0.5), ("-1", None)])
def test_a_version_1_cgroup_limits_cpus(tmp_path: Path, limit: str, quota: float | None) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", limit + "\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("membership", "file"),
    [("0::/user.slice/job\n", "user.slice/cpu.max"), ("4:cpu,cpuacct:/a/b\n", "cpu/a/b/cpu.max")],
)
def test_the_groups_above_a_process_limit_cpus_too(
    tmp_path: Path, membership: str, file: str
) -> None:
    write(tmp_path / "cpu.max", "800000 100000\n")
    write(tmp_path / file, "200000 100000\n")
    write(tmp_path / "membership", membership)
    assert cgroup_quota(tmp_path, tmp_path / "membership") == 2
    write(tmp_path / "membership", "0::/other\n")
    assert cgroup_quota(tmp_path, tmp_path / "membership") == 8


def test_a_quota_below_one_cpu_is_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cpu.max", "20000 100000\n")
    monkeypatch.setattr("transhash.threads._CGROUP", tmp_path)
    assert cpu_count() == 1


def test_the_variable_wins_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSHASH_THREADS", "7")
    assert cpu_count() == 7
    for value in ("0", "-1", "two"):
        monkeypatch.setenv("TRANSHASH_THREADS", value)
        with pytest.raises(DataError, match="TRANSHASH_THREADS"):
            cpu_count()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_affinity_limits_cpus() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}}); "
        "from transhash.threads import cpu_count; print(cpu_count())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


def test_libraries_are_limited_together_and_restored() -> None:
    before = torch.get_num_threads()
    with limit_threads(1):
        assert torch.get_num_threads() == 1
        assert all(pool["num_threads"] == 1 for pool in threadpool_info())
    assert torch.get_num_threads() == before


def run_after_a_command(code: str, threads: str) -> subprocess.CompletedProcess[str]:
    """Run `transhash --version`, then `code` in the same process."""
    limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in limits}
    start = (
        "import sys; sys.argv = ['transhash', '--version']\n"
        "from transhash.cli import main\n"
        "try: main()\nexcept SystemExit as stop:\n    if stop.code: raise\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + code],
        env=environment | {"TRANSHASH_THREADS": threads}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.skipif(os.cpu_count() == 1, reason="libraries use one thread anyway")
def test_a_command_limits_all_libraries_that_it_loads() -> None:
    run = run_after_a_command(
        "import faiss, numpy, torch\n"
        "from threadpoolctl import threadpool_info\n"
        "pools = [(pool['user_api'], pool['num_threads']) for pool in threadpool_info()]\n"
        "print(torch.get_num_threads(), *sorted(pools))\n",
        threads="1",
    )
    assert run.returncode == 0, run.stderr
    openmp, blas = "('openmp', 1)", "('blas', 1)"  # of NumPy and FAISS, and of torch and FAISS
    assert run.stdout.splitlines()[-1] == f"1 {blas} {blas} {openmp} {openmp}"


def test_a_command_explains_an_invalid_number_of_threads() -> None:
    run = run_after_a_command("", "two")
    assert run.returncode == 2
    assert "TRANSHASH_THREADS must be a positive integer, got 'two'. Unset it." in run.stderr
    assert "Traceback" not in run.stderr
