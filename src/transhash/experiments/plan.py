"""What a TOML file asks for, checked before the first minute is spent."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast, get_args

from transhash.codes import check_bits
from transhash.data.benchmark import SplitSizes, Supervision
from transhash.errors import DataError
from transhash.hashers import find_method, make_method
from transhash.hashers.base import Setting
from transhash.training.fine_tune import FineTuningRequest

BENCHMARKS = ("nus-wide", "imagenet-yahooqa", "folder", "embedded")
_SIZES = tuple(size.name for size in fields(SplitSizes))
KEYS = (
    "benchmark", "methods", "bits", "seeds", *_SIZES, "relation", "image_features",
    "text_features", "image_components", "tune", "settings", "fine_tune",
)  # fmt: skip
# The paper names no search; eight settings a method, the same for all, is what `tune` tries.
_TRIALS = 8
_TEACHER_BITS = 32  # one backbone of a split serves all code lengths


@dataclass(frozen=True)
class Cell:
    """One number of the table: a method, a code length, and the seed of its split and its fit."""

    method: str  # after an @, the teacher of the backbone that its image features come from
    bits: int
    seed: int

    @property
    def learner(self) -> str:
        """The method itself."""
        return self.method.partition("@")[0]

    @property
    def teacher(self) -> str:
        """What its backbone was fine-tuned by; "" where it is frozen."""
        return self.method.partition("@")[2]

    def __str__(self) -> str:
        return f"{self.method}, {self.bits} bits, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    benchmark: str
    methods: tuple[str, ...]
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    sizes: dict[str, int]  # those the file gives; the data decide the others
    trials: int  # settings tried for each method; 0 takes the settings as they are
    settings: dict[str, Setting]  # of each method that has some in the file
    fine_tuning: dict[str, FineTuningRequest] = field(default_factory=dict)  # by teacher
    supervision: Supervision = "labels"  # relation = "pairs": captions alone relate auxiliary items
    image_features: str | None = None
    text_features: str | None = None
    image_components: int | None = None

    def cells(self) -> Iterator[Cell]:
        """Seed by seed, so that a split is made once; then method by method."""
        for seed in self.seeds:
            for method in self.methods:
                for bits in self.bits:
                    yield Cell(method, bits, seed)

    @property
    def size(self) -> int:
        return len(self.methods) * len(self.bits) * len(self.seeds)

    def settings_of(self, method: str) -> Setting:
        """The same whatever the image features are."""
        return self.settings.get(method.partition("@")[0], {})

    def given(self, method: str) -> Setting:
        """All that the file says about a method."""
        tuning = self.fine_tuning.get(method.partition("@")[2])
        told = {} if tuning is None else {"fine_tune": tuning.settings.settings()}
        return {**self.settings_of(method), **told}


def read_plan(file: str | Path) -> Plan:
    """The plan of a TOML file; every key that is not known is refused by its name."""
    file = Path(file)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not valid TOML: {error}") from None
    for key in content:
        if key not in KEYS:
            raise DataError(f"{file}: there is no key {key!r}; the keys are {', '.join(KEYS)}")
    for key in ("benchmark", "methods", "bits", "seeds"):
        if key not in content:
            raise DataError(f"{file}: the key {key!r} is missing")
    if content["benchmark"] not in BENCHMARKS:
        raise DataError(
            f"{file}: there is no benchmark {content['benchmark']!r}; "
            f"use one of {', '.join(BENCHMARKS)}"
        )
    methods = tuple(_method(file, name) for name in _list(file, content, "methods", str))
    bits = _list(file, content, "bits", int)
    seeds = _list(file, content, "seeds", int)
    for key, values in (("methods", methods), ("bits", bits), ("seeds", seeds)):
        if len(set(values)) != len(values):
            raise DataError(f"{file}: {key} names one of its values twice")
    for length in bits:
        check_bits(length)
    if "image_components" in content and any("@" in name for name in methods):
        raise DataError(
            f"{file}: image_components are of frozen features, but a method learns from fine-tuned "
            "ones (@); put it into a file of its own"
        )
    if min(seeds) < 0:
        raise DataError(f"{file}: a seed must be 0 or more, got {min(seeds)}")
    return Plan(
        benchmark=content["benchmark"],
        methods=methods,
        bits=bits,
        seeds=seeds,
        sizes={name: _size(file, name, content[name]) for name in _SIZES if name in content},
        supervision=_taught_by(file, content.get("relation", "labels")),
        image_features=_named(file, content, "image_features"),
        text_features=_named(file, content, "text_features"),
        image_components=(
            _size(file, "image_components", content["image_components"])
            if "image_components" in content
            else None
        ),
        trials=_trials(file, content.get("tune", True)),
        settings=(settings := _settings(file, content.get("settings", {}), bits[0])),
        fine_tuning=_tunings(file, content.get("fine_tune", {}), methods, settings),
    )


def _list(file: Path, content: dict[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    values = content[key]
    right = isinstance(values, list) and all(type(value) is kind for value in values)
    if not right or not values:
        example = '["THN", "QCH"]' if kind is str else "[16, 32]"
        raise DataError(f"{file}: {key} must be a list such as {example}, got {values!r}")
    return tuple(values)


def _method(file: Path, name: str) -> str:
    """The published spelling of a method named in any case, and of its teacher's."""
    learner, at, teacher = name.partition("@")
    try:
        return find_method(learner).name + (at and f"@{find_method(teacher).name}")
    except DataError as error:
        raise DataError(f"{file}: {error}") from None


def _size(file: Path, name: str, value: Any) -> int:
    if type(value) is not int or value < (0 if name == "target" else 1):
        raise DataError(f"{file}: {name} must be a number of items, got {value!r}")
    return value


def _taught_by(file: Path, value: Any) -> Supervision:
    if value not in get_args(Supervision):
        raise DataError(f'{file}: relation must be "labels" or "pairs", got {value!r}')
    return cast("Supervision", value)


def _named(file: Path, content: dict[str, Any], key: str) -> str | None:
    value = content.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{file}: {key} is a name or a folder, got {value!r}")
    return value


def _trials(file: Path, value: Any) -> int:
    if isinstance(value, bool):
        return _TRIALS if value else 0
    if not isinstance(value, int) or value < 1:
        raise DataError(f"{file}: tune must be true, false or a number of trials, got {value!r}")
    return value


def _settings(file: Path, tables: Any, bits: int) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    if not isinstance(tables, dict):
        raise DataError(f"{file}: settings are tables, one a method: [settings.THN]")
    for name, table in tables.items():
        method = _method(file, name)
        if not isinstance(table, dict):
            raise DataError(f"{file}: settings are tables, one a method: [settings.{method}]")
        for own in ("bits", "seed"):
            if own in table:
                raise DataError(f"{file}: {own} is no setting of {method}; it has its own key")
        try:
            make_method(method, bits=bits, **table)  # says what is wrong with a setting
        except DataError as error:
            raise DataError(f"{file}: [settings.{name}]: {error}") from None
        found[method] = table
    return found


def _tunings(
    file: Path, table: Any, methods: tuple[str, ...], settings: dict[str, Setting]
) -> dict[str, FineTuningRequest]:
    """A fine-tuning for each teacher: what all share, and what its own table says."""
    teachers = dict.fromkeys(name.partition("@")[2] for name in methods if "@" in name)
    if not isinstance(table, dict):
        raise DataError(f"{file}: fine_tune is a table: [fine_tune]")
    own = {_method(file, name): one for name, one in table.items() if isinstance(one, dict)}
    for name in own if teachers else table:
        if name not in teachers:
            raise DataError(
                f"{file}: [fine_tune] has {name}, but no method learns from such features; name "
                f'one: methods = ["THN@{name if name in own else "THN"}"]'
            )
    shared = {name: one for name, one in table.items() if not isinstance(one, dict)}
    length = shared.pop("bits", _TEACHER_BITS)
    found = {}
    for teacher in teachers:
        told = {**settings.get(teacher, {}), "bits": length}
        try:
            found[teacher] = FineTuningRequest.of(teacher, told, {**shared, **own.get(teacher, {})})
        except DataError as error:
            raise DataError(f"{file}: [fine_tune]: {error}") from None
    return found
