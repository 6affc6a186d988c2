"""Scores of one direction, from the counts of its tie groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.errors import DataError
from transhash.evaluation.average_precision import Floats
from transhash.evaluation.definitions import Definition, find_definition
from transhash.evaluation.histogram import RECALL_STEPS, DistanceHistogram
from transhash.evaluation.rankings import weighted_blocks
from transhash.index.weighted import RankingMode, check_mode, query_weights

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
    definition_in_words: str
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
            definition_in_words=meaning.in_words(at),
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
            "definition_in_words": self.definition_in_words,
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
            f"{self.map:.4f} {self.definition_in_words} [{self.definition}]; "
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
    matrices, items x classes. `ranking` "ties" or "all" ranks finer, by the real values whose
    signs the query codes are, (queries, bits).
    """
    find_definition(definition, at)  # refuse a wrong name before the work
    if check_mode(ranking) == "hamming":
        histogram = DistanceHistogram.of(
            query_codes, database_codes, query_labels, database_labels, workers=workers
        )
        return Scores.of(histogram, definition=definition, at=at, ranks=ranks)
    if query_projections is None or Codes.from_projections(query_projections) != query_codes:
        raise DataError(
            f"the ranking {ranking!r} needs query_projections, the real values whose signs the "
            "query codes are"
        )
    weights = query_weights(query_projections, ranking)
    assert weights is not None  # not by Hamming distance
    blocks = weighted_blocks(query_codes, database_codes, weights, query_labels, database_labels)
    return Scores.of(
        blocks, definition=definition, at=at, ranks=ranks, ranking=ranking, bits=query_codes.bits
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
    orders = {"as ranked": of_ranking, "all equal": meaning.per_query(block.all_codes_equal(), at)}
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
