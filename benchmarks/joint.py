"""Compare the embeddings of a joint model with methods trained on them.

    python benchmarks/joint.py FOLDER open_clip:ViT-B-32/laion2b_s34b_b79k --bits 32 --methods THN

MAP of the target, image -> text / text -> image, mean and deviation over splits, of

cosine     the real-valued embeddings, an upper bound
sign       one bit per coordinate
rotated    signs after a random rotation (like FAISS's IndexLSH)
ITQ        signs after principal axes and iterative quantization (Gong and Lazebnik, 2011), each
           modality centered separately, since a joint model keeps them apart

and of methods on the same embeddings, trained on the auxiliary set. ITQ uses the same items, but
not the relation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from common import chances, maps, mean_cell

from transhash.codes import Codes
from transhash.features.images import image_features
from transhash.hashers import make_method
from transhash.hashers.thn.initialization import itq
from transhash.progress import progress_bar
from transhash.scoring.directions import (
    LabeledCodes,
    ScoredDirection,
    both_directions,
    build_directions,
    score_directions,
)
from transhash.training.split_data import (
    LabeledFeatures,
    SplitData,
    build_split,
    load_benchmark_features,
)

Rows = npt.NDArray[Any]
Projection = Callable[[Rows], Rows]  # embeddings -> projections, whose signs are the code


def sign(split: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    return (lambda rows: rows), (lambda rows: rows)


def rotated(split: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    width = split.training.images.shape[1]
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((max(width, bits), max(width, bits))))[0][
        :width, :bits
    ]
    return (lambda rows: rows @ rotation), (lambda rows: rows @ rotation)


def quantized(split: SplitData, bits: int, seed: int) -> tuple[Projection, Projection]:
    training = split.training
    assert training.target_images is not None
    assert training.target_texts is not None
    images = np.concatenate([training.images, training.target_images])
    texts = np.concatenate([training.texts, training.target_texts])
    means = images.mean(axis=0), texts.mean(axis=0)
    both = np.concatenate([images - means[0], texts - means[1]])
    axes = np.linalg.svd(both, full_matrices=False)[2][:bits].T
    generator = torch.Generator().manual_seed(seed)
    z = torch.from_numpy(np.ascontiguousarray(both @ axes, np.float32))
    matrix = axes @ itq(z, bits, generator).numpy()
    return (lambda rows: (rows - means[0]) @ matrix), (lambda rows: (rows - means[1]) @ matrix)


PROJECTIONS = {"sign": sign, "rotated": rotated, "ITQ": quantized}


def encode(part: LabeledFeatures, project: Projection) -> LabeledCodes:
    return LabeledCodes(
        Codes.from_projections(project(part.features).astype(np.float32)), part.labels
    )


def _cosines(queries: LabeledFeatures, database: LabeledFeatures) -> ScoredDirection:
    return ScoredDirection(
        lambda rows: queries.features[rows] @ database.features.T, queries.labels, database.labels
    )


def measure(row: str, split: SplitData, bits: int, seed: int) -> tuple[list[float], float]:
    """Return MAP of both directions, and mean chance."""
    test = split.test
    directions: Any
    if row == "cosine":
        directions = {
            "image_to_text": _cosines(test.query_images, test.database_texts),
            "text_to_image": _cosines(test.query_texts, test.database_images),
        }
    elif row in PROJECTIONS:
        project_images, project_texts = PROJECTIONS[row](split, bits, seed)
        directions = both_directions(
            encode(test.query_images, project_images), encode(test.query_texts, project_texts),
            encode(test.database_images, project_images),
            encode(test.database_texts, project_texts),
        )  # fmt: skip
    else:
        method = make_method(row, bits=bits, seed=seed)
        method.fit(split.training)
        directions = build_directions(method, test)
    scores = score_directions(directions)
    return maps(scores), float(np.mean(chances(scores)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", help="joint model, as for fit --features")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--methods", nargs="*", default=["THN"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    features = image_features(options.model, options.device)
    benchmark, _ = load_benchmark_features(options.folder, features, track=progress_bar)
    splits = [
        build_split(benchmark, seed, texts=options.model, device=options.device)
        for seed in range(options.seeds)
    ]
    width = splits[0].training.images.shape[1]
    print(f"{features.name}, {options.seeds} splits")
    print("| row | bits | MAP | chance |\n|---|---|---|---|")
    for row in ("cosine", *PROJECTIONS, *options.methods):
        results = [measure(row, split, options.bits, seed) for seed, split in enumerate(splits)]
        bits = {"cosine": "-", "sign": str(width)}.get(row, str(options.bits))
        chance = np.mean([chance for _, chance in results])
        cell = mean_cell([both for both, _ in results])
        print(f"| {row} | {bits} | {cell} | {chance:.3f} |", flush=True)


if __name__ == "__main__":
    main()
