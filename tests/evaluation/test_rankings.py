"""Rankings by real-valued scores have the same metrics as rankings by codes."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, P, R

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.errors import DataError
from transhash.evaluation import DistanceHistogram, Scores, evaluate, scores, tie_groups
from transhash.evaluation.scores import score_tie_groups


def random_scores(seed: int = 0, items: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of 9 queries, and one class per query and item."""
    rng = np.random.default_rng(seed)
    labels = [np.eye(3, dtype=bool)[rng.integers(0, 3, n)] for n in (9, items)]
    return rng.standard_normal((9, items)), labels[0], labels[1]


@pytest.mark.parametrize("seed", range(3))
def test_scores_without_ties_equal_ir_measures(seed: int) -> None:
    score, query_labels, labels = random_scores(seed)
    relevant = query_labels.astype(int) @ labels.T.astype(int)
    qrels = [
        ir_measures.Qrel(str(q), str(i), int(relevant[q, i])) for q, i in np.ndindex(score.shape)
    ]
    run = [
        ir_measures.ScoredDoc(str(q), str(i), float(score[q, i]))
        for q, i in np.ndindex(score.shape)
    ]
    theirs = ir_measures.calc_aggregate([AP, P @ 5, P @ 10, R @ 5, R @ 10], qrels, run)
    blocks = score_tie_groups(lambda rows: score[rows], LabelRelation(query_labels, labels))
    ours = Scores.from_counts(blocks, ranks=[5, 10, 1000])
    assert ours.map == pytest.approx(theirs[AP], rel=1e-9)
    assert ours.precision_at == pytest.approx({5: theirs[P @ 5], 10: theirs[P @ 10]})
    assert ours.recall_at == pytest.approx({5: theirs[R @ 5], 10: theirs[R @ 10]})
    assert ours.best_tie_order == ours.worst_tie_order == ours.map
    assert ours.bits is None
    assert ours.pr_by_radius == []
    assert len(ours.pr_by_rank) == 101
    assert ours.to_dict()["database"] == 60


def test_hamming_distances_as_scores_give_the_metrics_of_the_codes() -> None:
    rng = np.random.default_rng(1)
    queries, database = (Codes(rng.integers(0, 256, (n, 1), np.uint8), 8) for n in (9, 60))
    _, query_labels, labels = random_scores()
    distances = queries.hamming(database)
    for definition, cutoff in (
        ("all", None),
        ("hits", 7),
        ("thulab/DeepHash", 2),
        ("torchcmh", 4),
        ("scikit-learn", None),
    ):
        by_code = evaluate(
            queries, database, query_labels, labels, definition=definition, cutoff=cutoff
        )
        blocks = score_tie_groups(
            lambda rows: -1.5 * distances[rows], LabelRelation(query_labels, labels)
        )
        by_score = Scores.from_counts(blocks, definition=definition, cutoff=cutoff)
        expected = by_code.to_dict() | {
            "bits": None,
            "ranking": "scores",
            "pr_by_radius": [],
        }
        for name, value in by_score.to_dict().items():
            assert value == (
                pytest.approx(expected[name], abs=1e-12)
                if isinstance(value, float)
                else expected[name]
            ), name


@pytest.mark.parametrize("definition", ["all", "HashNet", "DCHMT", "BMC-SDNU"])
def test_the_metrics_do_not_depend_on_the_block_size(
    definition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, query_labels, labels = random_scores(2)
    score = np.round(score)
    cutoff = 3 if definition == "HashNet" else None

    def compute() -> Scores:
        blocks = score_tie_groups(lambda rows: score[rows], LabelRelation(query_labels, labels))
        return Scores.from_counts(blocks, definition=definition, cutoff=cutoff)

    in_one_block = compute()
    monkeypatch.setattr(scores, "_CHUNK_PAIRS", 130)  # two queries at a time
    assert compute() == in_one_block
    assert in_one_block.worst_tie_order < in_one_block.map < in_one_block.best_tie_order


def test_equal_scores_are_one_group_and_the_highest_comes_first() -> None:
    score = np.array([[0.5, 2.0, 0.5, -1.0], [1.0, 1.0, 1.0, 1.0]], np.float32)
    relevant = np.array([[1, 0, 0, 1], [0, 1, 1, 0]])
    groups = tie_groups(score, relevant)
    assert groups == DistanceHistogram(
        np.array([[1, 2, 1], [4, 0, 0]]), np.array([[0, 1, 1], [2, 0, 0]])
    )
    known = np.array([[1, 1, 0, 1], [0, 1, 1, 1]])
    assert tie_groups(score, relevant, known).items.tolist() == [[1, 1, 1], [3, 0, 0]]


def test_groups_without_relevant_items_are_merged() -> None:
    score = np.array([[9.0, 8.0, 8.0, 7.0, 6.0, 5.0, 4.0], [9, 8, 7, 6, 5, 4, 3]])
    relevant = np.array([[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    groups = tie_groups(score, relevant)
    assert groups.items.tolist() == [[3, 1, 1, 2], [7, 0, 0, 0]]
    assert groups.relevant.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]


def test_texts_can_be_the_queries() -> None:
    score, query_labels, labels = random_scores(3)
    relation = LabelRelation(query_labels, labels)
    transposed = LabelRelation(labels, query_labels)
    by_texts = score_tie_groups(lambda rows: score.T[rows], relation, from_texts=True)
    assert Scores.from_counts(by_texts) == Scores.from_counts(
        score_tie_groups(lambda rows: score.T[rows], transposed)
    )


def test_pairs_of_unknown_relation_are_not_ranked() -> None:
    relation = SparseRelation.from_triples([(0, 0), (0, 2), (1, 1)], [1.0, 0.0, 1.0], (2, 3))
    score = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 6.0]])
    (forward,) = score_tie_groups(lambda rows: score[rows], relation)
    assert forward.items.sum(axis=1).tolist() == [2, 1]
    (backward,) = score_tie_groups(lambda rows: score.T[rows], relation, from_texts=True)
    assert backward.relevant_totals.tolist() == [1, 1, 0]


def test_nan_and_a_wrong_shape_are_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        tie_groups(np.array([[1.0, np.nan]]), np.ones((1, 2)))
    with pytest.raises(DataError, match="1 queries and 2 items"):
        tie_groups(np.ones((2, 1)), np.ones((1, 2)))
