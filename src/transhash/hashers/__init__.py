"""Every method by its published name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transhash.hashers.methods import (
    METHODS,
    PAPER_METHODS,
    find_method,
    make_hasher,
    make_method,
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
    "METHODS",
    "PAPER_METHODS",
    "QCH",
    "THN",
    "Hasher",
    "Learner",
    "Scorer",
    "find_method",
    "make_hasher",
    "make_method",
]


def __getattr__(name: str) -> Any:
    """Classes are imported when first used: who only reads the list needs no torch."""
    if name in ("Hasher", "Learner", "Scorer"):
        return getattr(import_module("transhash.hashers.base"), name)
    for method in METHODS:
        if method.class_path.endswith(f".{name}"):
            return method.hasher_class
    raise AttributeError(f"module 'transhash.hashers' has no attribute {name!r}")
