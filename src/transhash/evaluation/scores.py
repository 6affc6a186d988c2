"""Scores of one direction, from the counts of its tie groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.relation import LabelRelation, Relation
from transhash.errors import DataError
from transhash.evaluation.average_precision import Floats
from transhash.evaluation.definitions import Definition, find_definition
from transhash.evaluation.histogram import RECALL_STEPS, DistanceHistogram
from transhash.index.weighted import (
    MAX_COST,
    BitWeights,
    RankingMode,
    check_ranking,
    query_weights,
    weighted_costs,
)

# Rankings by scores as tie groups: of methods without codes, and of codes whose bits weigh.

_PAIRS = 2_000_000  # of queries and items at a time: about 200 MB on the way


def score_tie_groups(
    score: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]],
    relation: Relation,
    *,
    from_texts: bool = False,
) -> Iterator[DistanceHistogram]:
    """Tie groups of all queries, some queries at a time, for `Scores.from_counts`.

    `score(rows)` gives (rows, items), larger for what comes first. The relation's images ask, or
    its texts if `from_texts`. Pairs of unknown s_ij are left out of the list.
    """
    queries, items = relation.shape[::-1] if from_texts else relation.shape
    step, everything = max(1, _PAIRS // max(items, 1)), np.arange(items)
    for start in range(0, queries, step):
        rows = np.arange(start, min(start + step, queries))
        if from_texts:
            s, known = relation.block(everything, rows)
            s, known = s.T, None if known is None else known.T
        else:
            s, known = relation.block(rows, everything)
        yield tie_groups(score(rows), s, known)


def weighted_tie_groups(
    queries: Codes,
    database: Codes,
    weights: BitWeights,
    query_labels: npt.ArrayLike,
    database_labels: npt.ArrayLike,
) -> Iterator[DistanceHistogram]:
    """Tie groups of ranking by what differing bits weigh; relevant means sharing a label."""
    relation = LabelRelation(np.asarray(query_labels), np.asarray(database_labels))
    if relation.shape != (len(queries), len(database)):
        raise DataError(
            f"{len(queries)} queries against {len(database)} items, but the labels are of "
            f"{relation.shape[0]} and {relation.shape[1]}"
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
    """Tie groups of what an engine answered: database rows, -1 for none, and costs, cheapest first.

    Items that it left out come last, as one group.
    """
    labels = np.asarray(database_labels, np.float32)
    related = np.asarray(query_labels, np.float32) @ labels.T > 0  # (queries, items)
    scores = np.full(related.shape, -MAX_COST)
    asked, place = np.nonzero(rows >= 0)
    scores[asked, rows[asked, place]] = -costs[asked, place]
    return tie_groups(scores, related)


def tie_groups(
    scores: npt.NDArray[Any], relevant: npt.NDArray[Any], known: npt.NDArray[Any] | None = None
) -> DistanceHistogram:
    """Equal scores as one column, the highest first; all three are (queries, items).

    The columns are not distances, so the table has no radius curve. Short rows end in zeros.
    """
    if scores.shape != relevant.shape:
        raise DataError(
            f"{relevant.shape[0]} queries against {relevant.shape[1]} items, but the scores have "
            f"the shape {scores.shape}"
        )
    if np.isnan(scores).any():
        raise DataError("a score is not a number, so it has no place in a ranking")
    order = np.argsort(-scores, axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    group = _numbered(ranked[:, 1:] != ranked[:, :-1])
    hits = _summed(group, np.take_along_axis(relevant, order, axis=1))
    if known is None:
        items = _summed(group, None)
    else:
        items = _summed(group, np.take_along_axis(known, order, axis=1))
    # What lies between two groups with something relevant changes no score by its order, so it
    # becomes one group: thousands of columns shrink to twice the relevant items.
    group = _numbered((hits[:, 1:] > 0) | (hits[:, :-1] > 0))
    return DistanceHistogram(_summed(group, items), _summed(group, hits))


def _numbered(begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The group of each column of a row, given which columns but the first begin a new one."""
    group = np.zeros((len(begins), begins.shape[1] + 1), np.int64)
    np.cumsum(begins, axis=1, out=group[:, 1:])
    return group


def _summed(group: npt.NDArray[np.int64], values: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Sums of the values (None: ones) of each group, (rows, groups)."""
    rows, width = len(group), int(group.max(initial=0)) + 1
    place = (group + np.arange(rows)[:, None] * width).ravel()
    weights = None if values is None else values.ravel()
    return np.bincount(place, weights, rows * width).reshape(rows, width).astype(np.int64)


RANKS = (1, 5, 10, 50, 100, 500, 1000, 5000)


@dataclass(frozen=True)
class Scores:
    """The scores of one direction, with what they mean. Precision, recall and the curves are
    means over the queries that have something relevant in the database."""

    map: float
    chance: float  # the same definition with all codes equal
    best_tie_order: float  # in each tie group the relevant items first
    worst_tie_order: float
    queries: int
    database: int
    bits: int | None  # None where no code ranks
    ranking: str  # hamming, ties or all (docs/search.md); "scores" where no code ranks
    queries_without_relevant: int
    definition: str
    definition_text: str
    at: int | None
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    pr_by_rank: list[tuple[float, float]]  # recall, interpolated precision
    pr_by_radius: list[tuple[int, float, float]]  # radius, recall, precision; empty without codes

    @classmethod
    def of(
        cls,
        counted: DistanceHistogram | Iterable[DistanceHistogram],
        *,
        definition: str = "all",
        at: int | None = None,
        ranks: Sequence[int] = RANKS,
        ranking: RankingMode = "hamming",
        bits: int | None = None,
    ) -> Scores:
        """All scores of a histogram, or of other rankings, which come some queries at a time.

        Ranks beyond the database are left out. `ranking` and `bits` say which codes gave the
        other rankings, and how; without `bits` none did.
        """
        meaning = find_definition(definition, at)
        codes = counted if isinstance(counted, DistanceHistogram) else None
        blocks = [counted] if isinstance(counted, DistanceHistogram) else counted
        parts = [_per_query(block, meaning, at, ranks) for block in blocks if len(block)]
        size = parts[0].database if parts else 0
        queries = sum(len(part.answerable) for part in parts)
        if not size:
            raise DataError(f"nothing to evaluate: {queries} queries against {size} database items")
        answerable = np.concatenate([part.answerable for part in parts])
        if not answerable.any():
            raise DataError(
                f"none of the {queries} queries shares a label with any of the {size} database "
                "items; check that both sides use the same class names"
            )

        def mean(order: str) -> float:
            values, hit = (np.concatenate(each) for each in zip(*(p.orders[order] for p in parts)))
            return meaning.mean(values, hit, answerable)

        def means(what: str) -> dict[int, float]:
            tables = [getattr(part, what) for part in parts]
            return {k: float(np.concatenate([t[k] for t in tables]).mean()) for k in tables[0]}

        curve = np.concatenate([part.curve for part in parts]).mean(axis=0)
        return cls(
            map=mean("as ranked"),
            chance=mean("all equal"),
            best_tie_order=mean("relevant first"),
            worst_tie_order=mean("relevant last"),
            queries=queries,
            database=size,
            bits=bits if codes is None else codes.items.shape[1] - 1,
            ranking="scores" if codes is None and bits is None else ranking,
            queries_without_relevant=int((~answerable).sum()),
            definition=definition,
            definition_text=meaning.relevance_label(at),
            at=at,
            precision_at=means("precision_at"),
            recall_at=means("recall_at"),
            pr_by_rank=[(step / RECALL_STEPS, float(p)) for step, p in enumerate(curve)],
            pr_by_radius=[]
            if codes is None
            else [(int(d), float(r), float(p)) for d, r, p in codes.answerable().radius_curve()],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ranks become strings and NaN becomes null there."""
        return {
            "map": _number(self.map),
            "chance": _number(self.chance),
            "queries": self.queries,
            "database": self.database,
            "bits": self.bits,
            "ranking": self.ranking,
            "queries_without_relevant": self.queries_without_relevant,
            "definition": self.definition,
            "definition_text": self.definition_text,
            "at": self.at,
            "best_tie_order": _number(self.best_tie_order),
            "worst_tie_order": _number(self.worst_tie_order),
            "precision_at": {str(rank): value for rank, value in self.precision_at.items()},
            "recall_at": {str(rank): value for rank, value in self.recall_at.items()},
            "pr_by_rank": [list(point) for point in self.pr_by_rank],
            "pr_by_radius": [list(point) for point in self.pr_by_radius],
        }

    def __str__(self) -> str:
        """One line that can stand beside a published figure."""
        answered = self.queries - self.queries_without_relevant
        return (
            f"{self.map:.4f} {self.definition_text} [{self.definition}]; "
            f"ranking {self.ranking}; "
            f"{answered} of {self.queries} queries have something relevant among "
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
    at: int | None = None,
    ranks: Sequence[int] = RANKS,
    workers: int | None = None,
    ranking: RankingMode = "hamming",
    query_projections: npt.ArrayLike | None = None,
) -> Scores:
    """Scores of ranking the database by Hamming distance; relevant means sharing a label.

    `definition` names a meaning of MAP (see DEFINITIONS), `at` cuts it off. Labels are boolean
    matrices, items x classes. `ranking` "tiebreak" or "weighted" ranks finer, by the real values whose
    signs the query codes are, (queries, bits).
    """
    find_definition(definition, at)  # refuse a wrong name before the work
    if check_ranking(ranking) == "hamming":
        histogram = DistanceHistogram.from_codes(
            query_codes, database_codes, query_labels, database_labels, workers=workers
        )
        return Scores.from_counts(histogram, definition=definition, cutoff=at, ranks=ranks)
    if query_projections is None or Codes.from_projections(query_projections) != query_codes:
        raise DataError(
            f"the ranking {ranking!r} needs query_projections, the real values whose signs the "
            "query codes are"
        )
    weights = query_weights(query_projections, ranking)
    assert weights is not None  # not by Hamming distance
    blocks = weighted_tie_groups(
        query_codes, database_codes, weights, query_labels, database_labels
    )
    return Scores.from_counts(
        blocks, definition=definition, cutoff=at, ranks=ranks, ranking=ranking, bits=query_codes.bits
    )


class _Part(NamedTuple):
    """What a block of queries says: nothing in it depends on the other queries."""

    database: int
    answerable: npt.NDArray[np.bool_]
    orders: dict[str, tuple[Floats, Floats]]  # AP and chance of a hit, by order inside ties
    precision_at: dict[int, Floats]  # here and below of the answerable queries only
    recall_at: dict[int, Floats]
    curve: Floats  # (answerable queries, 101)


def _per_query(
    block: DistanceHistogram, meaning: Definition, at: int | None, ranks: Sequence[int]
) -> _Part:
    of_ranking = meaning.per_query(block, at)
    orders = {
        "as ranked": of_ranking,
        "all equal": meaning.per_query(block.collapse_to_one_group(), at),
    }
    mixed = ((block.relevant > 0) & (block.relevant < block.items)).any()
    # scikit-learn's rule does not look inside a tie group, so no order changes it.
    if mixed and meaning.denominator != "group end":
        orders["relevant first"] = meaning.per_query(block.relevant_first(), at)
        orders["relevant last"] = meaning.per_query(block.relevant_last(), at)
    else:
        orders |= dict.fromkeys(("relevant first", "relevant last"), of_ranking)
    answerable = block.answerable()
    reported = [rank for rank in ranks if rank <= block.database]
    return _Part(
        block.database,
        block.relevant_totals > 0,
        orders,
        {rank: answerable.precision_at(rank) for rank in reported},
        {rank: answerable.recall_at(rank) for rank in reported},
        answerable.precision_by_recall(),
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
