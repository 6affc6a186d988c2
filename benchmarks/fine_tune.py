"""Frozen against fine-tuned image features on a three-part folder, by labels and by pairs alone.

    python benchmarks/fine_tune.py FOLDER --splits 0 1 2 --device cuda --out runs/fine-tune
    python benchmarks/fine_tune.py FOLDER --splits 0 --variant "no D:alignment_weight=0" ...

MAP of the target, image -> text / text -> image, chance beside it, and the gain over the frozen
features of the same split with its 95% interval over splits. A variant is a name and settings of
the fine-tuning; `teacher=QCH` among them names another teacher. Every method learns anew from each
kind of features. Pairs: both halves of the auxiliary rows whose images a split trains on.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from transhash.data.benchmark import Benchmark, fitted_sizes, load_benchmark
from transhash.data.relation import SparseRelation
from transhash.data.training import TrainingSet
from transhash.features.image import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.hashers.fine_tuning import FineTuning, fine_tune
from transhash.hashers.fine_tuning.views import decode_all
from transhash.progress import Track, silent
from transhash.runs.score.directions import directions_of, score_directions
from transhash.runs.task import LabelledRows, Task, build_task, with_image_features

WAYS = ("image_to_text", "text_to_image")


def by_pairs(task: Task, ready: Benchmark, seed: int) -> TrainingSet:
    """The split's training images with their own captions, and nothing else known of them."""
    rows = ready.split(seed).auxiliary_images
    captions = ready.auxiliary_texts.take(rows).items
    keys = [str(row) for row in rows]
    return replace(
        task.training,
        texts=task.text_features.transform(captions),
        relation=SparseRelation.from_pairs(keys, keys),
    )


def variant_of(text: str) -> tuple[str, str, dict[str, Any]]:
    """Name, teacher and settings of "name:key=value,key=value"."""
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return name, settings.pop("teacher", "THN"), settings


class Table:
    """Scores as they come, printed and kept."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[dict[str, Any]] = []
        out.mkdir(parents=True, exist_ok=True)

    def add(self, task: Task, hasher: Any, seconds: float, **about: Any) -> None:
        directions = directions_of(hasher, task.target)
        scores = score_directions(directions)
        maps = [round(scores[way].map, 5) for way in WAYS]
        chance = [round(scores[way].chance, 5) for way in WAYS]
        row = {**about, "map": maps, "chance": chance, "seconds": round(seconds, 1)}
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
        print(f"{words}: {maps[0]:.3f} / {maps[1]:.3f} ({seconds:.0f} s)", flush=True)

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
    parser.add_argument("--relations", nargs="+", default=["labels", "pairs"])
    parser.add_argument("--methods", nargs="+", default=["THN"])
    parser.add_argument("--variant", action="append", default=[], help="name:key=value,...")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bars", action="store_true")
    arguments = parser.parse_args()
    track: Track = silent
    if arguments.bars:
        from transhash.progress import bar as track
    variants = [variant_of(text) for text in arguments.variant or ["fine-tuned"]]
    backbone = EfficientNetLite0(arguments.device)
    start = time.perf_counter()
    loaded, _ = with_image_features(load_benchmark(arguments.folder), backbone, track)
    ready = replace(loaded, sizes=fitted_sizes(loaded))
    sides = (ready.auxiliary_images, ready.images)
    pixels = [decode_all(part.items, backbone.size, arguments.device, track) for part in sides]
    print(f"pictures read in {time.perf_counter() - start:.0f} s", flush=True)
    table = Table(arguments.out)
    for split_seed in arguments.splits:
        split = ready.split(split_seed)
        plain = build_task(ready, split_seed)
        for relation in arguments.relations:
            training = plain.training
            if relation == "pairs":
                training = by_pairs(plain, ready, split_seed)
            fitted: dict[str, Any] = {}
            for method in dict.fromkeys((*arguments.methods, *(one[1] for one in variants))):
                start = time.perf_counter()
                fitted[method] = make_hasher(method, bits=arguments.bits, seed=split_seed)
                fitted[method].fit(training)
                table.add(
                    plain, fitted[method], time.perf_counter() - start,
                    split=split_seed, relation=relation, method=method, features="frozen",
                )  # fmt: skip
            for name, teacher, settings in variants:
                start = time.perf_counter()
                place = arguments.out / f"{name}-{relation}-{split_seed}".replace(" ", "_")
                tuned = fine_tune(
                    backbone, pixels[0][split.auxiliary_images], pixels[1][split.target_images],
                    training, fitted[teacher], FineTuning(**{"seed": split_seed, **settings}),
                    folder=place, track=track,
                )  # fmt: skip
                took = time.perf_counter() - start
                print(f"{name}, {relation}, split {split_seed}: tuned in {took:.0f} s", flush=True)
                tuned_training = replace(
                    training,
                    images=tuned.of_pixels(pixels[0][split.auxiliary_images]),
                    target_images=tuned.of_pixels(pixels[1][split.target_images]),
                )
                target = plain.target
                queries, database = (
                    LabelledRows(tuned.of_pixels(pixels[1][rows]), part.labels)
                    for rows, part in (
                        (split.query_images, target.query_images),
                        (split.database_images, target.database_images),
                    )
                )
                target = replace(target, query_images=queries, database_images=database)
                task = replace(plain, training=tuned_training, target=target)
                for method in arguments.methods:
                    hasher = make_hasher(method, bits=arguments.bits, seed=split_seed)
                    table.add(
                        task, hasher.fit(tuned_training), took,
                        split=split_seed, relation=relation, method=method, features=name,
                    )  # fmt: skip
    table.summary()


if __name__ == "__main__":
    main()
