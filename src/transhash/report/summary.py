"""What the rows of a run say together: means over seeds, margins, the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from transhash.errors import DataError
from transhash.experiments.results import Row, read_results
from transhash.hashers import METHODS

DIRECTIONS = {"image_to_text": "I → T", "text_to_image": "T → I"}
PROPOSED = next(method.name for method in METHODS if method.role == "proposed")
BASELINES = tuple(method.name for method in METHODS if method.role == "baseline")
VARIANTS = tuple(method.name for method in METHODS if method.role == "paper-ablation")
REAL_VALUED = tuple(method.name for method in METHODS if not method.has_codes)


class Mean(NamedTuple):
    """Over seeds; `sd` is None for a single one."""

    value: float
    sd: float | None = None


@dataclass(frozen=True)
class Summary:
    """The finished cells of one run: one benchmark, some methods, code lengths and seeds."""

    rows: Sequence[Row]
    folder: Path

    @classmethod
    def of(cls, folder: str | Path) -> Summary:
        rows = read_results(folder)
        if not rows:
            raise DataError(f"{folder} holds no finished cell; run `transhash experiment` first")
        return cls(rows, Path(folder))

    @property
    def benchmark(self) -> str:
        return str(self.rows[0]["benchmark"])

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """In the order of the tables; first those of another version, which this one knows not."""
        found = list(dict.fromkeys(str(row["method"]) for row in self.rows))
        known = [method.name for method in METHODS]

        def place(name: str) -> int:  # on fine-tuned features a method stands behind itself
            learner = name.partition("@")[0]
            return known.index(learner) if learner in known else -1

        return tuple(sorted(found, key=lambda name: (place(name), "@" in name)))

    @cached_property
    def bits(self) -> tuple[int, ...]:
        return tuple(sorted({row["bits"] for row in self.rows}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row["seed"] for row in self.rows}))

    def cells(self, method: str, bits: int) -> list[Row]:
        """The rows of all seeds."""
        return [row for row in self.rows if (row["method"], row["bits"]) == (method, bits)]

    def map(self, direction: str, method: str, bits: int) -> Mean | None:
        return mean([row[f"{direction}_map"] for row in self.cells(method, bits)])

    def chance(self, direction: str, bits: int) -> Mean | None:
        """All codes equal; the same for every method and length of a seed."""
        of_seed = {
            row["seed"]: row[f"{direction}_chance"] for row in self.rows if row["bits"] == bits
        }
        return mean(list(of_seed.values()))

    def best_baseline(self, direction: str, bits: int) -> str | None:
        """The rival with the highest mean in that cell."""
        scores = {name: self.map(direction, name, bits) for name in BASELINES}
        known = {name: score.value for name, score in scores.items() if score is not None}
        return max(known, key=lambda name: known[name]) if known else None

    def margin(self, direction: str, other: str | None = None, ours: str = PROPOSED) -> Mean | None:
        """THN minus `other` in points, averaged over code lengths; `None`: each cell's best rival.

        The sd is that of the seeds' own margins: both methods saw the same split.
        """
        return mean(self.margins_by_seed(direction, other, ours))

    def margins_by_seed(self, direction: str, other: str | None, ours: str) -> list[float]:
        """`ours` minus `other` of each seed, in points, averaged over code lengths."""
        of_seed: dict[int, list[float]] = {}
        for bits in self.bits:
            name = other or self.best_baseline(direction, bits)
            if name is None:
                return []
            own = {row["seed"]: row for row in self.cells(ours, bits)}
            for row in self.cells(name, bits):
                if row["seed"] in own:
                    gain = own[row["seed"]][f"{direction}_map"] - row[f"{direction}_map"]
                    of_seed.setdefault(row["seed"], []).append(100 * gain)
        return [fmean(gains) for gains in of_seed.values()]

    def wins(self) -> tuple[int, int]:
        """In how many of the cells (length x direction) THN is above every rival, and of how many.

        Only cells where THN and a rival stand count.
        """
        won = total = 0
        for direction in DIRECTIONS:
            for bits in self.bits:
                ours, rival = (
                    self.map(direction, PROPOSED, bits),
                    self.best_baseline(direction, bits),
                )
                theirs = self.map(direction, rival, bits) if rival else None
                if ours is not None and theirs is not None:
                    total += 1
                    won += ours.value > theirs.value
        return won, total

    def metrics(self) -> dict[tuple[str, int], list[dict[str, float]]]:
        """The losses of the steps of the lowest seed's fit, where a method kept them."""
        found: dict[tuple[str, int], list[dict[str, float]]] = {}
        for method in self.methods:
            for bits in self.bits:
                for seed in self.seeds:
                    path = self.folder / "training" / f"{method}-{bits}-{seed}" / "metrics.jsonl"
                    if path.exists() and (method, bits) not in found:
                        lines = path.read_text(encoding="utf-8").splitlines()
                        found[method, bits] = [json.loads(line) for line in lines if line]
        return {key: steps for key, steps in found.items() if len(steps) > 1}

    @cached_property
    def published(self) -> dict[str, dict[str, dict[int, float]]]:
        """The paper's MAP by direction, method and bits; empty for data other than the paper's."""
        return published_maps().get(self.benchmark, {})

    def published_map(self, direction: str, method: str, bits: int) -> Mean | None:
        value = self.published[direction].get(method, {}).get(bits)
        return None if value is None else Mean(value)

    def published_margin(self, direction: str, other: str | None = None) -> Mean | None:
        """The paper's THN minus `other`, as `margin`."""
        printed = self.published[direction]
        names = [other] if other else list(BASELINES)
        if any(name not in printed for name in names):
            return None
        gains = [
            ours - max(printed[name][bits] for name in names)
            for bits, ours in printed[PROPOSED].items()
        ]
        return Mean(100 * fmean(gains))


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float] | None:
    """Student's, of the mean; too narrow where splits overlap, as those of one data set do."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # half a second to import

    half = float(t.ppf((1 + share) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def mean(values: Sequence[float]) -> Mean | None:
    """With the sample standard deviation, as ± in a table is commonly read."""
    if not values:
        return None
    return Mean(fmean(values), stdev(values) if len(values) > 1 else None)


def published_maps() -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """Tables 1 and 2 of the paper: benchmark, direction, method, bits."""
    file = resources.files("transhash.report") / "published_maps.json"
    content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {
        benchmark: {
            direction: {
                method: dict(zip(content["bits"], values, strict=True))
                for method, values in methods.items()
            }
            for direction, methods in content[benchmark].items()
        }
        for benchmark in ("nus-wide", "imagenet-yahooqa")
    }
