"""Means over seeds and margins of an experiment, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from transhash.errors import DataError
from transhash.experiments.plan import MethodSpec
from transhash.experiments.results import Row, read_results, row_cell
from transhash.hashers import METHODS
from transhash.storage import read_regular

DIRECTIONS = {"image_to_text": "I → T", "text_to_image": "T → I"}
BASELINES = tuple(MethodSpec(method.name) for method in METHODS if method.role == "baseline")
VARIANTS = tuple(MethodSpec(method.name) for method in METHODS if method.role == "paper-ablation")
(PROPOSED,) = (MethodSpec(method.name) for method in METHODS if method.role == "proposed")
FINE_TUNED = MethodSpec(PROPOSED.method, PROPOSED.method)
REAL_VALUED = tuple(method.name for method in METHODS if not method.has_codes)


class Mean(NamedTuple):
    """A mean over seeds with the sample standard deviation, None for one seed."""

    value: float
    sd: float | None = None

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Mean | None:
        if not values:
            return None
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Summary:
    """The finished cells of one experiment."""

    rows: Sequence[Row]
    folder: Path

    @classmethod
    def read(cls, folder: str | Path) -> Summary:
        rows = read_results(folder)
        if not rows:
            raise DataError(f"{folder} has no finished cell. Run `transhash experiment` first.")
        return cls(rows, Path(folder))

    @property
    def benchmark(self) -> str:
        return str(self.rows[0]["benchmark"])

    @cached_property
    def methods(self) -> tuple[MethodSpec, ...]:
        """In the order of METHODS, fine-tuned after frozen; methods of other versions first."""
        order = {method.name: number for number, method in enumerate(METHODS)}
        specs = dict.fromkeys(row_cell(row).spec for row in self.rows)
        return tuple(
            sorted(specs, key=lambda spec: (order.get(spec.method, -1), bool(spec.teacher)))
        )

    @cached_property
    def bits(self) -> tuple[int, ...]:
        return tuple(sorted({row["bits"] for row in self.rows}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row["seed"] for row in self.rows}))

    @property
    def has_variants(self) -> bool:
        return PROPOSED in self.methods and any(spec in self.methods for spec in VARIANTS)

    def cells(self, spec: MethodSpec, bits: int) -> list[Row]:
        """Return the rows of all seeds."""
        return [row for row in self.rows if row_cell(row).spec == spec and row["bits"] == bits]

    def map(self, direction: str, spec: MethodSpec, bits: int) -> Mean | None:
        return Mean.from_values([row[f"{direction}_map"] for row in self.cells(spec, bits)])

    def chance(self, direction: str, bits: int) -> Mean | None:
        """Return the MAP of equal codes, which is the same for every method of a seed."""
        by_seed = {
            row["seed"]: row[f"{direction}_chance"] for row in self.rows if row["bits"] == bits
        }
        return Mean.from_values(list(by_seed.values()))

    def best_baseline(self, direction: str, bits: int) -> MethodSpec | None:
        """Return the published baseline with the highest mean."""
        scores = {spec: self.map(direction, spec, bits) for spec in BASELINES}
        values = {spec: score.value for spec, score in scores.items() if score is not None}
        return max(values, key=lambda spec: values[spec]) if values else None

    def margin(
        self, direction: str, other: MethodSpec | None = None, own: MethodSpec = PROPOSED
    ) -> Mean | None:
        """Return `own` minus `other` in points of MAP, averaged over code lengths.

        Without `other`, the best baseline of each cell. The standard deviation is that of the
        margins by seed, because both methods saw the same split.
        """
        return Mean.from_values(self.margins_by_seed(direction, other, own))

    def margins_by_seed(
        self, direction: str, other: MethodSpec | None, own: MethodSpec
    ) -> list[float]:
        by_seed: dict[int, list[float]] = {}
        for bits in self.bits:
            spec = other or self.best_baseline(direction, bits)
            if spec is None:
                return []
            own_rows = {row["seed"]: row for row in self.cells(own, bits)}
            for row in self.cells(spec, bits):
                if row["seed"] in own_rows:
                    gain = own_rows[row["seed"]][f"{direction}_map"] - row[f"{direction}_map"]
                    by_seed.setdefault(row["seed"], []).append(100 * gain)
        return [fmean(gains) for gains in by_seed.values()]

    def test_ratio(self, direction: str) -> float:
        """Return the number of queries per item of their modality that is not a query."""
        modality = direction.partition("_")[0] + "s"
        ratios: list[float] = [
            row["items"][f"query_{modality}"] / row["items"][f"database_{modality}"]
            for row in self.rows
        ]
        return max(ratios)

    def wins(self) -> tuple[int, int]:
        """Count cells (length x direction) where THN is above every baseline, and all cells."""
        won = total = 0
        for direction in DIRECTIONS:
            for bits in self.bits:
                own, best = self.map(direction, PROPOSED, bits), self.best_baseline(direction, bits)
                other = self.map(direction, best, bits) if best else None
                if own is not None and other is not None:
                    total += 1
                    won += own.value > other.value
        return won, total

    def metrics(self) -> dict[tuple[MethodSpec, int], list[dict[str, float]]]:
        """Return the losses by step of the lowest seed's fit, where there are some."""
        metrics: dict[tuple[MethodSpec, int], list[dict[str, float]]] = {}
        for cell in sorted(map(row_cell, self.rows), key=lambda cell: cell.seed):
            path = self.folder / "training" / cell.folder_name / "metrics.jsonl"
            if path.exists() and (cell.spec, cell.bits) not in metrics:
                lines = read_regular(path).decode().splitlines()
                metrics[cell.spec, cell.bits] = [json.loads(line) for line in lines if line]
        order = ((spec, bits) for spec in self.methods for bits in self.bits)
        return {key: metrics[key] for key in order if len(metrics.get(key, ())) > 1}

    @cached_property
    def published(self) -> dict[str, dict[str, dict[int, float]]]:
        """The paper's MAP by direction, method and bits; empty for other data."""
        return published_maps().get(self.benchmark, {})

    def published_map(self, direction: str, spec: MethodSpec, bits: int) -> Mean | None:
        value = self.published[direction].get(str(spec), {}).get(bits)
        return None if value is None else Mean(value)

    def published_margin(self, direction: str, other: MethodSpec | None = None) -> Mean | None:
        """Return the paper's THN minus `other`, as `margin`."""
        maps = self.published[direction]
        names = [str(spec) for spec in ([other] if other else BASELINES)]
        if any(name not in maps for name in names):
            return None
        gains = [
            own - max(maps[name][bits] for name in names)
            for bits, own in maps[str(PROPOSED)].items()
        ]
        return Mean(100 * fmean(gains))


def confidence_interval(values: Sequence[float], test_ratio: float) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over random splits of one data set.

    Splits share items, so their scores correlate and Student's interval is too narrow. Nadeau and
    Bengio (2003) take the share of test items in the data as the correlation:

        variance of the mean = s² (1/n + test_ratio)      test_ratio = n_test / n_train

    with n - 1 degrees of freedom. A ratio of 0, for independent data, gives Student's interval.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t  # half a second to import

    error = stdev(values) * (1 / len(values) + test_ratio) ** 0.5
    half = float(t.ppf(0.975, len(values) - 1)) * error
    return fmean(values) - half, fmean(values) + half


def published_maps() -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """Return tables 1 and 2 of the paper by benchmark, direction, method and bits."""
    file = resources.files("transhash.report") / "published_maps.json"
    content = json.loads(file.read_text(encoding="utf-8"))
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
