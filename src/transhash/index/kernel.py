"""Finds the native kernel, and says which one is in use and why."""

from __future__ import annotations

import importlib
import os
from typing import Any

SWITCH = "TRANSHASH_NATIVE"  # "0": never; a kernel's name: that one; unset: the fastest here


def _load() -> tuple[Any, str]:
    wanted = os.environ.get(SWITCH, "auto")
    if wanted == "0":
        return None, f"{SWITCH}=0 turns the native kernel off"
    try:
        native = importlib.import_module("transhash.index._hamming")
    except ImportError as error:
        remedy = "install a C compiler and then transhash again"
        return None, f"the native kernel is not there ({error}); {remedy}"
    try:
        name = native.use(wanted if wanted != "1" else "auto")
    except ValueError as error:
        return native, f"native kernel {native.use('')} ({SWITCH}={wanted} was ignored: {error})"
    reason = "the fastest this CPU has" if wanted in ("auto", "1") else f"set by {SWITCH}"
    return native, f"native kernel {name} ({reason})"


native, _reason = _load()


def kernel_status() -> str:
    """One sentence for `transhash doctor`."""
    if native is None:
        return f"Hamming search scans with FAISS, a few times slower: {_reason}."
    return f"Hamming search scans with the {_reason}."


def core_count() -> int:
    """Cores this process may use, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
