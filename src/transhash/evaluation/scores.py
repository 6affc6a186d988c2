"""Scores of one direction, from the counts of its tie groups, and tie groups of any ranking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Relation
from transhash.errors import DataError, check_type
from transhash.evaluation.average_precision import Floats
from transhash.evaluation.definitions import Definition, find_definition
from transhash.evaluation.histogram import RECALL_STEPS, DistanceHistogram, relation_blocks
from transhash.index.weighted import (
    MAX_COST,
    BitWeights,
    RankingMode,
    check_ranking,
    query_weights,
    weighted_costs,
)

RANKS = (1, 5, 10, 50, 100, 500, 1000, 5000)
_CHUNK_PAIRS = 2_000_000  # of queries and items at a time: about 200 MB of temporary arrays


def score_tie_groups(
    score: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]],
    relation: Relation,
    *,
    from_texts: bool = False,
) -> Iterator[DistanceHistogram]:
    """Yield tie groups of some queries at a time, for `Scores.from_counts`.

    `score(rows)` returns (rows, items), larger is better. The queries are the relation's images, or
    its texts if `from_texts`. Pairs of unknown s_ij are not ranked.
    """
    for rows, s, known in relation_blocks(relation, _CHUNK_PAIRS, from_texts=from_texts):
        yield tie_groups(score(rows), s, known)


def weighted_tie_groups(
    queries: Codes,
    database: Codes,
    weights: BitWeights,
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
) -> Iterator[DistanceHistogram]:
    """Yield tie groups of a ranking by weighted bits; relevant means sharing a label."""
    relation = LabelRelation(np.asarray(query_labels), np.asarray(database_labels))
    if relation.shape != (len(queries), len(database)):
        raise DataError(
            f"Got {len(queries)} queries and {len(database)} items, but labels for "
            f"{relation.shape[0]} and {relation.shape[1]}."
        )
    return score_tie_groups(
        lambda rows: -weighted_costs(queries[rows], database, weights[rows]), relation
    )


def result_tie_groups(
    rows: npt.NDArray[np.int64],
    costs: npt.NDArray[np.int64],
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
) -> DistanceHistogram:
    """Return tie groups of search results: database rows (-1 for none) and their costs.

    Items that the search omitted come last, as one group.
    """
    labels = np.asarray(database_labels, np.float32)
    related = np.asarray(query_labels, np.float32) @ labels.T > 0  # (queries, items)
    scores = np.full(related.shape, -MAX_COST)
    query, rank = np.nonzero(rows >= 0)
    scores[query, rows[query, rank]] = -costs[query, rank]
    return tie_groups(scores, related)


def tie_groups(
    scores: npt.NDArray[Any], relevant: npt.NDArray[Any], known: npt.NDArray[Any] | None = None
) -> DistanceHistogram:
    """Return a table with one column per distinct score, highest first; inputs: (queries, items).

    The columns are not distances, so the table has no radius curve. Short rows end in zeros.
    """
    if scores.shape != relevant.shape:
        raise DataError(
            f"Got {relevant.shape[0]} queries and {relevant.shape[1]} items, but scores of shape "
            f"{scores.shape}."
        )
    if np.isnan(scores).any():
        raise DataError("A score is NaN, so it cannot be ranked.")
    order = np.argsort(-scores, axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    group = _number_groups(ranked[:, 1:] != ranked[:, :-1])
    hits = _sum_groups(group, np.take_along_axis(relevant, order, axis=1))
    items = _sum_groups(group, None if known is None else np.take_along_axis(known, order, axis=1))
    # The order of items between two groups with relevant items changes no score, so they become one
    # group: thousands of columns shrink to twice the relevant items.
    group = _number_groups((hits[:, 1:] > 0) | (hits[:, :-1] > 0))
    return DistanceHistogram(_sum_groups(group, items), _sum_groups(group, hits))


def _number_groups(begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the group of each column, given which columns after the first begin a new one."""
    group = np.zeros((len(begins), begins.shape[1] + 1), np.int64)
    np.cumsum(begins, axis=1, out=group[:, 1:])
    return group


def _sum_groups(
    group: npt.NDArray[np.int64], values: npt.NDArray[Any] | None
) -> npt.NDArray[np.int64]:
    """Return the sums of the values (None: ones) of each group, (rows, groups)."""
    rows, width = len(group), int(group.max(initial=0)) + 1
    place = (group + np.arange(rows)[:, None] * width).ravel()
    weights = None if values is None else values.ravel()
    return np.bincount(place, weights, rows * width).reshape(rows, width).astype(np.int64)


@dataclass(frozen=True)
class Scores:
    """Scores of one direction and their definition.

    Precision, recall and the curves are means over the queries that have relevant items.
    """

    map: float
    chance: float  # the same definition with all codes equal
    best_tie_order: float  # in each tie group the relevant items first
    worst_tie_order: float
    queries: int
    database: int
    bits: int | None  # None for a ranking without codes
    ranking: str  # hamming, tiebreak or weighted (docs/search.md); "scores" without codes
    queries_without_relevant: int
    definition: str
    definition_text: str
    cutoff: int | None
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    pr_by_rank: list[tuple[float, float]]  # recall, interpolated precision
    pr_by_radius: list[tuple[int, float, float]]  # radius, recall, precision; empty without codes

    @classmethod
    def from_counts(
        cls,
        counts: DistanceHistogram | Iterable[DistanceHistogram],
        *,
        definition: str = "all",
        cutoff: int | None = None,
        ranks: Sequence[int] = RANKS,
        ranking: RankingMode = "hamming",
        bits: int | None = None,
    ) -> Scores:
        """Compute all scores of a histogram, or of tie groups that come in blocks of queries.

        Ranks beyond the database are omitted. `ranking` and `bits` describe the codes behind tie
        groups of another ranking; without `bits` there are none.
        """
        map_definition = find_definition(definition, cutoff)
        histogram = counts if isinstance(counts, DistanceHistogram) else None
        blocks = [counts] if isinstance(counts, DistanceHistogram) else counts
        parts = [
            _score_block(block, map_definition, cutoff, ranks) for block in blocks if len(block)
        ]
        size = parts[0].database if parts else 0
        queries = sum(len(part.answerable) for part in parts)
        if not size:
            raise DataError(f"Nothing to evaluate: {queries} queries, {size} database items.")
        answerable = np.concatenate([part.answerable for part in parts])
        if not answerable.any():
            raise DataError(
                f"None of the {queries} queries shares a label with any of the {size} database "
                "items. Use the same class names on both sides."
            )

        def mean(order: str) -> float:
            values, hits = (np.concatenate(each) for each in zip(*(p.orders[order] for p in parts)))
            return map_definition.mean(values, hits, answerable)

        def means(name: str) -> dict[int, float]:
            tables = [getattr(part, name) for part in parts]
            return {k: float(np.concatenate([t[k] for t in tables]).mean()) for k in tables[0]}

        curve = np.concatenate([part.curve for part in parts]).mean(axis=0)
        radius_curve = () if histogram is None else histogram.answerable().radius_curve()
        return cls(
            map=mean("as ranked"),
            chance=mean("all equal"),
            best_tie_order=mean("relevant first"),
            worst_tie_order=mean("relevant last"),
            queries=queries,
            database=size,
            bits=bits if histogram is None else histogram.items.shape[1] - 1,
            ranking="scores" if histogram is None and bits is None else ranking,
            queries_without_relevant=int((~answerable).sum()),
            definition=definition,
            definition_text=map_definition.describe(cutoff),
            cutoff=cutoff,
            precision_at=means("precision_at"),
            recall_at=means("recall_at"),
            pr_by_rank=[(step / RECALL_STEPS, float(p)) for step, p in enumerate(curve)],
            pr_by_radius=[(int(d), float(r), float(p)) for d, r, p in radius_curve],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: ranks as strings, NaN as null."""
        values = asdict(self)
        for name in ("map", "chance", "best_tie_order", "worst_tie_order"):
            values[name] = None if math.isnan(values[name]) else values[name]
        for name in ("precision_at", "recall_at"):
            values[name] = {str(rank): value for rank, value in values[name].items()}
        for name in ("pr_by_rank", "pr_by_radius"):
            values[name] = [list(point) for point in values[name]]
        return values

    def __str__(self) -> str:
        answered = self.queries - self.queries_without_relevant
        return (
            f"{self.map:.4f} {self.definition_text} [{self.definition}]; "
            f"ranking {self.ranking}; "
            f"{answered} of {self.queries} queries have relevant items among "
            f"{self.database} items; chance {self.chance:.4f}; "
            f"tie order worst {self.worst_tie_order:.4f}, best {self.best_tie_order:.4f}"
        )


def evaluate(
    query_codes: Codes,
    database_codes: Codes,
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
    *,
    definition: str = "all",
    cutoff: int | None = None,
    ranks: Sequence[int] = RANKS,
    workers: int | None = None,
    ranking: RankingMode = "hamming",
    query_projections: npt.ArrayLike | None = None,
) -> Scores:
    """Score the ranking of the database for each query; relevant means sharing a label.

    `definition` is a name in DEFINITIONS, `cutoff` a rank for those that use one. Labels are
    boolean matrices, items x classes. The rankings "tiebreak" and "weighted" need
    `query_projections`, (queries, bits), the real values whose signs are the query codes.
    """
    for codes in (query_codes, database_codes):
        check_type(codes, Codes, "The codes", "transhash.Codes")
    find_definition(definition, cutoff)  # fail before the work
    if check_ranking(ranking) == "hamming":
        histogram = DistanceHistogram.from_codes(
            query_codes, database_codes, query_labels, database_labels, workers=workers
        )
        return Scores.from_counts(histogram, definition=definition, cutoff=cutoff, ranks=ranks)
    if query_projections is None or Codes.from_projections(query_projections) != query_codes:
        raise DataError(
            f"The ranking {ranking!r} needs the projections of the query codes. "
            "Pass them as query_projections."
        )
    weights = query_weights(query_projections, ranking)
    assert weights is not None
    blocks = weighted_tie_groups(
        query_codes, database_codes, weights, query_labels, database_labels
    )
    return Scores.from_counts(
        blocks,
        definition=definition,
        cutoff=cutoff,
        ranks=ranks,
        ranking=ranking,
        bits=query_codes.bits,
    )


class _BlockScores(NamedTuple):
    """Scores of a block of queries, which do not depend on the other queries."""

    database: int
    answerable: npt.NDArray[np.bool_]
    orders: dict[str, tuple[Floats, Floats]]  # AP and probability of a hit, by order inside ties
    precision_at: dict[int, Floats]  # here and below only of the answerable queries
    recall_at: dict[int, Floats]
    curve: Floats  # (answerable queries, 101)


def _score_block(
    block: DistanceHistogram, definition: Definition, cutoff: int | None, ranks: Sequence[int]
) -> _BlockScores:
    as_ranked = definition.per_query(block, cutoff)
    orders = {
        "as ranked": as_ranked,
        "all equal": definition.per_query(block.collapse_to_one_group(), cutoff),
    }
    mixed = ((block.relevant > 0) & (block.relevant < block.items)).any()
    # scikit-learn's definition ignores the order inside a tie group.
    if mixed and definition.denominator != "group end":
        orders["relevant first"] = definition.per_query(block.relevant_first(), cutoff)
        orders["relevant last"] = definition.per_query(block.relevant_last(), cutoff)
    else:
        orders |= dict.fromkeys(("relevant first", "relevant last"), as_ranked)
    answerable = block.answerable()
    reported = [rank for rank in ranks if rank <= block.database]
    return _BlockScores(
        block.database,
        block.relevant_totals > 0,
        orders,
        {rank: answerable.precision_at(rank) for rank in reported},
        {rank: answerable.recall_at(rank) for rank in reported},
        answerable.precision_by_recall(),
    )
