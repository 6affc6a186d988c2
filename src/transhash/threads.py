"""How many CPUs this process may use, and limits for the libraries that start threads.

Threads of OpenMP and BLAS wait for each other by spinning. Where other programs use the cores, that
costs many times what a second thread gains on small matrices, so training uses one thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from transhash.errors import DataError

THREADS_VARIABLE = "TRANSHASH_THREADS"
_LIBRARY_VARIABLES = (  # OpenMP (torch, FAISS), BLAS, and the tokenizers of Hugging Face
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_count() -> int:
    """Return the CPUs this process may use: $TRANSHASH_THREADS, else affinity and cgroup quota."""
    if value := os.environ.get(THREADS_VARIABLE):
        if not value.isdecimal() or not int(value):
            raise DataError(
                f"{THREADS_VARIABLE} must be a positive integer, got {value!r}. Unset it."
            )
        return int(value)
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    quota = cgroup_quota(_CGROUP)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cgroup_quota(root: Path, membership: Path = _MEMBERSHIP) -> float | None:
    """Return the CPUs that the cgroups of this process (version 2 or 1) allow, or None.

    Every group up to the root has a limit of its own. In a container the root is the container's.
    """
    quotas = [_quota_of(root), _quota_of(root / "cpu")]
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                mount = root / "cpu" if controllers else root
                group = mount / path.lstrip("/")
                quotas += [_quota_of(part) for part in (group, *group.parents) if part != mount]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    if not (limit.isdecimal() and period.isdecimal() and int(limit) and int(period)):
        return None  # "max", or -1
    return int(limit) / int(period)


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Let OpenMP, BLAS and torch use at most `count` threads inside the block."""
    from threadpoolctl import threadpool_limits  # searches start without it

    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with threadpool_limits(count):
        if torch is not None:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


class _BlasLimit:
    """How many blocks of `single_blas_thread` are active, and what ends the limit."""

    lock = threading.Lock()
    blocks = 0
    limiter: Any = None


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread while any thread of the process is inside such a block.

    The limit is one of the whole process: a block that restored it on its own would end the limit
    of the others, or make its own permanent.
    """
    with _BlasLimit.lock:
        if not _BlasLimit.blocks:
            _BlasLimit.limiter = _blas_libraries().limit(limits=1, user_api="blas")
        _BlasLimit.blocks += 1
    try:
        yield
    finally:
        with _BlasLimit.lock:
            _BlasLimit.blocks -= 1
            if not _BlasLimit.blocks:
                _BlasLimit.limiter.restore_original_limits()


@cache
def _blas_libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # searching for the libraries takes 10 ms


def configure_libraries() -> None:
    """Give numeric libraries `cpu_count()` threads, which sleep while they wait.

    Call it before these libraries are loaded. Variables that are set already stay.
    """
    threads = str(cpu_count())
    for name in _LIBRARY_VARIABLES:
        os.environ.setdefault(name, threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
