"""What "MAP" means, by name: ours, and the one in each repository people compare with.

All of them are evaluated in expectation over the orders of tied items; the repositories leave that
order to their sort, so their figures scatter around these.
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

Denominator = Literal["relevant", "smaller", "found", "first", "group end"]
Empty = Literal["dropped", "no hit dropped", "zero", "nan"]

_DENOMINATORS: dict[Denominator, str] = {
    "relevant": "divided by all relevant items",
    "smaller": "divided by the smaller of the cut and all relevant items",
    "found": "divided by the relevant items found before the cut",
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
    """One meaning of MAP."""

    name: str
    denominator: Denominator
    empty: Empty
    extra_queries: int = 0  # added to the number of queries the sum is divided by
    drops_last: bool = False  # without a cut, the last rank is lost
    source: str = "transhash"

    def cut(self, at: int | None, longest: int) -> int:
        """The last rank that counts; lists differ in length where pairs of unknown s_ij are."""
        if at is not None:
            return check_rank(at)
        return max(longest - self.drops_last, 1)

    def score(self, histogram: DistanceHistogram, at: int | None = None) -> float:
        """MAP, or MAP@at, of the histogram; NaN if no query counts."""
        return self.mean(*self.per_query(histogram, at), histogram.relevant_totals > 0)

    def mean(self, values: Floats, hit: Floats, answerable: npt.NDArray[np.bool_]) -> float:
        """MAP from what `per_query` says, for all queries together."""
        if self.empty == "no hit dropped":
            return _mean_of_hits(values, hit)
        if self.empty == "nan" and not answerable.all():
            return float("nan")
        counted = int(answerable.sum()) if self.empty == "dropped" else len(values)
        counted += self.extra_queries
        return float(values.sum() / counted) if counted else float("nan")

    def per_query(
        self, histogram: DistanceHistogram, at: int | None = None
    ) -> tuple[Floats, Floats]:
        """Expected AP of each query (0 without a hit), and the chance that it has a hit."""
        items, relevant = histogram.items, histogram.relevant
        total = histogram.relevant_totals
        cut = self.cut(at, int(items.sum(axis=1).max(initial=0)))
        if self.denominator == "found":
            return hits_precision(items, relevant, cut)
        if self.denominator == "first":
            values = first_relevant_precision(items, relevant, cut)
        elif self.denominator == "group end":
            values = group_end_precision(items, relevant)
        else:
            divisor = total if self.denominator == "relevant" else np.minimum(total, cut)
            values = precision_sums(items, relevant, cut).sum(axis=1) / np.maximum(divisor, 1)
        return values, (total > 0).astype(np.float64)

    def relevance_label(self, at: int | None = None) -> str:
        parts = [
            f"mAP@{'all' if at is None else at}",
            _DENOMINATORS[self.denominator],
            _EMPTY[self.empty],
        ]
        if self.extra_queries:
            parts.append(f"{self.extra_queries} queries too many in the mean, as there")
        if self.drops_last and at is None:
            parts.append("last rank lost, as there")
        if self.denominator != "group end":
            parts.append("ties in expectation")
        return ", ".join(parts)


_THULAB = "evaluation/__init__.py get_mAPs: R is given there, e.g. 5000 on NUS-WIDE"
_FIRST = "calc_map_k: k relevant items, not k ranks"

DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        Definition("all", "relevant", "dropped"),
        Definition("smaller", "smaller", "dropped"),
        Definition("found", "found", "dropped"),
        Definition("thulab/DeepHash", "found", "no hit dropped", source=_THULAB),
        Definition("HashNet", "found", "no hit dropped", source="pytorch/src/test.py"),
        Definition("UCCH", "found", "no hit dropped", source="fx_calc_map_multilabel_k"),
        Definition(
            "DeepHash-pytorch",
            "found",
            "zero",
            drops_last=True,
            source="utils/tools.py CalcTopMap: topK=-1 slices the last item off",
        ),
        Definition("FIRe", "found", "zero", source="functions/metrics.py calculate_mAP"),
        Definition("torchmetrics", "found", "zero", source="RetrievalMAP(top_k=...)"),
        Definition("DCMH", "relevant", "zero", source="calc_hammingranking.py calc_map"),
        Definition("UCMFH", "relevant", "zero", source="calculate_map"),
        Definition("torchcmh", "first", "zero", source=_FIRST),
        Definition("WendellGul/DCMH", "first", "zero", source=_FIRST),
        Definition("DSPH", "first", "zero", source="calc_map_k_matrix"),
        Definition("DCHMT", "first", "nan", source="calc_map_k, matrix version"),
        Definition(
            "BMC-SDNU",
            "relevant",
            "dropped",
            extra_queries=10,
            source="perf_metric4Label.m of CVH, IMH, CCQ, CMFH, DLFH, LSSH: goodQueryNum = 10",
        ),
        Definition("ranx", "relevant", "zero", source="average_precision"),
        Definition("trec_eval", "relevant", "zero", source="map, map_cut; also ir_measures AP@k"),
        Definition("TALR", "relevant", "dropped", source="+eval/tieAP.m: exactly our default"),
        Definition("scikit-learn", "group end", "dropped", source="average_precision_score"),
    )
}

# Without a cut in the original; a cut would be somebody else's definition.
_WITHOUT_CUT = frozenset({"DCMH", "UCMFH", "BMC-SDNU", "TALR", "scikit-learn"})


def find_definition(name: str, at: int | None = None) -> Definition:
    try:
        definition = DEFINITIONS[name]
    except KeyError:
        known = ", ".join(DEFINITIONS)
        raise DataError(f"no definition of MAP is called {name!r}; there are {known}") from None
    if at is not None and name in _WITHOUT_CUT:
        raise DataError(
            f"{name} has no cut-off, so mAP@{at} by its definition does not exist; "
            f"leave the cut-off out or take 'all', 'smaller' or 'found'"
        )
    return definition


def _mean_of_hits(values: Floats, hit: Floats) -> float:
    """E[Σ AP / number of queries with a hit], exact although both are random.

    Queries are ordered independently of each other and a query without a hit adds nothing, so
    the expectation is Σ_q E[AP_q] E[1 / (1 + hits among the others)], and E[1 / (1 + X)] is the
    integral over [0, 1] of X's generating function, a polynomial that Gauss-Legendre integrates
    exactly.
    """
    certain = hit >= 1 - 1e-15
    uncertain = ~certain & (hit > 0)
    sure = int(certain.sum())
    if not uncertain.any():
        return float(values[certain].mean()) if sure else float("nan")
    nodes, weights = roots_legendre((sure + int(uncertain.sum())) // 2 + 1)
    x, weights = (nodes + 1) / 2, weights / 2
    chance = hit[uncertain, None]
    logs = np.log(1 - chance + chance * x)  # (uncertain queries, nodes)
    everybody = sure * np.log(x) + logs.sum(axis=0)
    mean = values[certain].sum() * (weights @ np.exp(everybody - np.log(x)))
    mean += values[uncertain] @ (np.exp(everybody - logs) @ weights)
    # If all queries may come out empty, the mean is over the outcomes in which one does not.
    nothing = 0.0 if sure else float(np.prod(1 - chance))
    return float(mean / (1 - nothing))
