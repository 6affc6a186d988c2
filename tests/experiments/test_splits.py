"""What no method may learn from: the parts of a split, words of queries, labels of the target."""

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
# Settings that make a fit of these few items quick; what they learn does not matter here.
QUICK = {
    "steps": 15,
    "batch_size": 16,
    "target_batch_size": 8,
    "image_hidden": (8,),
    "text_hidden": (8,),
}


def collections(rows: int, seed: int, domain: str) -> tuple[Collection[Path], Collection[str]]:
    """Images as features and texts as words, row i of both with the same one or two labels.

    The first feature of an image is its row, and no two texts are made of the same words.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, len(CLASSES), (rows, 2))
    labels = [frozenset(CLASSES[k] for k in some) for some in kinds]
    centres = rng.standard_normal((len(CLASSES), 12))
    features = centres[kinds].sum(axis=1) + rng.standard_normal((rows, 12))
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


def whole_numbers(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=least, max_value=most)


drawn = given(
    seed=whole_numbers(0, 10**6),
    sizes=st.builds(
        SplitSizes,
        queries=whole_numbers(1, 20),
        auxiliary=whole_numbers(5, 60),
        target=whole_numbers(1, 15),
        per_class=whole_numbers(1, 5),
    ),
)


@settings(max_examples=60, deadline=None)
@drawn
def test_across_domains_no_part_of_a_split_meets_another(seed: int, sizes: SplitSizes) -> None:
    whole = benchmark("imagenet-yahooqa", sizes=sizes)
    split = whole.split(seed)
    for kind, target in (("images", whole.images), ("texts", whole.texts)):
        rows = {name: getattr(split, f"{name}_{kind}") for name in _names(split)}
        assert disjoint([rows["auxiliary"], rows["held_out"]])
        assert len(rows["auxiliary"]) + len(rows["held_out"]) == 130
        assert disjoint([rows["query"], rows["database"]])
        assert len(rows["query"]) + len(rows["database"]) == len(target)
        assert disjoint([rows["query"], rows["target"]])
        assert set(rows["target"]) <= set(rows["database"])
        for part in rows.values():
            assert len(set(part)) == len(part) > 0


@settings(max_examples=60, deadline=None)
@drawn
def test_in_one_domain_no_pair_serves_two_parts_of_a_split(seed: int, sizes: SplitSizes) -> None:
    split = benchmark("nus-wide", sizes=sizes).split(seed)
    assert np.array_equal(split.query_images, split.query_texts)
    assert np.array_equal(split.database_images, split.database_texts)
    learned = [
        getattr(split, f"{name}_{kind}")
        for name in ("auxiliary", "held_out", "target")
        for kind in ("images", "texts")
    ]
    assert disjoint([split.query_images, *learned])
    assert disjoint([split.query_images, split.database_images])
    assert len(split.query_images) + len(split.database_images) == 130
    for part in learned:
        assert len(set(part)) == len(part) > 0


def _names(split: SplitRows) -> set[str]:
    return {name.removesuffix("_images") for name in vars(split) if name.endswith("_images")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_of_a_split_hold_the_rows_of_its_parts(protocol: str) -> None:
    whole = benchmark(protocol)
    split, task = whole.split(3), build_split(whole, 3, texts="bag-of-words")
    arrays = {
        "auxiliary": (task.training.images, task.training.texts),
        "held_out": (task.held_out.images, task.held_out.texts),
        "target": (task.training.target_images, task.training.target_texts),
        "query": (task.target.query_images.features, task.target.query_texts.features),
        "database": (task.target.database_images.features, task.target.database_texts.features),
    }
    for name, (images, texts) in arrays.items():
        assert images[:, 0].tolist() == getattr(split, f"{name}_images").tolist()
        source = whole.auxiliary_texts if name in ("auxiliary", "held_out") else whole.texts
        rows = getattr(split, f"{name}_texts")
        expected = task.text_features.transform(source.take(rows).items)
        assert np.array_equal(texts, expected)
        assert len(np.unique(texts, axis=0)) > len(texts) / 2  # other rows would show


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_words_are_counted_on_training_texts_alone(protocol: str) -> None:
    whole = benchmark(protocol)
    split = whole.split(1)

    def marked(texts: Collection[str], **parts: npt.NDArray[np.int64]) -> Collection[str]:
        """A word of its own in the texts of every part, and one in all others."""
        part_of = {row: name for name, rows in parts.items() for row in rows.tolist()}
        words = [f"{text} only{part_of.get(i, 'stored')}" for i, text in enumerate(texts.items)]
        return replace(texts, items=words)

    target = {"asked": split.query_texts, "target": split.target_texts}
    auxiliary = {"learned": split.auxiliary_texts, "heldout": split.held_out_texts}
    if protocol == "nus-wide":
        texts = marked(whole.texts, **target, **auxiliary)
        changed = replace(whole, texts=texts, auxiliary_texts=texts)
    else:
        changed = replace(
            whole,
            texts=marked(whole.texts, **target),
            auxiliary_texts=marked(whole.auxiliary_texts, **auxiliary),
        )

    def seen(**options: Any) -> list[str]:
        lists = build_split(changed, 1, **options).text_features.lists()
        words = [word for part in lists.values() for word in part]  # those that count or do not
        return sorted(word for word in words if word.startswith("only"))

    assert seen() == ["onlylearned", "onlytarget"]
    assert seen(uses_target=False) == ["onlylearned"]


def test_methods_that_use_no_target_items_get_words_of_auxiliary_texts_alone() -> None:
    using = {m.name for m in METHODS if _uses_target(Cell(m.name, 8, 0), {})}
    assert using == {
        "THN", "THN-ip", "THN-Q", "THN-paper", "THN-no-mmd", "THN-no-soft-labels", "THN-no-pseudo-labels",
        "THN-paper-network", "CVH+target", "QCH+target", "DCMH+target", "CCA+target",
    }  # fmt: skip
    assert not _uses_target(Cell("THN", 8, 0), {"use_target": False, "alignment_weight": 0.0})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_taught_by_pairs_every_auxiliary_text_is_that_of_an_auxiliary_image(protocol: str) -> None:
    whole = replace(benchmark(protocol), supervision="pairs")
    split, task = whole.split(2), build_split(whole, 2)
    for kind, related in (("auxiliary", task.training), ("held_out", task.held_out)):
        images, texts = getattr(split, f"{kind}_images"), getattr(split, f"{kind}_texts")
        assert np.array_equal(images, getattr(benchmark(protocol).split(2), f"{kind}_images"))
        own = [[whole.auxiliary_images.ids[row] for row in images]]
        own.append([whole.auxiliary_texts.ids[row] for row in texts])
        assert sorted(own[0]) == sorted(own[1])
        s, known = related.relation.block(np.arange(len(images)), np.arange(len(texts)))
        assert known is None
        assert np.array_equal(s, np.equal.outer(own[0], own[1]))
    assert disjoint([split.auxiliary_texts, split.held_out_texts])


@pytest.mark.parametrize("uses_target", [True, False])
def test_components_of_images_are_found_on_training_images(uses_target: bool) -> None:
    whole = benchmark("imagenet-yahooqa")
    task, less = (
        build_split(whole, 1, uses_target=uses_target, image_components=count)
        for count in (None, 2)
    )
    assert less.training.images.shape[1] == less.target.query_images.features.shape[1] == 2
    assert task.training.target_images is not None
    known = [task.training.images, *([task.training.target_images] if uses_target else [])]
    mean = np.concatenate(known).mean(axis=0)
    spread = np.linalg.svd(np.concatenate(known) - mean, full_matrices=False)[2][:2]
    for wide, narrow in (
        (task.training.images, less.training.images),
        (task.training.target_images, less.training.target_images),
        (task.held_out.images, less.held_out.images),
        (task.target.query_images.features, less.target.query_images.features),
        (task.target.database_images.features, less.target.database_images.features),
    ):
        np.testing.assert_allclose(np.abs(narrow), np.abs((wide - mean) @ spread.T), atol=1e-3)
    with pytest.raises(DataError, match="image_components = 4096"):
        build_split(whole, 1, image_components=4096)


@pytest.mark.parametrize("method", [*PAPER_METHODS, "THN-paper", "QCH+target"])
def test_other_target_labels_leave_every_bit_as_it_was(method: str) -> None:
    whole = benchmark("imagenet-yahooqa")
    rng = np.random.default_rng(5)
    images, texts = (
        replace(part, labels=[(part.labels or ())[row] for row in rng.permutation(len(part))])
        for part in (whole.images, whole.texts)
    )
    kept = make_hasher(method).settings()
    quick = {name: value for name, value in QUICK.items() if name in kept}
    quick |= {"epochs": 2} if "epochs" in kept else {}

    def codes(data: Benchmark) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
        task = build_split(data, 0)
        hasher = make_hasher(method, bits=8, **quick)
        best, trials = tune(hasher, task.training, task.held_out, trials=2)
        assert len(trials) == 2
        target = task.target
        packed = [
            best.encode_images(target.query_images.features).packed.tobytes(),
            best.encode_texts(target.query_texts.features).packed.tobytes(),
            best.encode_images(target.database_images.features).packed.tobytes(),
            best.encode_texts(target.database_texts.features).packed.tobytes(),
        ]
        return packed, target.query_images.labels

    first, labels = codes(whole)
    again, other_labels = codes(replace(whole, images=images, texts=texts))
    assert not np.array_equal(labels, other_labels)
    assert again == first
    assert len(set(first[2])) > 1  # codes that say something
