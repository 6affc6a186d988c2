"""Checks settings of methods against the annotations of their dataclass fields.

    dropout: Annotated[float, Range(0, 1, exclusive_high=True)]
    loss: Literal["cross-entropy", "inner-product"]
    rank: PositiveInt | None
    kernel_widths: Annotated[tuple[Positive, ...], MinLength(1)]

Supported are numbers with a range, literal strings, bool, str, None and tuples of one type. NaN and
infinity are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from transhash.errors import DataError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, each bound included unless exclusive."""

    low: float = -math.inf
    high: float = math.inf
    exclusive_low: bool = False
    exclusive_high: bool = False

    def allows(self, value: float) -> bool:
        above = value > self.low if self.exclusive_low else value >= self.low
        return above and (value < self.high if self.exclusive_high else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.exclusive_low else f"of {self.low:g} or more"
        start = f"above {self.low:g}" if self.exclusive_low else f"from {self.low:g}"
        return f"{start} to {'below ' if self.exclusive_high else ''}{self.high:.10g}"


@dataclass(frozen=True)
class MinLength:
    """Tuples of at least `minimum` items."""

    minimum: int

    def allows(self, value: Sequence[Any]) -> bool:
        return len(value) >= self.minimum

    def __str__(self) -> str:
        return f"at least {self.minimum} of them"


Positive = Annotated[float, Range(0, exclusive_low=True)]
NonNegative = Annotated[float, Range(0)]
Proportion = Annotated[float, Range(0, 1)]
ProportionBelowOne = Annotated[float, Range(0, 1, exclusive_high=True)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveInt = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Widths = tuple[PositiveInt, ...]


def check_settings(owner: DataclassInstance) -> None:
    """Check every field of `owner` against its annotation, or raise a DataError.

    NumPy numbers become Python numbers, lists become tuples, and integral floats become integers.
    """
    for name, hint in _hints(type(owner)).items():
        value = getattr(owner, name)
        try:
            converted = _convert(hint, value)
        except _InvalidValueError:
            raise DataError(
                f"{name} must be {_describe(hint)}, got {_short_repr(value)}."
            ) from None
        if repr(converted) != repr(value):  # scikit-learn's clone needs the same object otherwise
            setattr(owner, name, converted)


class _InvalidValueError(ValueError):
    pass


@cache
def _hints(owner_class: type[DataclassInstance]) -> dict[str, Any]:
    hints = get_type_hints(owner_class, include_extras=True)
    return {field.name: hints[field.name] for field in fields(owner_class)}


def _convert(hint: Any, value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = _convert(parts[0], value)
        if all(rule.allows(value) for rule in parts[1:]):
            return value
    elif origin in (Union, UnionType):
        for part in parts:
            try:
                return _convert(part, value)
            except _InvalidValueError:
                continue
    elif origin is Literal:
        if isinstance(value, str) and value in parts:
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(parts[0], item) for item in value)
    elif hint is str:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
    elif hint is bool or hint is NoneType:
        if isinstance(value, hint):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _to_number(hint, value)
    raise _InvalidValueError


def _to_number(hint: Any, value: float) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer of 400 digits
        raise _InvalidValueError from None
    if not math.isfinite(number) or (hint is int and not number.is_integer()):
        raise _InvalidValueError
    return int(value) if hint is int else number


def _describe(hint: Any, plural: bool = False) -> str:
    """Return what a setting accepts, to complete "must be ..."."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(parts[1], MinLength):
        return f"{_describe(parts[0])}, {parts[1]}"
    if origin is Annotated:
        return f"{_describe(parts[0], plural)} {parts[1]}"
    if origin in (Union, UnionType):
        return ", or ".join(_describe(part, plural) for part in parts)
    if origin is Literal:
        return " or ".join([", ".join(parts[:-1]), parts[-1]])
    if origin is tuple:
        return f"a list of {_describe(parts[0], plural=True)}"
    if hint in (int, float):
        noun = "integer" if hint is int else "number"
        return f"{noun}s" if plural else f"{'an' if hint is int else 'a'} {noun}"
    return {str: "a string", bool: "true or false", NoneType: "null (None)"}[hint]


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 80 else f"{text[:77]}..."
