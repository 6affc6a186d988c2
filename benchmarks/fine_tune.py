"""Compare frozen and fine-tuned image features on a benchmark folder.

    python benchmarks/fine_tune.py FOLDER --splits 0 1 2 --device cuda --out runs/fine-tune
    python benchmarks/fine_tune.py FOLDER --splits 0 --variant "no D:alignment_weight=0" ...

Prints MAP image -> text / text -> image, chance, the gain over frozen features of the same split
with its corrected 95% interval over splits, and two criteria that need no target labels
(benchmarks/unsupervised_criterion.py). A variant is a name and fine-tuning settings, among them
`teacher=QCH`. Every method is fitted again on each kind of features. With `--supervision pairs` the
auxiliary images of a split are paired with their captions only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import chances, interval_cell, maps, test_ratios
from unsupervised_criterion import score_criteria

from transhash.data.benchmark import load_benchmark, shrink_sizes
from transhash.features.images import image_features
from transhash.hashers import Hasher, make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.progress import no_progress, progress_bar
from transhash.scoring.directions import build_directions, score_directions
from transhash.training.fine_tune import require_backbone, with_fine_tuned_images
from transhash.training.split_data import SplitData, build_split, with_image_features


class Variant(NamedTuple):
    name: str
    teacher: str
    settings: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Parse "NAME:KEY=VALUE,KEY=VALUE"."""
        name, _, rest = text.partition(":")
        settings = parse_settings([pair for pair in rest.split(",") if pair])
        return cls(name, settings.pop("teacher", "THN"), settings)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE pairs; a value that is not JSON is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


class Table:
    """Scores, printed and saved as they are computed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[dict[str, Any]] = []
        out.mkdir(parents=True, exist_ok=True)

    def add(
        self, data: SplitData, frozen: SplitData, hasher: Hasher, seconds: float, **key: Any
    ) -> None:
        directions = build_directions(hasher, data.test)
        scores = score_directions(directions)
        criteria = score_criteria(
            hasher, data.training, data.held_out, frozen.training, frozen.held_out
        )
        row = {
            **key,
            "map": [round(value, 5) for value in maps(scores)],
            "chance": [round(value, 5) for value in chances(scores)],
            "test_ratios": test_ratios(data.test),
            "seconds": round(seconds, 1),
            **{name: round(criteria[name], 5) for name in ("round trip", "information")},
        }
        self.rows.append(row)
        (self.out / "scores.json").write_text(json.dumps(self.rows, indent=1))
        name = "-".join(str(value) for value in key.values()).replace(" ", "_")
        codes = {
            f"{direction}_{part}": getattr(both, part).packed
            for direction, both in directions.items()
            for part in ("queries", "database")
        }
        np.savez_compressed(self.out / f"codes-{name}.npz", **codes)
        print(
            f"{' '.join(map(str, key.values()))}: {row['map'][0]:.3f} / {row['map'][1]:.3f} "
            f"({seconds:.0f} s), round trip {row['round trip']:.4f}, "
            f"information {row['information']:.3f}",
            flush=True,
        )

    def print_summary(self) -> None:
        """Print means, and gains over the frozen features of the same split."""
        keys = dict.fromkeys((r["supervision"], r["method"], r["features"]) for r in self.rows)
        print(f"\nchance {np.mean([row['chance'] for row in self.rows], axis=0).round(3)}")
        print("| supervision | method | features | MAP | gain in points |\n|---|---|---|---|---|")
        for supervision, method, features in keys:
            own = self._maps(supervision, method, features)
            frozen = self._maps(supervision, method, "frozen")
            mean = np.mean(list(own.values()), axis=0)
            ratios = self.rows[0]["test_ratios"]
            gain = "" if features == "frozen" else _gain(own, frozen, ratios)
            print(
                f"| {supervision} | {method} | {features} | {mean[0]:.3f} / {mean[1]:.3f} "
                f"| {gain} |"
            )

    def _maps(self, *key: str) -> dict[int, list[float]]:
        """Return MAP by split."""
        return {
            row["split"]: row["map"]
            for row in self.rows
            if (row["supervision"], row["method"], row["features"]) == key
        }


def _gain(
    own: dict[int, list[float]], frozen: dict[int, list[float]], ratios: Sequence[float]
) -> str:
    gains = 100 * np.array([np.subtract(own[split], frozen[split]) for split in own])
    return " / ".join(interval_cell(values, ratio) for values, ratio in zip(gains.T, ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--supervision", nargs="+", choices=("labels", "pairs"), default=["labels", "pairs"]
    )
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...",
        help="fine-tuning settings; repeatable",
    )  # fmt: skip
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--progress", action="store_true", help="show progress bars")
    options = parser.parse_args()
    track = progress_bar if options.progress else no_progress
    variants = [Variant.parse(text) for text in options.variant or ["fine-tuned"]]
    backbone = require_backbone(image_features(options.image_features, options.device))
    start = time.perf_counter()
    loaded, _ = with_image_features(load_benchmark(options.folder), backbone, track)
    loaded = replace(loaded, sizes=shrink_sizes(loaded))
    pixels, target_pixels = (
        decode_all(images.items, backbone.size, options.device, track)
        for images in (loaded.auxiliary_images, loaded.images)
    )
    print(f"images read in {time.perf_counter() - start:.0f} s", flush=True)
    table = Table(options.out)
    for seed in options.splits:
        for supervision in options.supervision:
            benchmark = replace(loaded, supervision=supervision)
            rows, frozen = benchmark.split(seed), build_split(benchmark, seed)
            key = {"split": seed, "supervision": supervision}
            hashers: dict[str, Hasher] = {}
            for method in dict.fromkeys((*options.methods, *(v.teacher for v in variants))):
                start = time.perf_counter()
                hashers[method] = make_hasher(method, bits=options.bits, seed=seed)
                hashers[method].fit(frozen.training)
                seconds = time.perf_counter() - start
                table.add(
                    frozen, frozen, hashers[method], seconds, **key, method=method,
                    features="frozen",
                )  # fmt: skip
            for variant in variants:
                start = time.perf_counter()
                folder = options.out / f"{variant.name}-{supervision}-{seed}".replace(" ", "_")
                features = fine_tune(
                    backbone, pixels[rows.auxiliary_images], target_pixels[rows.target_images],
                    frozen.training, hashers[variant.teacher],
                    FineTuning(**{"seed": seed, **variant.settings}), folder=folder, track=track,
                )  # fmt: skip
                seconds = time.perf_counter() - start
                print(f"{variant.name}, {supervision}, {seed}: fine-tuned in {seconds:.0f} s")
                data = with_fine_tuned_images(frozen, benchmark, seed, features, track)
                for method in options.methods:
                    hasher = make_hasher(method, bits=options.bits, seed=seed).fit(data.training)
                    table.add(
                        data, frozen, hasher, seconds, **key, method=method, features=variant.name
                    )
    table.print_summary()


if __name__ == "__main__":
    main()
