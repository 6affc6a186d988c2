"""No method learns from held-out items, words of queries or labels of target items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.data.benchmark import Benchmark, SplitRows, SplitSizes
from transhash.data.collection import Collection
from transhash.errors import DataError
from transhash.experiments.plan import Cell
from transhash.experiments.runner import _uses_target
from transhash.hashers import METHODS, PAPER_METHODS, make_hasher
from transhash.hashers.tuning import tune
from transhash.training.split_data import build_split

CLASSES = ("boat", "cat", "tree", "house")
PROTOCOLS = ("imagenet-yahooqa", "nus-wide")
SIZES = SplitSizes(queries=14, auxiliary=40, target=12, per_class=3)
# For a fast fit; how well it learns does not matter here.
QUICK = {
    "steps": 15,
    "batch_size": 16,
    "target_batch_size": 8,
    "image_hidden": (8,),
    "text_hidden": (8,),
}


def collections(rows: int, seed: int, domain: str) -> tuple[Collection[Path], Collection[str]]:
    """Return image features and texts; row i of both has the same one or two labels.

    The first feature of an image is its row, and all texts differ.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(CLASSES), (rows, 2))
    labels = [frozenset(CLASSES[k] for k in some) for some in kinds]
    centers = rng.standard_normal((len(CLASSES), 12))
    features = centers[kinds].sum(axis=1) + rng.standard_normal((rows, 12))
    features = np.column_stack([np.arange(rows), features]).astype(np.float32)
    words = [
        f"{' '.join(sorted(some))} {domain} w{i % 9} v{i // 9}" for i, some in enumerate(labels)
    ]
    ids = [str(i) for i in range(rows)]
    return (
        Collection(ids, [Path(f"{domain}-{name}") for name in ids], labels, features),
        Collection(ids, words, labels),
    )


def benchmark(
    protocol: str, rows: int = 130, sizes: SplitSizes = SIZES, seed: int = 0
) -> Benchmark:
    images, texts = collections(rows, seed, "photo")
    if protocol == "nus-wide":
        return Benchmark("tiny", protocol, images, texts, images, texts, sizes)
    others = collections(rows - 30, seed + 1, "drawing")
    return Benchmark("tiny", protocol, images, texts, *others, sizes)


def disjoint(parts: Iterable[npt.NDArray[np.int64]]) -> bool:
    sets = [set(part.tolist()) for part in parts]
    return not any(a & b for a, b in combinations(sets, 2))


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=low, max_value=high)


random_splits = given(
    seed=integers(0, 10**6),
    sizes=st.builds(
        SplitSizes,
        queries=integers(1, 20),
        auxiliary=integers(5, 60),
        target=integers(1, 15),
        per_class=integers(1, 5),
    ),
)


@settings(max_examples=60, deadline=None)
@random_splits
def test_across_domains_the_parts_of_a_split_are_disjoint(seed: int, sizes: SplitSizes) -> None:
    full = benchmark("imagenet-yahooqa", sizes=sizes)
    split = full.split(seed)
    for modality, target in (("images", full.images), ("texts", full.texts)):
        rows = {name: getattr(split, f"{name}_{modality}") for name in _names(split)}
        assert disjoint([rows["auxiliary"], rows["held_out"]])
        assert len(rows["auxiliary"]) + len(rows["held_out"]) == 130
        assert disjoint([rows["query"], rows["database"]])
        assert len(rows["query"]) + len(rows["database"]) == len(target)
        assert disjoint([rows["query"], rows["target"]])
        assert set(rows["target"]) <= set(rows["database"])
        for part in rows.values():
            assert len(set(part)) == len(part) > 0


@settings(max_examples=60, deadline=None)
@random_splits
def test_in_one_domain_no_pair_is_in_two_parts_of_a_split(seed: int, sizes: SplitSizes) -> None:
    split = benchmark("nus-wide", sizes=sizes).split(seed)
    assert np.array_equal(split.query_images, split.query_texts)
    assert np.array_equal(split.database_images, split.database_texts)
    training = [
        getattr(split, f"{name}_{modality}")
        for name in ("auxiliary", "held_out", "target")
        for modality in ("images", "texts")
    ]
    assert disjoint([split.query_images, *training])
    assert disjoint([split.query_images, split.database_images])
    assert len(split.query_images) + len(split.database_images) == 130
    for part in training:
        assert len(set(part)) == len(part) > 0


def _names(split: SplitRows) -> set[str]:
    return {name.removesuffix("_images") for name in vars(split) if name.endswith("_images")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_of_a_split_have_the_rows_of_its_parts(protocol: str) -> None:
    full = benchmark(protocol)
    rows, split = full.split(3), build_split(full, 3, texts="bag-of-words")
    arrays = {
        "auxiliary": (split.training.images, split.training.texts),
        "held_out": (split.held_out.images, split.held_out.texts),
        "target": (split.training.target_images, split.training.target_texts),
        "query": (split.test.query_images.features, split.test.query_texts.features),
        "database": (split.test.database_images.features, split.test.database_texts.features),
    }
    for name, (images, texts) in arrays.items():
        assert images[:, 0].tolist() == getattr(rows, f"{name}_images").tolist()
        source = full.auxiliary_texts if name in ("auxiliary", "held_out") else full.texts
        expected_texts = source.take(getattr(rows, f"{name}_texts")).items
        expected = split.text_features.transform(expected_texts)
        assert np.array_equal(texts, expected)
        assert len(np.unique(texts, axis=0)) > len(texts) / 2  # so that other rows would differ


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text_features_are_fitted_on_training_texts_only(protocol: str) -> None:
    full = benchmark(protocol)
    split = full.split(1)

    def mark(texts: Collection[str], **parts: npt.NDArray[np.int64]) -> Collection[str]:
        """Add a different word to the texts of every part."""
        part_of = {row: name for name, rows in parts.items() for row in rows.tolist()}
        words = [f"{text} only{part_of.get(i, 'stored')}" for i, text in enumerate(texts.items)]
        return replace(texts, items=words)

    target = {"query": split.query_texts, "target": split.target_texts}
    auxiliary = {"auxiliary": split.auxiliary_texts, "heldout": split.held_out_texts}
    if protocol == "nus-wide":
        texts = mark(full.texts, **target, **auxiliary)
        changed = replace(full, texts=texts, auxiliary_texts=texts)
    else:
        changed = replace(
            full,
            texts=mark(full.texts, **target),
            auxiliary_texts=mark(full.auxiliary_texts, **auxiliary),
        )

    def fitted_words(**options: Any) -> list[str]:
        lists = build_split(changed, 1, **options).text_features.word_lists()
        words = [word for part in lists.values() for word in part]
        return sorted(word for word in words if word.startswith("only"))

    assert fitted_words() == ["onlyauxiliary", "onlytarget"]
    assert fitted_words(uses_target=False) == ["onlyauxiliary"]


def test_only_methods_that_use_target_items_get_their_words() -> None:
    using = {m.name for m in METHODS if _uses_target(Cell(m.name, None, 8, 0), {})}
    assert using == {
        "THN", "THN-ip", "THN-Q", "THN-paper", "THN-no-mmd", "THN-no-soft-labels",
        "THN-no-pseudo-labels", "THN-paper-network", "CVH+target", "QCH+target",
        "DCMH+target", "CCA+target", "IMH+target", "kNN+target", "ridge+target",
        "ridge-classifier+target",
    }  # fmt: skip
    assert not _uses_target(Cell("THN", None, 8, 0), {"use_target": False, "alignment_weight": 0.0})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_pairs_every_auxiliary_text_belongs_to_an_auxiliary_image(protocol: str) -> None:
    full = replace(benchmark(protocol), supervision="pairs")
    rows, split = full.split(2), build_split(full, 2)
    for name, related in (("auxiliary", split.training), ("held_out", split.held_out)):
        images, texts = getattr(rows, f"{name}_images"), getattr(rows, f"{name}_texts")
        assert np.array_equal(images, getattr(benchmark(protocol).split(2), f"{name}_images"))
        image_ids = [full.auxiliary_images.ids[row] for row in images]
        text_ids = [full.auxiliary_texts.ids[row] for row in texts]
        assert sorted(image_ids) == sorted(text_ids)
        s, known = related.relation.block(np.arange(len(images)), np.arange(len(texts)))
        assert known is None
        assert np.array_equal(s, np.equal.outer(image_ids, text_ids))
    assert disjoint([rows.auxiliary_texts, rows.held_out_texts])


@pytest.mark.parametrize("uses_target", [True, False])
def test_image_components_are_fitted_on_training_images(uses_target: bool) -> None:
    full = benchmark("imagenet-yahooqa")
    split, reduced = (
        build_split(full, 1, uses_target=uses_target, image_components=count) for count in (None, 2)
    )
    assert reduced.training.images.shape[1] == reduced.test.query_images.features.shape[1] == 2
    assert split.training.target_images is not None
    fitted_on = [split.training.images, *([split.training.target_images] if uses_target else [])]
    mean = np.concatenate(fitted_on).mean(axis=0)
    axes = np.linalg.svd(np.concatenate(fitted_on) - mean, full_matrices=False)[2][:2]
    for wide, narrow in (
        (split.training.images, reduced.training.images),
        (split.training.target_images, reduced.training.target_images),
        (split.held_out.images, reduced.held_out.images),
        (split.test.query_images.features, reduced.test.query_images.features),
        (split.test.database_images.features, reduced.test.database_images.features),
    ):
        np.testing.assert_allclose(np.abs(narrow), np.abs((wide - mean) @ axes.T), atol=1e-3)
    with pytest.raises(DataError, match="image_components = 4096"):
        build_split(full, 1, image_components=4096)


@pytest.mark.parametrize("method", [*PAPER_METHODS, "THN-paper", "QCH+target"])
def test_target_labels_do_not_change_any_bit(method: str) -> None:
    full = benchmark("imagenet-yahooqa")
    rng = np.random.default_rng(5)
    images, texts = (
        replace(part, labels=[(part.labels or ())[row] for row in rng.permutation(len(part))])
        for part in (full.images, full.texts)
    )
    settings = make_hasher(method).settings()
    quick = {name: value for name, value in QUICK.items() if name in settings}
    quick |= {"epochs": 2} if "epochs" in settings else {}

    def codes(data: Benchmark) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
        split = build_split(data, 0)
        hasher = make_hasher(method, bits=8, **quick)
        best, trials = tune(hasher, split.training, split.held_out, trials=2)
        assert len(trials) == 2
        test = split.test
        packed = [
            best.encode_images(test.query_images.features).packed.tobytes(),
            best.encode_texts(test.query_texts.features).packed.tobytes(),
            best.encode_images(test.database_images.features).packed.tobytes(),
            best.encode_texts(test.database_texts.features).packed.tobytes(),
        ]
        return packed, test.query_images.labels

    first, labels = codes(full)
    again, other_labels = codes(replace(full, images=images, texts=texts))
    assert not np.array_equal(labels, other_labels)
    assert again == first
    assert len(set(first[2])) > 1  # not collapsed
