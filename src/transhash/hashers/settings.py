"""What each setting of a method may be, read from its annotation and checked in one place.

    dropout: Annotated[float, Range(0, 1, exclusive_high=True)]
    loss: Literal["cross-entropy", "inner-product"]
    rank: PositiveInt | None
    kernel_widths: Annotated[tuple[Positive, ...], MinLength(1)]

Only these kinds are known: numbers with a range, words, true or false, texts, None, tuples of one
kind. Not a number and infinity are no numbers here.
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
    """Numbers from `low` to `high`, which may themselves be left out."""

    low: float = -math.inf
    high: float = math.inf
    exclusive_low: bool = False  # `low` itself is left out
    exclusive_high: bool = False  # `high` itself is left out

    def holds(self, value: float) -> bool:
        over = value > self.low if self.exclusive_low else value >= self.low
        return over and (value < self.high if self.exclusive_high else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.exclusive_low else f"of {self.low:g} or more"
        start = f"above {self.low:g}" if self.exclusive_low else f"from {self.low:g}"
        return f"{start} to {'below ' if self.exclusive_high else ''}{self.high:.10g}"


@dataclass(frozen=True)
class MinLength:
    """How many items a tuple has at least."""

    minimum: int

    def holds(self, value: Sequence[Any]) -> bool:
        return len(value) >= self.minimum

    def __str__(self) -> str:
        return f"{self.minimum} or more of them"


Positive = Annotated[float, Range(0, exclusive_low=True)]
NonNegative = Annotated[float, Range(0)]
Proportion = Annotated[float, Range(0, 1)]
ProportionBelowOne = Annotated[float, Range(0, 1, exclusive_high=True)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveInt = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Widths = tuple[PositiveInt, ...]


def check_settings(owner: DataclassInstance) -> None:
    """Every field of `owner` as its annotation wants it, or a DataError that says what it takes.

    Numbers of NumPy become Python's, lists become tuples, whole floats whole numbers.
    """
    for name, hint in _hints(type(owner)).items():
        value = getattr(owner, name)
        try:
            converted = _converted(hint, value)
            if repr(converted) != repr(value):  # what is right stays itself, as `clone` asks
                setattr(owner, name, converted)
        except _WrongError:
            raise DataError(f"{name} takes {_describe(hint)}, got {_shown(value)}") from None


class _WrongError(ValueError):
    pass


@cache
def _hints(kind: type[DataclassInstance]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _converted(hint: Any, value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = _converted(parts[0], value)
        if all(rule.holds(value) for rule in parts[1:]):
            return value
    elif origin in (Union, UnionType):
        for part in parts:
            try:
                return _converted(part, value)
            except _WrongError:
                continue
    elif origin is Literal:
        if isinstance(value, str) and value in parts:
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_converted(parts[0], item) for item in value)
    elif hint is str:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
    elif hint is bool or hint is NoneType:
        if isinstance(value, hint):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _number(hint, value)
    raise _WrongError


def _number(hint: Any, value: float) -> float:
    try:
        number = float(value)  # a whole number of 400 digits is no float
    except OverflowError:
        raise _WrongError from None
    if not math.isfinite(number) or (hint is int and not number.is_integer()):
        raise _WrongError
    return int(value) if hint is int else number


def _describe(hint: Any, many: bool = False) -> str:
    """What a setting takes, as it stands in a sentence."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(parts[1], MinLength):
        return f"{_describe(parts[0])}, {parts[1]}"
    if origin is Annotated:
        return f"{_describe(parts[0], many)} {parts[1]}"
    if origin in (Union, UnionType):
        return ", or ".join(_describe(part, many) for part in parts)
    if origin is Literal:
        return " or ".join([", ".join(parts[:-1]), parts[-1]])
    if origin is tuple:
        return f"a list of {_describe(parts[0], many=True)}"
    if hint in (int, float):
        kind = "whole number" if hint is int else "number"
        return f"{kind}s" if many else f"a {kind}"
    return {str: "a text", bool: "true or false", NoneType: "null (None)"}[hint]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not print whole numbers of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 80 else f"{text[:77]}..."
