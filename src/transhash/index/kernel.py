"""Loads the native kernel and reports which variant is in use and why."""

from __future__ import annotations

import importlib
import os
from typing import Any

SWITCH = "TRANSHASH_NATIVE"  # "0": off; a variant's name: that one; unset: the fastest


def _load() -> tuple[Any, str]:
    variant = os.environ.get(SWITCH, "auto")
    if variant == "0":
        return None, f"{SWITCH}=0 turns the native kernel off"
    try:
        native = importlib.import_module("transhash.index._hamming")
    except ImportError as error:
        hint = "Install a C compiler and reinstall transhash"
        return None, f"the native kernel is not built ({error}). {hint}"
    try:
        name = native.use(variant if variant != "1" else "auto")
    except ValueError as error:
        return native, f"native kernel {native.use('')} ({SWITCH}={variant} was ignored: {error})"
    reason = "the fastest on this CPU" if variant in ("auto", "1") else f"set by {SWITCH}"
    return native, f"native kernel {name} ({reason})"


native, _reason = _load()


def kernel_status() -> str:
    """Return one sentence for `transhash doctor`."""
    if native is None:
        return f"Hamming search uses FAISS, which is a few times slower: {_reason}."
    return f"Hamming search uses the {_reason}."
