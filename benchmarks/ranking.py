"""THN by code length and ranking on a three-part folder, taught by labels and by captions alone.

    python benchmarks/ranking.py FOLDER --bits 16 32 64 128

MAP, mean and deviation over splits, image -> text / text -> image, by Hamming distance, inside
equal distances (ties) and over all items (all). "target" is scored by the target's labels and
chooses nothing. "held-out captions": the auxiliary rows that no training saw, each to find its own
caption or picture among all of them; what a person without labels can choose by.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from transhash.codes import Codes
from transhash.data.relation import Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.evaluation import Scores, score_tie_groups
from transhash.features.images import EfficientNetLite0
from transhash.hashers.thn import THN
from transhash.index.weighted import RANKING_MODES, RankingMode, query_weights, weighted_costs
from transhash.progress import progress_bar
from transhash.scoring.directions import directions_of, score_directions
from transhash.training.split_data import build_split, load_benchmark_features

Maps = dict[RankingMode, list[float]]  # image -> text, text -> image


def found(
    encode_queries: np.ndarray, items: np.ndarray, relation: Relation, mode: RankingMode
) -> Scores:
    """Scores of finding what belongs to each asking item, from projections of both."""
    queries, stored = Codes.from_projections(encode_queries), Codes.from_projections(items)
    weights = query_weights(encode_queries, mode)
    weighed = np.ones(encode_queries.shape, np.int64) if weights is None else weights
    return Scores.of(
        score_tie_groups(lambda r: -weighted_costs(queries[r], stored, weighed[r]), relation)
    )


def shown(rows: list[list[float]]) -> str:
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--texts", help="as --text-features takes them")
    arguments = parser.parse_args()
    ready, _ = load_benchmark_features(arguments.folder, EfficientNetLite0(), track=progress_bar)
    chance: list[float] = []
    target: dict[tuple[str, int, str], list[list[float]]] = {}
    captions: dict[tuple[str, int, str], list[list[float]]] = {}
    start = time.monotonic()
    for seed in range(arguments.splits):
        task, split = build_split(ready, seed, texts=arguments.texts), ready.split(seed)
        seen = split.auxiliary_images
        unseen = np.setdiff1d(split.held_out_images, split.auxiliary_texts)

        def rows(which: np.ndarray) -> tuple[np.ndarray, np.ndarray, SparseRelation]:
            images = ready.auxiliary_images.take(which).features
            assert images is not None
            texts = task.text_features.transform(ready.auxiliary_texts.take(which).items)  # noqa: B023
            keys = [str(row) for row in which]
            return images, texts, SparseRelation.from_pairs(keys, keys)

        kept = rows(unseen)
        unlabelled = task.training.target_images, task.training.target_texts
        taught = {"labels": task.training, "pairs": TrainingSet(*rows(seen), *unlabelled)}
        for bits in arguments.bits:
            for name, training in taught.items():
                hasher = THN(bits=bits, seed=seed).fit(training)
                x, y = hasher.project_auxiliary(*kept[:2])
                for mode in RANKING_MODES:
                    scores = score_directions(
                        directions_of(hasher, task.target, mode), ranking=mode
                    )
                    ways = [scores[way] for way in ("image_to_text", "text_to_image")]
                    both = found(x, y, kept[2], mode), found(y, x, kept[2], mode)
                    key = name, bits, mode
                    target.setdefault(key, []).append([score.map for score in ways])
                    captions.setdefault(key, []).append([score.map for score in both])
                    chance += [score.chance for score in ways] + [score.chance for score in both]
                    print(
                        f"# split {seed}, {bits} bits, {name}, {mode}: target "
                        f"{ways[0].map:.4f} / {ways[1].map:.4f}, held-out captions "
                        f"{both[0].map:.4f} / {both[1].map:.4f} of {len(unseen)} "
                        f"({time.monotonic() - start:.0f} s)",
                        flush=True,
                    )
    print(
        f"chance {np.mean(chance[0::4]):.3f} / {np.mean(chance[1::4]):.3f} of the target, ", end=""
    )
    print(f"{np.mean(chance[2::4]):.3f} / {np.mean(chance[3::4]):.3f} of the held-out captions")
    print("| taught by | bits | ranking | target | held-out captions |\n|---|---|---|---|---|")
    for of in sorted(target, key=lambda k: (k[0], k[1], RANKING_MODES.index(k[2]))):
        said = " | ".join(map(str, of))
        print(f"| {said} | {shown(target[of])} | {shown(captions[of])} |")


if __name__ == "__main__":
    main()
