"""Functions shared by the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from transhash.data.benchmark import Benchmark, SplitRows
from transhash.data.relation import Rows, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.evaluation import Scores
from transhash.features.backbone import FineTunedFeatures
from transhash.hashers.fine_tuning.batches import decode_all
from transhash.progress import no_progress
from transhash.report.summary import confidence_interval
from transhash.training.split_data import SplitData, TestSet

DIRECTIONS = ("image_to_text", "text_to_image")


def maps(scores: Mapping[str, Scores]) -> list[float]:
    """Return MAP image -> text and text -> image."""
    return [scores[direction].map for direction in DIRECTIONS]


def chances(scores: Mapping[str, Scores]) -> list[float]:
    """Return MAP of a random ranking, image -> text and text -> image."""
    return [scores[direction].chance for direction in DIRECTIONS]


def mean_cells(rows: Sequence[Sequence[float]]) -> list[str]:
    """Return mean ± standard deviation over the rows, for each column."""
    mean = np.mean(rows, axis=0)
    deviation = np.std(rows, axis=0, ddof=1) if len(rows) > 1 else np.zeros_like(mean)
    return [f"{m:.3f} ± {d:.3f}" for m, d in zip(mean, deviation)]


def mean_cell(rows: Sequence[Sequence[float]]) -> str:
    """Return mean ± standard deviation of both directions, as one table cell."""
    return " / ".join(mean_cells(rows))


def test_ratios(test: TestSet) -> list[float]:
    """Return queries per other item of their modality, for queries of images and of texts."""
    return [
        len(test.query_images.labels) / len(test.database_images.labels),
        len(test.query_texts.labels) / len(test.database_texts.labels),
    ]


def interval_cell(gains: Sequence[float], test_ratio: float) -> str:
    """Return the mean ± half of its 95% interval, corrected for overlapping splits."""
    interval = confidence_interval([float(gain) for gain in gains], test_ratio)
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    return f"{np.mean(gains):+.1f} ± {half:.1f}"


def save_pixels(benchmark: Benchmark, size: int, device: str, folder: Path) -> list[Path]:
    """Decode all auxiliary and all target images into a file each, which processes can share."""
    files = []
    for name, images in ("auxiliary", benchmark.auxiliary_images), ("target", benchmark.images):
        files.append(folder / f"{name}.npy")
        np.save(files[-1], decode_all(images.items, size, device, no_progress))
    return files


def with_features_of(
    data: SplitData, rows: SplitRows, features: FineTunedFeatures, pixels: Sequence[Path]
) -> SplitData:
    """Return the split with all image features from the backbone; pixels as `save_pixels` wrote."""
    # Copies on write: torch warns about arrays that it cannot write to.
    auxiliary, target = (features.extract(np.load(file, mmap_mode="c")) for file in pixels)
    return data.replace_images(
        auxiliary[rows.auxiliary_images], target[rows.target_images],
        auxiliary[rows.held_out_images], target[rows.query_images], target[rows.database_images],
    )  # fmt: skip


def row_pairs(count: int) -> SparseRelation:
    """Return the relation of image i to text i only."""
    keys = [str(row) for row in range(count)]
    return SparseRelation.from_pairs(keys, keys)


def pairs_training_set(benchmark: Benchmark, rows: Rows, split: SplitData) -> TrainingSet:
    """Return auxiliary rows as pairs, without labels, and the target items of the split."""
    images = benchmark.auxiliary_images.take(rows).features
    assert images is not None
    captions = split.text_features.transform(benchmark.auxiliary_texts.take(rows).items)
    target = split.training.target_images, split.training.target_texts
    return TrainingSet(images, captions, row_pairs(len(rows)), *target)
