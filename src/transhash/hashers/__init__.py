"""Every method by its published name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transhash.hashers.methods import (
    KNOWN,
    METHODS,
    find_method,
    make_hasher,
    make_learner,
)

if TYPE_CHECKING:
    from transhash.hashers.base import Hasher, Learner, Scorer
    from transhash.hashers.cvh import CVH
    from transhash.hashers.dcmh import DCMH
    from transhash.hashers.hth import HTH
    from transhash.hashers.imh import IMH
    from transhash.hashers.qch import QCH
    from transhash.hashers.thn import THN

__all__ = [
    "CVH",
    "DCMH",
    "HTH",
    "IMH",
    "KNOWN",
    "METHODS",
    "QCH",
    "THN",
    "Hasher",
    "Learner",
    "Scorer",
    "find_method",
    "make_hasher",
    "make_learner",
]


def __getattr__(name: str) -> Any:
    """Classes are imported when first used: who only reads the list needs no torch."""
    if name in ("Hasher", "Learner", "Scorer"):
        return getattr(import_module("transhash.hashers.base"), name)
    for method in KNOWN:
        if method.home.endswith(f".{name}"):
            return method.kind
    raise AttributeError(f"module 'transhash.hashers' has no attribute {name!r}")
