"""Counting pairs, shards, curves, and the file on disk."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Relation, SparseRelation
from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram
from transhash.evaluation import histogram as histograms

from .orders import CASES, Groups, histogram


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


def counted_by_loops(
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
    return counted_by_loops(query_codes, codes, related)


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 40, 64, 72, 128, 136, 256])
@pytest.mark.parametrize("distinct", [1, 7, 5000])
def test_counts_equal_a_loop_over_all_pairs(bits: int, distinct: int) -> None:
    data = draw(bits, bits, 9, 150, 5, distinct)
    assert DistanceHistogram.of(*data) == shares_label(*data)


@pytest.mark.parametrize("classes", [0, 1, 8, 9, 64, 65, 200])
def test_any_number_of_classes_is_counted(classes: int) -> None:
    data = draw(classes, 16, 7, 80, classes, 20)
    assert DistanceHistogram.of(*data) == shares_label(*data)


def test_counts_do_not_depend_on_workers() -> None:
    data = draw(1, 16, 40, 3000, 6, 500)
    whole = DistanceHistogram.of(*data, workers=1)
    assert DistanceHistogram.of(*data, workers=3) == whole


def relations(rng: np.random.Generator, images: int, texts: int) -> list[Relation]:
    """One of labels, one of pairs that are all known, one of clicks with unknown pairs."""
    labels = LabelRelation(rng.random((images, 4)) < 0.4, rng.random((texts, 4)) < 0.4)
    keys = [[str(key) for key in rng.integers(0, 9, count)] for count in (images, texts)]
    seen = rng.choice(images * texts, images * texts // 3, replace=False)
    pairs = [(int(pair) // texts, int(pair) % texts) for pair in seen]
    values = [1.0, *rng.integers(0, 2, len(pairs) - 1).tolist()]
    clicks = SparseRelation.from_triples(pairs, values, (images, texts))
    return [labels, SparseRelation.from_pairs(*keys), clicks]


@given(st.integers(0, 10**6), st.sampled_from([8, 32, 40, 136]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_relation_is_counted_both_ways_over_its_known_pairs(
    seed: int, bits: int, small_blocks: bool
) -> None:
    texts, images, *_ = draw(seed, bits, 40, 30, 1, 1 + seed % 50)
    everything = np.arange(len(images)), np.arange(len(texts))
    with pytest.MonkeyPatch.context() as patch:
        if small_blocks:
            patch.setattr(histograms, "_PAIRS", 200)
        for relation in relations(np.random.default_rng(seed), len(images), len(texts)):
            s, known = relation.block(*everything)
            assert DistanceHistogram.of_relation(images, texts, relation) == counted_by_loops(
                images, texts, s, known
            )
            assert DistanceHistogram.of_relation(
                texts, images, relation, from_texts=True
            ) == counted_by_loops(texts, images, s.T, None if known is None else known.T)


def test_a_relation_of_labels_counts_as_the_labels_do() -> None:
    images, texts, image_labels, text_labels = draw(5, 24, 50, 60, 5, 40)
    relation = LabelRelation(image_labels, text_labels)
    by_labels = DistanceHistogram.of(images, texts, image_labels, text_labels)
    assert DistanceHistogram.of_relation(images, texts, relation) == by_labels


def test_the_database_of_partly_known_queries_is_the_most_that_one_knows() -> None:
    assert histogram([(1, 1), (0, 0)], [(2, 1), (3, 0)]).database == 5


def test_codes_that_do_not_fit_the_relation_are_refused() -> None:
    images, texts, image_labels, text_labels = draw(5, 24, 5, 6, 5, 40)
    relation = LabelRelation(image_labels, text_labels)
    with pytest.raises(DataError, match="6 query codes and 5 database codes do not fit"):
        DistanceHistogram.of_relation(texts, images, relation)
    with pytest.raises(DataError, match="encode both with the same model"):
        DistanceHistogram.of_relation(images, Codes(texts.packed[:, :2], 16), relation)


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
        DistanceHistogram.of(
            queries, database[slice(a, b)], query_labels, labels[slice(a, b)], workers=1
        )
        for a, b in pairwise(bounds)
    ]
    whole = DistanceHistogram.of(queries, database, query_labels, labels, workers=1)
    assert reduce(add, shards) == whole


def test_a_saved_histogram_is_read_back(tmp_path: Path) -> None:
    table = DistanceHistogram.of(*draw(3, 32, 6, 90, 4, 90))
    table.save(tmp_path / "shard.npz")
    assert DistanceHistogram.load(tmp_path / "shard.npz") == table


def test_a_file_that_is_not_a_histogram_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("not a table")
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", items=np.array([{}]), relevant=np.array([{}]))
    for name in ("text.npz", "other.npz", "pickled.npz"):
        with pytest.raises(DataError, match=name):
            DistanceHistogram.load(tmp_path / name)


def test_histograms_of_other_queries_or_code_lengths_do_not_add() -> None:
    with pytest.raises(DataError, match="same queries and code length"):
        histogram([(2, 1)]) + histogram([(2, 1), (1, 0)])


def interpolated(ranking: np.ndarray) -> list[float]:
    """The textbook curve: greatest precision at any rank with at least that recall."""
    hits = np.cumsum(ranking)
    precision = hits / np.arange(1, len(ranking) + 1)
    return [float(precision[hits * 100 >= step * hits[-1]].max()) for step in range(101)]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=200).filter(any))
@settings(max_examples=80, deadline=None)
def test_the_curve_by_rank_is_the_textbook_one_without_ties(ranking: list[int]) -> None:
    measured = histogram([(1, value) for value in ranking]).precision_by_recall()[0]
    np.testing.assert_allclose(measured, interpolated(np.array(ranking)), rtol=1e-12)


@pytest.mark.parametrize("groups", CASES)
def test_with_ties_the_curve_by_rank_follows_the_expected_hits(groups: Groups) -> None:
    """The rule as stated: expected hits spread evenly, then the textbook curve over all ranks."""
    expected_hits = np.concatenate([np.full(n, r / n) for n, r in groups if n])
    np.testing.assert_allclose(
        histogram(groups).precision_by_recall()[0], _by_expected_hits(expected_hits), rtol=1e-9
    )


def _by_expected_hits(shares: np.ndarray) -> list[float]:
    hits = np.cumsum(shares)
    precision = hits / np.arange(1, len(hits) + 1)
    return [float(precision[hits * 100 >= step * hits[-1] - 1e-9].max()) for step in range(101)]


def test_the_curve_by_radius_pools_pairs_and_ends_at_full_recall() -> None:
    table = histogram([(0, 0), (2, 1), (3, 1)], [(0, 0), (1, 1), (4, 3)])
    np.testing.assert_allclose(table.radius_curve(), [[1, 2 / 6, 2 / 3], [2, 1.0, 6 / 10]])
