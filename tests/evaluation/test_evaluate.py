"""evaluate() from end to end, and against other libraries."""

from __future__ import annotations

import json

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, P, R
from sklearn.metrics import average_precision_score

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.evaluation import Scores, evaluate, label_matrix

BITS = 32
CLASSES = ["boat", "bird", "tree"]


def without_ties(seed: int = 0) -> tuple[Codes, Codes, np.ndarray, np.ndarray]:
    """Queries with code 0 and a database with one item at each distance 0..32, shuffled."""
    rng = np.random.default_rng(seed)
    distances = rng.permutation(BITS + 1)
    signs = np.where(np.arange(BITS) < distances[:, None], 1.0, -1.0)
    query_labels = rng.random((6, 3)) < 0.6
    query_labels[:, 0] |= ~query_labels.any(axis=1)
    labels = rng.random((BITS + 1, 3)) < 0.3
    labels[0] = True  # something is relevant to every query
    queries = Codes.from_projections(np.full((6, BITS), -1.0))
    return queries, Codes.from_projections(signs), query_labels, labels


def with_ties(seed: int = 0, bits: int = 8) -> tuple[Codes, Codes, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = [Codes(rng.integers(0, 256, (n, bits // 8), dtype=np.uint8), bits) for n in (20, 300)]
    return (*codes, rng.random((20, 5)) < 0.3, rng.random((300, 5)) < 0.2)


def relevance(query_labels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (query_labels.astype(int) @ labels.T.astype(int)) > 0


@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_ir_measures_on_data_without_ties(seed: int) -> None:
    queries, database, query_labels, labels = without_ties(seed)
    relevant, distances = relevance(query_labels, labels), queries.hamming(database)
    qrels = [
        ir_measures.Qrel(str(q), str(i), int(relevant[q, i])) for q, i in np.ndindex(relevant.shape)
    ]
    run = [
        ir_measures.ScoredDoc(str(q), str(i), -float(distances[q, i]))
        for q, i in np.ndindex(distances.shape)
    ]
    ours = evaluate(queries, database, query_labels, labels, ranks=[5, 10])
    cut = evaluate(queries, database, query_labels, labels, cutoff=10)
    theirs = ir_measures.calc_aggregate([AP, AP @ 10, P @ 5, P @ 10, R @ 5, R @ 10], qrels, run)
    assert ours.map == pytest.approx(theirs[AP], rel=1e-9)
    assert cut.map == pytest.approx(theirs[AP @ 10], rel=1e-9)
    assert ours.precision_at == pytest.approx({5: theirs[P @ 5], 10: theirs[P @ 10]})
    assert ours.recall_at == pytest.approx({5: theirs[R @ 5], 10: theirs[R @ 10]})


@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_scikit_learn_on_data_without_ties(seed: int) -> None:
    data = without_ties(seed)
    assert evaluate(*data).map == pytest.approx(_sklearn_map(*data), rel=1e-12)


def test_the_scikit_learn_definition_equals_scikit_learn_on_data_with_ties() -> None:
    data = with_ties()
    scores = evaluate(*data, definition="scikit-learn")
    assert scores.map == pytest.approx(_sklearn_map(*data), rel=1e-12)
    assert scores.map < evaluate(*data).map
    assert scores.best_tie_order == scores.worst_tie_order == scores.map


def _sklearn_map(queries: Codes, database: Codes, query_labels: np.ndarray, labels: np.ndarray):
    relevant, distances = relevance(query_labels, labels), queries.hamming(database).astype(float)
    rows = [q for q in range(len(queries)) if relevant[q].any()]
    return np.mean([average_precision_score(relevant[q], -distances[q]) for q in rows])


def test_scores_have_a_description_and_can_be_written_as_json() -> None:
    scores = evaluate(*with_ties(), definition="thulab/DeepHash", cutoff=100)
    plain = json.loads(json.dumps(scores.to_dict()))
    assert plain["definition"] == "thulab/DeepHash"
    assert plain["definition_text"].startswith("mAP@100, divided by the relevant items found")
    assert plain["queries"] == 20
    assert plain["database"] == 300
    assert set(plain["precision_at"]) == {"1", "5", "10", "50", "100"}
    assert len(plain["pr_by_rank"]) == 101
    assert plain["pr_by_radius"][-1][:2] == [8, 1.0]
    assert "thulab/DeepHash" in str(scores)


def test_map_lies_between_the_tie_orders_and_chance_is_that_of_equal_codes() -> None:
    queries, database, query_labels, labels = with_ties()
    scores = evaluate(queries, database, query_labels, labels)
    assert scores.worst_tie_order < scores.map < scores.best_tie_order
    same = Codes(np.zeros((300, 1), dtype=np.uint8), 8)
    assert evaluate(queries, same, query_labels, labels).map == pytest.approx(scores.chance)


def test_the_order_of_the_database_does_not_matter() -> None:
    queries, database, query_labels, labels = with_ties()
    order = np.lexsort(labels.T)  # stored class by class, which misleads a stable sort
    by_class = evaluate(queries, database[order], query_labels, labels[order])
    assert by_class == evaluate(queries, database, query_labels, labels)


def test_queries_without_relevant_items_are_counted_and_excluded() -> None:
    queries, database, query_labels, labels = with_ties()
    answerable = relevance(query_labels, labels).any(axis=1)
    query_labels = query_labels.copy()
    query_labels[:4] = False
    rows = np.arange(4, 20)[answerable[4:]]
    scores = evaluate(queries, database, query_labels, labels)
    alone = evaluate(queries[rows], database, query_labels[rows], labels)
    assert scores.queries_without_relevant == 20 - len(rows)
    assert scores.map == pytest.approx(alone.map, rel=1e-12)
    assert scores.pr_by_rank == alone.pr_by_rank
    assert (
        evaluate(queries, database, query_labels, labels, definition="DCHMT").to_dict()["map"]
        is None
    )


def test_label_names_become_a_matrix() -> None:
    matrix = label_matrix([{"boat", "tree"}, [], ("bird",)], CLASSES)
    assert matrix.tolist() == [[True, False, True], [False] * 3, [False, True, False]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["boat"], ["tiger"]], "tiger"),
        (["boat"], "Item 0"),
    ],
)
def test_bad_label_names_are_refused_with_the_item(labels: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        label_matrix(labels, CLASSES)


def test_bad_input_is_refused() -> None:
    queries, database, query_labels, labels = with_ties()
    wide = Codes(np.zeros((300, 2), dtype=np.uint8), 16)
    no_labels = np.zeros_like(labels)
    for arguments, message in [
        ((queries, wide, query_labels, labels), "8 bits but the database has 16"),
        ((queries, database, query_labels[:3], labels), "20 query codes but 3 rows"),
        (
            (queries, database, query_labels, labels[:, :2]),
            "5 classes but the database labels have 2",
        ),
        ((queries, database, query_labels, labels[:, 0]), "boolean matrix"),
        ((queries, database, query_labels, labels * 3), "must be 0 or 1"),
        ((queries, database, query_labels, no_labels), "None of the 20 queries"),
        ((queries, database[:0], query_labels, labels[:0]), "20 queries, 0"),
        ((queries[:0], database, query_labels[:0], labels), "0 queries"),
    ]:
        with pytest.raises(DataError, match=message):
            evaluate(*arguments)
    with pytest.raises(DataError, match="rank must be 1 or more"):
        evaluate(queries, database, query_labels, labels, cutoff=0)
    assert isinstance(evaluate(queries, database, query_labels * 1.0, labels * 1), Scores)
