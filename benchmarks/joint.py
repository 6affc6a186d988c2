"""What a joint model's own embedding would give, beside methods that learn on both sides of it.

    python benchmarks/joint.py FOLDER open_clip:ViT-B-32/laion2b_s34b_b79k --bits 32 --methods THN

MAP of the target, image -> text / text -> image, mean and deviation over splits, of
cosine     the embeddings themselves, no codes: what all others are short of
sign       a bit a coordinate: as many bits as the embedding has
rotated    signs after a random rotation, so many bits (as FAISS's IndexLSH)
ITQ        signs after principal directions and a rotation towards them (Gong, Lazebnik 2011), so
           many bits; each side less its own mean, since the two sides of such a model lie apart
and of methods on the same embeddings, at equal bits, taught by the auxiliary set. ITQ sees the
items of both sets that methods see, and nothing of what is related.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transhash.codes import Codes
from transhash.features.images import image_features
from transhash.hashers import make_method
from transhash.hashers.thn.initialization import itq
from transhash.progress import progress_bar
from transhash.scoring.directions import (
    LabeledCodes,
    ScoredDirection,
    both_directions,
    directions_of,
    score_directions,
)
from transhash.training.split_data import (
    LabeledFeatures,
    SplitData,
    build_split,
    load_benchmark_features,
)

Rows = npt.NDArray[Any]
Projection = Callable[[Rows], Rows]  # embeddings -> real values whose signs are the code


def sign(task: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    return (lambda rows: rows), (lambda rows: rows)


def rotated(task: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    width = task.training.images.shape[1]
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((max(width, bits), max(width, bits))))[0][:width, :bits]
    return (lambda rows: rows @ turn), (lambda rows: rows @ turn)


def turned(task: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    """ITQ of both sides together."""
    training = task.training
    assert training.target_images is not None
    assert training.target_texts is not None
    images = np.concatenate([training.images, training.target_images])
    texts = np.concatenate([training.texts, training.target_texts])
    means = images.mean(axis=0), texts.mean(axis=0)
    both = np.concatenate([images - means[0], texts - means[1]])
    directions = np.linalg.svd(both, full_matrices=False)[2][:bits].T
    generator = torch.Generator().manual_seed(seed)
    z = torch.from_numpy(np.ascontiguousarray(both @ directions, np.float32))
    turn = directions @ itq(z, bits, generator).numpy()
    return (lambda rows: (rows - means[0]) @ turn), (lambda rows: (rows - means[1]) @ turn)


ROWS = {"sign": sign, "rotated": rotated, "ITQ": turned}


def coded(part: LabeledFeatures, project: Projection) -> LabeledCodes:
    return LabeledCodes(
        Codes.from_projections(project(part.features).astype(np.float32)), part.labels
    )


def maps_of(row: str, task: SplitData, bits: int, seed: int) -> tuple[float, float, float]:
    """MAP both ways, and of chance."""
    target = task.target
    if row == "cosine":
        images, texts = target.database_images, target.database_texts
        encode_queries, words = target.query_images, target.query_texts
        found = score_directions(
            {
                "image_to_text": ScoredDirection(
                    lambda at: encode_queries.features[at] @ texts.features.T,
                    encode_queries.labels,
                    texts.labels,
                ),
                "text_to_image": ScoredDirection(
                    lambda at: words.features[at] @ images.features.T, words.labels, images.labels
                ),
            }
        )
    elif row in ROWS:
        of_images, of_texts = ROWS[row](task, bits, seed)
        ways = both_directions(
            coded(target.query_images, of_images), coded(target.query_texts, of_texts),
            coded(target.database_images, of_images), coded(target.database_texts, of_texts),
        )  # fmt: skip
        found = score_directions(ways)
    else:
        learner = make_method(row, bits=bits, seed=seed)
        learner.fit(task.training)
        found = score_directions(directions_of(learner, target))
    scores = found["image_to_text"], found["text_to_image"]
    return scores[0].map, scores[1].map, float(np.mean([one.chance for one in scores]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", help="a joint one, as --features names it")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--methods", nargs="*", default=["THN"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    features = image_features(arguments.model, arguments.device)
    ready, _ = load_benchmark_features(arguments.folder, features, track=progress_bar)
    tasks = [
        build_split(ready, seed, texts=arguments.model, device=arguments.device)
        for seed in range(arguments.seeds)
    ]
    width = tasks[0].training.images.shape[1]
    print(f"{features.name}, {arguments.seeds} splits")
    print("| row | bits | MAP | chance |\n|---|---|---|---|")
    for row in ("cosine", *ROWS, *arguments.methods):
        found = [maps_of(row, task, arguments.bits, seed) for seed, task in enumerate(tasks)]
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
        size = {"cosine": "-", "sign": str(width)}.get(row, str(arguments.bits))
        said = " / ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean[:2], spread[:2]))
        print(f"| {row} | {size} | {said} | {mean[2]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
