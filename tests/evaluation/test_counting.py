"""Counts of pairs at each distance against loops, with the native kernel and with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram
from transhash.evaluation import histogram as histograms


@pytest.fixture(scope="module", autouse=True, params=["kernel", "numpy"])
def _counter(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernel" and histograms.native is None:
        pytest.skip("the native kernel was not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(histograms, "native", None)
        yield


def draw(
    seed: int, bits: int, queries: int, items: int, classes: int, distinct: int
) -> tuple[Codes, Codes, np.ndarray, np.ndarray]:
    """Random codes, the database drawn from `distinct` of them."""
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 256, (distinct, bits // 8), dtype=np.uint8)
    database = Codes(pool[rng.integers(0, distinct, items)], bits)
    near = Codes(pool[rng.integers(0, distinct, queries)], bits)
    return (
        near,
        database,
        rng.random((queries, classes)) < 0.3,
        rng.random((items, classes)) < 0.3,
    )


def count_with_loops(
    query_codes: Codes, codes: Codes, related: np.ndarray, known: np.ndarray | None = None
) -> DistanceHistogram:
    items = np.zeros((len(query_codes), codes.bits + 1), dtype=np.int64)
    relevant = items.copy()
    distances = query_codes.hamming(codes)
    for q in range(len(query_codes)):
        for i in range(len(codes)):
            if known is None or known[q, i]:
                items[q, distances[q, i]] += 1
                relevant[q, distances[q, i]] += bool(related[q, i])
    return DistanceHistogram(items, relevant)


def shares_label(
    query_codes: Codes, codes: Codes, query_labels: np.ndarray, labels: np.ndarray
) -> DistanceHistogram:
    related = (query_labels[:, None] & labels).any(axis=2)
    return count_with_loops(query_codes, codes, related)


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 40, 64, 72, 128, 136, 256])
@pytest.mark.parametrize("distinct", [1, 7, 5000])
def test_counts_equal_a_loop_over_all_pairs(bits: int, distinct: int) -> None:
    data = draw(bits, bits, 9, 150, 5, distinct)
    assert DistanceHistogram.from_codes(*data) == shares_label(*data)


@pytest.mark.parametrize("classes", [0, 1, 8, 9, 64, 65, 200])
def test_any_number_of_classes_is_counted(classes: int) -> None:
    data = draw(classes, 16, 7, 80, classes, 20)
    assert DistanceHistogram.from_codes(*data) == shares_label(*data)


def test_counts_do_not_depend_on_workers() -> None:
    data = draw(1, 16, 40, 3000, 6, 500)
    single = DistanceHistogram.from_codes(*data, workers=1)
    assert DistanceHistogram.from_codes(*data, workers=3) == single


def relations(rng: np.random.Generator, images: int, texts: int) -> list[Relation]:
    """A relation of labels, one of pairs, and one of clicks with unknown pairs."""
    labels = LabelRelation(rng.random((images, 4)) < 0.4, rng.random((texts, 4)) < 0.4)
    keys = [[str(key) for key in rng.integers(0, 9, count)] for count in (images, texts)]
    clicked = rng.choice(images * texts, images * texts // 3, replace=False)
    pairs = [(int(pair) // texts, int(pair) % texts) for pair in clicked]
    values = [1.0, *rng.integers(0, 2, len(pairs) - 1).tolist()]
    clicks = SparseRelation.from_triples(pairs, values, (images, texts))
    return [labels, SparseRelation.from_pairs(*keys), clicks]


@given(st.integers(0, 10**6), st.sampled_from([8, 32, 40, 136]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_known_pairs_of_a_relation_are_counted_in_both_directions(
    seed: int, bits: int, small_blocks: bool
) -> None:
    texts, images, *_ = draw(seed, bits, 40, 30, 1, 1 + seed % 50)
    everything = np.arange(len(images)), np.arange(len(texts))
    with pytest.MonkeyPatch.context() as patch:
        if small_blocks:
            patch.setattr(histograms, "_CHUNK_PAIRS", 200)
        for relation in relations(np.random.default_rng(seed), len(images), len(texts)):
            s, known = relation.block(*everything)
            assert DistanceHistogram.from_relation(images, texts, relation) == count_with_loops(
                images, texts, s, known
            )
            assert DistanceHistogram.from_relation(
                texts, images, relation, from_texts=True
            ) == count_with_loops(texts, images, s.T, None if known is None else known.T)


def test_a_label_relation_is_counted_like_its_labels() -> None:
    images, texts, image_labels, text_labels = draw(5, 24, 50, 60, 5, 40)
    relation = LabelRelation(image_labels, text_labels)
    by_labels = DistanceHistogram.from_codes(images, texts, image_labels, text_labels)
    assert DistanceHistogram.from_relation(images, texts, relation) == by_labels


def test_codes_that_do_not_fit_the_relation_are_refused() -> None:
    images, texts, image_labels, text_labels = draw(5, 24, 5, 6, 5, 40)
    relation = LabelRelation(image_labels, text_labels)
    with pytest.raises(DataError, match="6 query codes and 5 database codes"):
        DistanceHistogram.from_relation(texts, images, relation)
    with pytest.raises(DataError, match="same model"):
        DistanceHistogram.from_relation(images, Codes(texts.packed[:, :2], 16), relation)


@given(
    st.integers(0, 10**6),
    st.sampled_from([8, 24, 64]),
    st.lists(st.integers(0, 60), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_histograms_add_over_any_shards(seed: int, bits: int, cuts: list[int]) -> None:
    queries, database, query_labels, labels = draw(seed, bits, 5, 60, 4, 1 + seed % 30)
    bounds = [0, *sorted(cuts), 60]
    shards = [
        DistanceHistogram.from_codes(
            queries, database[slice(a, b)], query_labels, labels[slice(a, b)], workers=1
        )
        for a, b in pairwise(bounds)
    ]
    whole = DistanceHistogram.from_codes(queries, database, query_labels, labels, workers=1)
    assert reduce(add, shards) == whole


def test_labels_in_strided_arrays_are_counted() -> None:
    queries, database, query_labels, labels = draw(2, 32, 9, 70, 8, 30)
    halves = query_labels[:, ::2], labels[:, ::2]
    assert DistanceHistogram.from_codes(queries, database, *halves) == shares_label(
        queries, database, *halves
    )


@pytest.mark.parametrize(("queries", "items"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_count_gives_empty_tables(queries: int, items: int) -> None:
    data = draw(1, 16, queries, items, 3, 9)
    table = DistanceHistogram.from_codes(*data)
    assert table.items.shape == (queries, 17)
    assert table.items.sum() == 0
