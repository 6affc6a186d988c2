"""Frozen against fine-tuned image features on a three-part folder, by labels and by pairs alone.

    python benchmarks/fine_tune.py FOLDER --splits 0 1 2 --device cuda --out runs/fine-tune
    python benchmarks/fine_tune.py FOLDER --splits 0 --variant "no D:alignment_weight=0" ...

MAP of the target, image -> text / text -> image, chance beside it, and the gain over the frozen
features of the same split with its 95% interval over splits; beside them the two numbers that need
no target label (benchmarks/unsupervised_criterion.py). A variant is a name and settings of the fine-tuning;
`teacher=QCH` among them names another teacher. Every method learns anew from each kind of features.
Pairs: both halves of the auxiliary rows whose images a split trains on.
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
from scipy import stats
from unsupervised_criterion import unlabelled

from transhash.data.benchmark import SplitRows, load_benchmark, shrink_sizes
from transhash.data.relation import Rows
from transhash.data.training_set import Features
from transhash.features.backbone import FineTunedFeatures
from transhash.features.decode import Pixels
from transhash.features.images import image_features
from transhash.hashers import Hasher, make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.progress import Track, no_progress
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.fine_tune import require_backbone
from transhash.training.split_data import SplitData, build_split, with_image_features

WAYS = ("image_to_text", "text_to_image")


def reading_with(
    tuned: FineTunedFeatures, task: SplitData, split: SplitRows, pixels: Sequence[Pixels]
) -> SplitData:
    """The same split, with images as a fine-tuned backbone reads them."""

    def rows(where: Rows) -> Features:
        return tuned.extract(pixels[1][where])

    shown = task.training.target_images is not None
    training = replace(
        task.training,
        images=tuned.extract(pixels[0][split.auxiliary_images]),
        target_images=rows(split.target_images) if shown else None,
    )
    target = replace(
        task.target,
        query_images=task.target.query_images._replace(features=rows(split.query_images)),
        database_images=task.target.database_images._replace(features=rows(split.database_images)),
    )
    held_out = replace(task.held_out, images=tuned.extract(pixels[0][split.held_out_images]))
    return replace(task, training=training, target=target, held_out=held_out)


class Variant(NamedTuple):
    name: str
    teacher: str
    settings: dict[str, Any]


def variant_of(text: str) -> Variant:
    """Of "name:key=value,key=value"."""
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return Variant(name, settings.pop("teacher", "THN"), settings)


class Table:
    """Scores as they come, printed and kept."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[dict[str, Any]] = []
        out.mkdir(parents=True, exist_ok=True)

    def add(
        self, task: SplitData, frozen: SplitData, hasher: Any, seconds: float, **about: Any
    ) -> None:
        directions = directions_of(hasher, task.target)
        scores = score_directions(directions)
        maps = [round(scores[way].map, 5) for way in WAYS]
        chance = [round(scores[way].chance, 5) for way in WAYS]
        told = unlabelled(hasher, task.training, task.held_out, frozen.training, frozen.held_out)
        row = {**about, "map": maps, "chance": chance, "seconds": round(seconds, 1)}
        row |= {name: round(told[name], 5) for name in ("round trip", "information")}
        self.rows.append(row)
        (self.out / "scores.json").write_text(json.dumps(self.rows, indent=1))
        name = "-".join(str(value) for value in about.values()).replace(" ", "_")
        packed = {
            f"{way}_{part}": getattr(direction, part).packed
            for way, direction in directions.items()
            for part in ("queries", "database")
        }
        np.savez_compressed(self.out / f"codes-{name}.npz", **packed)
        words = " ".join(f"{value}" for value in about.values())
        print(
            f"{words}: {maps[0]:.3f} / {maps[1]:.3f} ({seconds:.0f} s), "
            f"round trip {row['round trip']:.4f}, information {row['information']:.3f}",
            flush=True,
        )

    def summary(self) -> None:
        """Means, and gains over the frozen features of the same split."""
        kinds = dict.fromkeys((r["relation"], r["method"], r["features"]) for r in self.rows)
        print(f"\nchance {np.mean([row['chance'] for row in self.rows], axis=0).round(3)}")
        print("| relation | method | features | MAP | gain in points |\n|---|---|---|---|---|")
        for relation, method, features in kinds:
            own = self._of(relation, method, features)
            base = self._of(relation, method, "frozen")
            mean = np.mean(list(own.values()), axis=0)
            both = [seed for seed in own if seed in base]
            gains = 100 * np.array([np.subtract(own[seed], base[seed]) for seed in both])
            said = ""
            if features != "frozen":
                reach = np.zeros(2)
                if len(gains) > 1:
                    sem = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
                    reach = stats.t.ppf(0.975, len(gains) - 1) * sem
                said = " / ".join(f"{g:+.1f} ± {w:.1f}" for g, w in zip(gains.mean(axis=0), reach))
            print(
                f"| {relation} | {method} | {features} | {mean[0]:.3f} / {mean[1]:.3f} | {said} |"
            )

    def _of(self, relation: str, method: str, features: str) -> dict[int, list[float]]:
        wanted = (relation, method, features)
        return {
            row["split"]: row["map"]
            for row in self.rows
            if (row["relation"], row["method"], row["features"]) == wanted
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--relations", nargs="+", choices=("labels", "pairs"), default=["labels", "pairs"]
    )
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--variant", action="append", default=[], help="name:key=value,...")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bars", action="store_true")
    arguments = parser.parse_args()
    track: Track = no_progress
    if arguments.bars:
        from transhash.progress import progress_bar as track
    variants = [variant_of(text) for text in arguments.variant or ["fine-tuned"]]
    backbone = require_backbone(image_features(arguments.image_features, arguments.device))
    start = time.perf_counter()
    loaded, _ = with_image_features(load_benchmark(arguments.folder), backbone, track)
    ready = replace(loaded, sizes=shrink_sizes(loaded))
    sides = (ready.auxiliary_images, ready.images)
    pixels = [decode_all(part.items, backbone.size, arguments.device, track) for part in sides]
    print(f"pictures read in {time.perf_counter() - start:.0f} s", flush=True)
    table = Table(arguments.out)
    for split_seed in arguments.splits:
        for relation in arguments.relations:
            taught = replace(ready, supervision=relation)
            split, frozen = taught.split(split_seed), build_split(taught, split_seed)
            about = {"split": split_seed, "relation": relation}
            fitted: dict[str, Hasher] = {}
            for method in dict.fromkeys((*arguments.methods, *(one.teacher for one in variants))):
                start = time.perf_counter()
                fitted[method] = make_hasher(method, bits=arguments.bits, seed=split_seed)
                fitted[method].fit(frozen.training)
                took = time.perf_counter() - start
                table.add(
                    frozen, frozen, fitted[method], took, **about, method=method, features="frozen"
                )
            for variant in variants:
                start = time.perf_counter()
                place = arguments.out / f"{variant.name}-{relation}-{split_seed}".replace(" ", "_")
                settings = FineTuning(**{"seed": split_seed, **variant.settings})
                tuned = fine_tune(
                    backbone, pixels[0][split.auxiliary_images], pixels[1][split.target_images],
                    frozen.training, fitted[variant.teacher], settings, folder=place, track=track,
                )  # fmt: skip
                took = time.perf_counter() - start
                task = reading_with(tuned, frozen, split, pixels)
                print(
                    f"{variant.name}, {relation}, {split_seed}: tuned in {took:.0f} s", flush=True
                )
                for method in arguments.methods:
                    hasher = make_hasher(method, bits=arguments.bits, seed=split_seed)
                    hasher.fit(task.training)
                    table.add(
                        task, frozen, hasher, took, **about, method=method, features=variant.name
                    )
    table.summary()


if __name__ == "__main__":
    main()
