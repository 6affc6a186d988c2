"""Every method by its published name."""

from __future__ import annotations

from typing import Any

from transhash.errors import DataError
from transhash.hashers.base import Hasher
from transhash.hashers.cvh import CVH
from transhash.hashers.dcmh import DCMH
from transhash.hashers.hth import HTH
from transhash.hashers.imh import IMH
from transhash.hashers.qch import QCH
from transhash.hashers.thn import PAPER, THN

__all__ = ["CVH", "DCMH", "HTH", "IMH", "METHODS", "QCH", "THN", "Hasher", "make_hasher"]

# A method is a class and the settings that make it what the paper calls by that name.
_KINDS: dict[str, tuple[type[Hasher], dict[str, Any]]] = {
    "THN": (THN, {}),
    "THN-ip": (THN, {"loss": "inner-product"}),
    "THN-D": (THN, {"use_target": False, "alignment_weight": 0.0}),
    "THN-Q": (THN, {"quantization_weight": 0.0}),
    "CVH": (CVH, {}),
    "IMH": (IMH, {}),
    "QCH": (QCH, {}),
    "HTH": (HTH, {}),
    "DCMH": (DCMH, {}),
}
METHODS: tuple[str, ...] = tuple(_KINDS)
_KINDS["THN-paper"] = (THN, PAPER)  # as printed; kept beside the nine of the paper's tables


def make_hasher(method: str, **settings: Any) -> Hasher:
    """The method of that name (any case), unfitted; unknown settings are refused by name."""
    by_name = {name.lower(): name for name in _KINDS}
    if method.lower() not in by_name:
        raise DataError(f"there is no method {method!r}; use one of {', '.join(METHODS)}")
    kind, fixed = _KINDS[by_name[method.lower()]]
    known = set(kind.__dataclass_fields__)
    for name in settings:
        if name not in known:
            raise DataError(
                f"{kind.name} has no setting {name!r}; it has {', '.join(sorted(known))}"
            )
    if kind is THN and fixed is PAPER:
        return kind(**{**fixed, **settings})  # a starting point, not a definition
    return kind(**{**settings, **fixed})
