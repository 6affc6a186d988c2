"""Definitions of MAP by name: ours, and those of repositories that people compare with.

All are computed in expectation over the orders of tied items. The repositories leave that order to
their sort, so their numbers scatter around these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import roots_legendre

from transhash.errors import DataError
from transhash.evaluation.average_precision import (
    Floats,
    first_relevant_precision,
    group_end_precision,
    hits_precision,
    precision_sums,
)
from transhash.evaluation.histogram import DistanceHistogram, check_rank

Denominator = Literal["relevant", "min", "hits", "first", "group end"]
Empty = Literal["dropped", "no hit dropped", "zero", "nan"]

_DENOMINATORS: dict[Denominator, str] = {
    "relevant": "divided by all relevant items",
    "min": "divided by the smaller of the cut and all relevant items",
    "hits": "divided by the relevant items found before the cut",
    "first": "mean precision at the first k relevant items, however deep",
    "group end": "every relevant item scored with the precision at the end of its tie group",
}
_EMPTY: dict[Empty, str] = {
    "dropped": "queries with nothing relevant dropped",
    "no hit dropped": "queries without a hit before the cut dropped",
    "zero": "queries with nothing relevant counted as 0",
    "nan": "NaN as soon as one query has nothing relevant",
}


@dataclass(frozen=True)
class Definition:
    """One definition of MAP."""

    name: str
    denominator: Denominator
    empty: Empty
    extra_queries: int = 0  # added to the number of queries the sum is divided by
    drops_last: bool = False  # without a cutoff, the last rank is lost

    def score(self, histogram: DistanceHistogram, cutoff: int | None = None) -> float:
        """Return MAP, or MAP@cutoff, of the histogram; NaN if no query counts."""
        return self.mean(*self.per_query(histogram, cutoff), histogram.relevant_totals > 0)

    def mean(
        self, values: Floats, hit_probability: Floats, answerable: npt.NDArray[np.bool_]
    ) -> float:
        """Return MAP of all queries, given the results of `per_query`."""
        if self.empty == "no hit dropped":
            return _mean_of_hits(values, hit_probability)
        if self.empty == "nan" and not answerable.all():
            return float("nan")
        queries = int(answerable.sum()) if self.empty == "dropped" else len(values)
        queries += self.extra_queries
        return float(values.sum() / queries) if queries else float("nan")

    def per_query(
        self, histogram: DistanceHistogram, cutoff: int | None = None
    ) -> tuple[Floats, Floats]:
        """Return the expected AP of each query (0 without a hit) and the probability of a hit."""
        items, relevant = histogram.items, histogram.relevant
        total = histogram.relevant_totals
        # Where pairs of unknown relation are skipped, lists differ in length.
        last = (
            max(histogram.database - self.drops_last, 1) if cutoff is None else check_rank(cutoff)
        )
        if self.denominator == "hits":
            return hits_precision(items, relevant, last)
        if self.denominator == "first":
            values = first_relevant_precision(items, relevant, last)
        elif self.denominator == "group end":
            values = group_end_precision(items, relevant)
        else:
            divisor = total if self.denominator == "relevant" else np.minimum(total, last)
            values = precision_sums(items, relevant, last).sum(axis=1) / np.maximum(divisor, 1)
        return values, (total > 0).astype(np.float64)

    def describe(self, cutoff: int | None = None) -> str:
        parts = [
            f"mAP@{'all' if cutoff is None else cutoff}",
            _DENOMINATORS[self.denominator],
            _EMPTY[self.empty],
        ]
        if self.extra_queries:
            parts.append(f"{self.extra_queries} extra queries in the mean")
        if self.drops_last and cutoff is None:
            parts.append("last rank lost")
        if self.denominator != "group end":
            parts.append("ties in expectation")
        return ", ".join(parts)


# Comments name the function of the original.
DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        Definition("all", "relevant", "dropped"),
        Definition("min", "min", "dropped"),
        Definition("hits", "hits", "dropped"),
        Definition("thulab/DeepHash", "hits", "no hit dropped"),  # get_mAPs; R: 5000 on NUS-WIDE
        Definition("HashNet", "hits", "no hit dropped"),  # pytorch/src/test.py
        Definition("UCCH", "hits", "no hit dropped"),  # fx_calc_map_multilabel_k
        # utils/tools.py CalcTopMap: topK=-1 slices the last item off
        Definition("DeepHash-pytorch", "hits", "zero", drops_last=True),
        Definition("FIRe", "hits", "zero"),  # functions/metrics.py calculate_mAP
        Definition("torchmetrics", "hits", "zero"),  # RetrievalMAP(top_k=...)
        Definition("DCMH", "relevant", "zero"),  # calc_hammingranking.py calc_map
        Definition("UCMFH", "relevant", "zero"),  # calculate_map
        Definition("torchcmh", "first", "zero"),  # calc_map_k: k relevant items, not k ranks
        Definition("WendellGul/DCMH", "first", "zero"),  # calc_map_k
        Definition("DSPH", "first", "zero"),  # calc_map_k_matrix
        Definition("DCHMT", "first", "nan"),  # calc_map_k, matrix version
        # perf_metric4Label.m of CVH, IMH, CCQ, CMFH, DLFH, LSSH: goodQueryNum = 10
        Definition("BMC-SDNU", "relevant", "dropped", extra_queries=10),
        Definition("ranx", "relevant", "zero"),  # average_precision
        Definition("trec_eval", "relevant", "zero"),  # map, map_cut; also ir_measures AP@k
        Definition("TALR", "relevant", "dropped"),  # +eval/tieAP.m: the same as our default
        Definition("scikit-learn", "group end", "dropped"),  # average_precision_score
    )
}

# The original has no cutoff; one would make it a different definition.
_WITHOUT_CUTOFF = frozenset({"DCMH", "UCMFH", "BMC-SDNU", "TALR", "scikit-learn"})


def find_definition(name: str, cutoff: int | None = None) -> Definition:
    try:
        definition = DEFINITIONS[name]
    except KeyError:
        raise DataError(
            f"Unknown MAP definition {name!r}. Choose from: {', '.join(DEFINITIONS)}."
        ) from None
    if cutoff is not None and name in _WITHOUT_CUTOFF:
        raise DataError(
            f"The MAP definition {name} has no cutoff. Remove the cutoff, or use 'all', 'min' or "
            "'hits'."
        )
    return definition


def _mean_of_hits(values: Floats, hit_probability: Floats) -> float:
    """Return E[Σ AP / number of queries with a hit], exactly although both are random.

    Queries are ordered independently and a query without a hit adds nothing, so the expectation
    is Σ_q E[AP_q] E[1 / (1 + hits among the others)], and E[1 / (1 + X)] is the integral over
    [0, 1] of X's generating function, a polynomial that Gauss-Legendre quadrature integrates
    exactly.
    """
    certain = hit_probability >= 1 - 1e-15
    uncertain = ~certain & (hit_probability > 0)
    certain_count = int(certain.sum())
    if not uncertain.any():
        return float(values[certain].mean()) if certain_count else float("nan")
    nodes, weights = roots_legendre((certain_count + int(uncertain.sum())) // 2 + 1)
    x, weights = (nodes + 1) / 2, weights / 2
    probability = hit_probability[uncertain, None]
    logs = np.log(1 - probability + probability * x)  # (uncertain queries, nodes)
    all_queries = certain_count * np.log(x) + logs.sum(axis=0)
    mean = values[certain].sum() * (weights @ np.exp(all_queries - np.log(x)))
    mean += values[uncertain] @ (np.exp(all_queries - logs) @ weights)
    # If all queries may be without a hit, the mean is over the outcomes in which one has a hit.
    no_hit = 0.0 if certain_count else float(np.prod(1 - probability))
    return float(mean / (1 - no_hit))
