"""How well text features find the caption of a picture: no target item and no label is looked at.

Some auxiliary pairs are learned from by a canonical analysis (64 directions, each weighed by its
left-out correlation), the others are looked for: the mean place of a picture's own caption among
all held-out captions, as a share of the list (0 is best, 0.5 is chance), and the other way round.

    python benchmarks/text_features.py FOLDER bag-of-words words default all-MiniLM-L6-v2/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transhash.data.benchmark import load_benchmark
from transhash.features.images import EfficientNetLite0
from transhash.features.texts import text_features
from transhash.hashers.canonical import canonical_analysis
from transhash.hashers.components import leave_one_out_coordinates, left_out_correlations
from transhash.model.encoder import extract_readable
from transhash.progress import progress_bar

Matrix = npt.NDArray[np.float64]
LEARNED = 2000  # the most that are learned from; what comes after is held out


class PairSampler:
    """Row i belongs to row i."""

    def __init__(self, count: int) -> None:
        self.shape = count, count

    def times(self, texts: Matrix) -> Matrix:
        return texts

    def transposed_times(self, images: Matrix) -> Matrix:
        return images

    def factors(self) -> None:
        """None are small: every row is of its own."""


def places(x: Matrix, y: Matrix, held_x: Matrix, held_y: Matrix) -> tuple[float, float]:
    """Mean place of the right answer, image -> text and text -> image; half of equals before it."""
    pairs = PairSampler(len(x))
    found = canonical_analysis(x, y, pairs, 0.05, min(64, len(x) - 1, y.shape[1]))
    left_out = leave_one_out_coordinates(found, x, y, pairs)
    weights = np.maximum(left_out_correlations(*left_out, pairs), 0)
    a = (held_x - found.mean_x) @ found.image_axes * weights
    b = (held_y - found.mean_y) @ found.text_axes * weights
    a /= np.linalg.norm(a, axis=1, keepdims=True) + 1e-12
    b /= np.linalg.norm(b, axis=1, keepdims=True) + 1e-12
    scores = a @ b.T
    right = np.diag(scores)

    def place(of: Matrix) -> float:  # a query a row
        before = (of > right[:, None]).sum(axis=1) + ((of == right[:, None]).sum(axis=1) - 1) / 2
        return float(before.mean() / (len(of) - 1))

    return place(scores), place(scores.T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("features", nargs="+", help="as --text-features takes them, or default")
    parser.add_argument("--pairs", type=int, nargs="+", default=[2000, 300, 100])
    parser.add_argument("--splits", type=int, default=3)
    arguments = parser.parse_args()
    loaded = load_benchmark(arguments.folder)
    rows, kept, _ = extract_readable(EfficientNetLite0(), loaded.auxiliary_images, progress_bar)
    images = rows.astype(np.float64)
    caption_of = dict(zip(loaded.auxiliary_texts.ids, loaded.auxiliary_texts.items))
    captions = [caption_of[name] for name in kept.ids]
    print("| text features |" + "".join(f" {count} pairs |" for count in arguments.pairs))
    print("|---|" + "---|" * len(arguments.pairs))
    for name in arguments.features:
        cells = []
        for count in arguments.pairs:
            scored = []
            for seed in range(arguments.splits):
                order = np.random.default_rng(seed).permutation(len(captions))
                learned, held = order[:count], order[LEARNED:]
                texts, asked = [captions[i] for i in learned], [captions[i] for i in held]
                features = text_features(None if name == "default" else name).fit(texts)
                y, held_y = features.transform(texts), features.transform(asked)
                scored.append(
                    places(images[learned], y.astype(float), images[held], held_y.astype(float))
                )
            there, back = np.mean(scored, axis=0)
            cells.append(f" {there:.4f} / {back:.4f} |")
        print(f"| {name} |" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
