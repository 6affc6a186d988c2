"""Experiments in TOML: methods, code lengths, seeds and settings, checked before the first fit."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from transhash.codes import check_bits
from transhash.data.benchmark import SplitSizes, Supervision
from transhash.errors import DataError
from transhash.hashers import METHODS, find_method, make_method
from transhash.hashers.base import Setting
from transhash.hashers.settings import (
    MinLength,
    NonNegativeInt,
    PositiveInt,
    Seed,
    check_settings,
)
from transhash.storage import read_regular
from transhash.training.fine_tune import FineTuningRequest

_TRIALS = 8  # per method with tune = true; the paper does not describe its search
_TEACHER_BITS = 32  # one backbone per split serves all code lengths
_LABELS = {method.name: method.label for method in METHODS}


class MethodSpec(NamedTuple):
    """A method, and the teacher of its fine-tuned backbone, None with frozen features."""

    method: str
    teacher: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Parse METHOD or METHOD@TEACHER in any case."""
        method, at, teacher = text.partition("@")
        return cls(find_method(method).name, find_method(teacher).name if at else None)

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        label = _LABELS.get(self.method, self.method)
        if self.teacher is None:
            return label
        if self.teacher == self.method:
            return f"{label}, fine-tuned"
        return f"{label}, on {self.teacher}'s fine-tuned backbone"

    def __str__(self) -> str:
        return self.method if self.teacher is None else f"{self.method}@{self.teacher}"


@dataclass(frozen=True)
class Cell:
    """One number of a table: method, teacher, code length, and the seed of split and fit."""

    method: str
    teacher: str | None
    bits: int
    seed: int

    @property
    def spec(self) -> MethodSpec:
        return MethodSpec(self.method, self.teacher)

    @property
    def folder_name(self) -> str:
        return f"{self.spec}-{self.bits}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.spec}, {self.bits} bits, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    benchmark: str
    methods: tuple[MethodSpec, ...]
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    sizes: dict[str, int] = field(default_factory=dict)  # in the file; others follow the data
    trials: int = 0  # of tuning, per method
    settings: dict[str, Setting] = field(default_factory=dict)  # by method
    fine_tuning: dict[str, FineTuningRequest] = field(default_factory=dict)  # by teacher
    supervision: Supervision = "labels"
    image_features: str | None = None
    text_features: str | None = None
    image_components: int | None = None

    def cells(self) -> Iterator[Cell]:
        """Iterate seed by seed, so that each split is built once."""
        for seed in self.seeds:
            for spec in self.methods:
                for bits in self.bits:
                    yield Cell(*spec, bits, seed)

    @property
    def size(self) -> int:
        return len(self.methods) * len(self.bits) * len(self.seeds)

    def method_settings(self, method: str) -> Setting:
        return self.settings.get(method, {})

    def settings_for(self, spec: MethodSpec) -> Setting:
        """Return the settings of the method and of its fine-tuning."""
        settings = dict(self.method_settings(spec.method))
        if spec.teacher in self.fine_tuning:
            settings["fine_tune"] = self.fine_tuning[spec.teacher].settings.settings()
        return settings


@dataclass
class _PlanFile:
    """The keys of a file except the tables [settings] and [fine_tune]."""

    benchmark: Literal["nus-wide", "imagenet-yahooqa", "folder", "synthetic"]
    methods: Annotated[tuple[str, ...], MinLength(1)]
    bits: Annotated[tuple[PositiveInt, ...], MinLength(1)]
    seeds: Annotated[tuple[Seed, ...], MinLength(1)]
    queries: PositiveInt | None = None
    auxiliary: PositiveInt | None = None
    target: NonNegativeInt | None = None
    per_class: PositiveInt | None = None
    supervision: Supervision = "labels"
    image_features: str | None = None
    text_features: str | None = None
    image_components: PositiveInt | None = None
    tune: bool | PositiveInt = True

    def __post_init__(self) -> None:
        check_settings(self)
        for key in ("methods", "bits", "seeds"):
            if len(set(getattr(self, key))) != len(getattr(self, key)):
                raise DataError(f"{key} lists a value twice. Remove one of them.")
        for length in self.bits:
            check_bits(length)


KEYS = (*(key.name for key in fields(_PlanFile)), "settings", "fine_tune")
_REQUIRED = tuple(key.name for key in fields(_PlanFile) if key.default is MISSING)
_SIZES = tuple(size.name for size in fields(SplitSizes))


def read_plan(file: str | Path) -> Plan:
    """Read a TOML file; unknown keys and wrong values are errors."""
    file = Path(file)
    try:
        content = tomllib.loads(read_regular(file).decode())
    except OSError as error:
        raise DataError(f"Cannot read {file} ({error.strerror}). Pass a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not valid TOML ({error}). Correct the file.") from None
    with _error_prefix(f"{file}: "):
        for key in content:
            if key not in KEYS:
                raise DataError(f"Unknown key {key!r}. Choose from: {', '.join(KEYS)}.")
        for key in _REQUIRED:
            if key not in content:
                raise DataError(f"The key {key!r} is missing. Add it.")
        tables = {key: content.pop(key, {}) for key in ("settings", "fine_tune")}
        values = _PlanFile(**content)
        methods = tuple(map(MethodSpec.parse, values.methods))
        if len(set(methods)) != len(methods):
            raise DataError("methods lists a value twice. Remove one of them.")
        if values.image_components is not None and any(spec.teacher for spec in methods):
            raise DataError(
                "image_components cannot be used with fine-tuned features (@). "
                "Move these methods to a file of their own."
            )
        settings = _read_settings(tables["settings"], values.bits[0])
        sizes = {name: getattr(values, name) for name in _SIZES}
        return Plan(
            benchmark=values.benchmark,
            methods=methods,
            bits=values.bits,
            seeds=values.seeds,
            sizes={name: size for name, size in sizes.items() if size is not None},
            trials=_TRIALS if values.tune is True else int(values.tune),
            settings=settings,
            fine_tuning=_read_fine_tuning(tables["fine_tune"], methods, settings),
            supervision=values.supervision,
            image_features=values.image_features,
            text_features=values.text_features,
            image_components=values.image_components,
        )


def _read_settings(tables: Any, bits: int) -> dict[str, Setting]:
    """Read [settings.METHOD]; building each method checks its settings."""
    settings: dict[str, Setting] = {}
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise DataError("settings must have one table per method. Write [settings.THN].")
    for name, table in tables.items():
        with _error_prefix(f"[settings.{name}]: "):
            for key in ("bits", "seed"):
                if key in table:
                    raise DataError(f"{key} is not a setting here. Use the key at the top.")
            make_method(name, bits=bits, **table)
            settings[find_method(name).name] = table
    return settings


def _read_fine_tuning(
    table: Any, methods: tuple[MethodSpec, ...], settings: dict[str, Setting]
) -> dict[str, FineTuningRequest]:
    """Read [fine_tune] and [fine_tune.TEACHER] into a request for each teacher."""
    if not isinstance(table, dict):
        raise DataError("fine_tune must be a table. Write [fine_tune].")
    with _error_prefix("[fine_tune]: "):
        teachers = dict.fromkeys(spec.teacher for spec in methods if spec.teacher)
        own = {find_method(k).name: v for k, v in table.items() if isinstance(v, dict)}
        unused = [name for name in own if name not in teachers]
        if unused or (table and not teachers):
            example = unused[0] if unused else "THN"
            raise DataError(
                f"No method uses these settings. Remove them, or add a method: THN@{example}."
            )
        shared = {name: value for name, value in table.items() if not isinstance(value, dict)}
        bits = shared.pop("bits", _TEACHER_BITS)
        return {
            teacher: FineTuningRequest.from_names(
                teacher,
                {**settings.get(teacher, {}), "bits": bits},
                {**shared, **own.get(teacher, {})},
            )
            for teacher in teachers
        }


@contextmanager
def _error_prefix(prefix: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{prefix}{error}") from None
