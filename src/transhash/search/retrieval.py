"""Retrieval: find items by codes, keywords or both, within filters, copies of one as one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import Modality
from transhash.index import Index, Ranking
from transhash.index.weighted import BitWeights, costs_to_items
from transhash.search.catalog import NO_FILTER, Catalog, Content, SearchFilter
from transhash.search.hits import Hit, Hits, resolve_hits
from transhash.search.keywords import KeywordMatches
from transhash.search.writer import ItemObjects

MAX_RESULTS = 10_000  # that every index backend can return without counting its items first
_SPARE_RESULTS = 8  # read in addition, so that there are k without their duplicates
# Of 255, in any of the 8 x 8 RGB pixels. Measured by benchmarks/duplicates.py: copies that were
# encoded again and scaled differ by at most 11, different images of that set by 24 or more.
_MAX_DIFFERENCE = 12
SIMILAR = "similar"  # the reason of a result whose code is near


@dataclass(frozen=True)
class QueryKeywords:
    """The words of each query that count, with their weights."""

    rarities: Sequence[Mapping[str, float]]
    alone: bool = False  # whether codes do not count


@dataclass(frozen=True)
class Retrieval:
    """The catalog and the indexes of a run, as one search uses them."""

    catalog: Catalog
    indexes: Mapping[Modality, Index]
    index_url: str  # name of the indexes in the catalog
    run: Path
    objects: ItemObjects | None = None
    keywords: QueryKeywords | None = None
    filters: SearchFilter = NO_FILTER

    def search_distinct(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None
    ) -> list[Hits]:
        """Return the k best items of each query; copies of one item are one of them."""
        count = k + k // 4 + _SPARE_RESULTS
        while True:
            results = self._search(codes, count, modality, weights)
            collapsed = [self._collapse(hits) for hits in results]
            if all(len(part) >= k or len(hits) < count for part, hits in zip(collapsed, results)):
                return self._with_reasons([part[:k] for part in collapsed])
            count *= 4

    def search(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None
    ) -> list[Hits]:
        """Return the k best items of each query."""
        return self._with_reasons(self._search(codes, k, modality, weights))

    def _search(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None
    ) -> list[Hits]:
        """Return the k best items of each query, without the fields that have its words."""
        keywords = self.keywords
        if keywords is None:
            return self._resolve(codes, self._nearest(codes, k, modality, weights))
        nearest = None if keywords.alone else self._nearest(codes, k, modality, weights)
        results = []
        for i, rarities in enumerate(keywords.rarities):
            query = codes[i : i + 1]
            arguments = modality, rarities, codes.bits // 8, self.filters.sql()
            if nearest is None:
                matches = self.catalog.words.rank(*arguments)
                numbers = matches.numbers[:k]
                distances = query.hamming(Codes(matches.codes[:k], codes.bits))
                ranking = Ranking(numbers[None], distances.astype(np.int32))
            else:
                own = None if weights is None else weights[i : i + 1]
                near = _select(nearest, np.s_[i : i + 1])
                matches = self.catalog.words.match(*arguments, near.ids[0])
                ranking = fuse(query, own, near, matches, k)
            coverage = matches.coverage_of(ranking.ids[0])
            hits = [
                replace(hit, coverage=coverage.get(hit.item.number, 0.0))
                for hit in self._resolve(query, ranking)[0]
            ]
            results.append(Hits(hits, self.catalog))
        return results

    def _resolve(self, codes: Codes, ranking: Ranking) -> list[Hits]:
        return resolve_hits(self.catalog, self.index_url, self.run, codes, ranking, self.objects)

    def _with_reasons(self, results: Sequence[Sequence[Hit]]) -> list[Hits]:
        """Return the hits with the fields that have words of the query, and whether they are near.

        Codes give no reason where they do not count.
        """
        if self.keywords is None:
            return [Hits(hits, self.catalog) for hits in results]
        explained = []
        for hits, rarities in zip(results, self.keywords.rarities):
            numbers = [hit.item.number for hit in hits if hit.coverage]
            fields = self.catalog.words.matched_fields(numbers, rarities)
            reasons = [fields.get(hit.item.number, ()) for hit in hits]
            if not self.keywords.alone:
                reasons = [
                    (*reason, SIMILAR)
                    if not reason or 4 * hit.distance <= 8 * len(hit.item.code)
                    else reason
                    for hit, reason in zip(hits, reasons)
                ]
            explained.append(
                Hits(
                    (replace(hit, matched=reason) for hit, reason in zip(hits, reasons)),
                    self.catalog,
                )
            )
        return explained

    def _nearest(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None
    ) -> Ranking:
        """Return the k nearest items that meet the conditions.

        If too few of the nearest items of the index do, the codes of all items that meet the
        conditions are read from the catalog and compared.
        """
        if not self.filters or not len(codes):
            return self._search_index(codes, k, modality, weights)
        pool = self._search_index(codes, 4 * k + 100, modality, weights)
        numbers = [int(number) for number in np.unique(pool.ids) if number >= 0]
        allowed = np.isin(pool.ids, self.catalog.filter(numbers, self.filters))
        if allowed.sum(axis=1).min() >= k:
            first = np.argsort(~allowed, axis=1, kind="stable")[:, :k]
            return _select(pool, (np.arange(len(codes))[:, None], first))
        matching, packed = self.catalog.codes(modality, codes.bits // 8, self.filters)
        rankings = [
            rank_codes(
                codes[i : i + 1], None if weights is None else weights[i : i + 1], matching, packed
            )
            for i in range(len(codes))
        ]
        return _select(_concatenate(rankings), np.s_[:, :k])

    def _search_index(
        self, codes: Codes, k: int, modality: Modality, weights: BitWeights | None
    ) -> Ranking:
        index = self.indexes[modality]
        if k > MAX_RESULTS:  # counting costs a server as much as a search
            k = min(k, max(1, len(index)))
        return index.search(codes, k, weights)

    def _collapse(self, hits: Hits) -> list[Hit]:
        contents = self.catalog.contents([hit.item.number for hit in hits])
        return collapse_duplicates(hits, contents)


def _select(ranking: Ranking, where: Any) -> Ranking:
    costs = None if ranking.costs is None else ranking.costs[where]
    return Ranking(ranking.ids[where], ranking.distances[where], costs)


def _concatenate(rankings: Sequence[Ranking]) -> Ranking:
    ids, distances, costs = zip(*rankings, strict=True)
    return Ranking(np.concatenate(ids), np.concatenate(distances), np.concatenate(costs))


def collapse_duplicates(hits: Sequence[Hit], contents: Mapping[int, Content]) -> list[Hit]:
    """Return the hits without copies of earlier ones, which are listed in `duplicates`.

    A copy has the same content, or its tiny image differs by little in every pixel. A hit is
    compared with the first of each group only, so that a chain of similar images is not one group.
    """
    first_of: dict[bytes, int] = {}
    groups: list[list[Hit]] = []
    tiny = np.empty((len(hits), 0), np.int16)
    owners: list[int] = []  # group of each row of `tiny`
    for hit in hits:
        digest, fingerprint = contents.get(hit.item.number, Content(None, None))
        group = None if digest is None else first_of.get(digest)
        row = None if fingerprint is None else np.frombuffer(fingerprint, np.uint8)
        if group is None and row is not None and owners:
            difference = np.abs(tiny[: len(owners)] - row.astype(np.int16)).max(axis=1)
            nearest = int(difference.argmin())
            group = owners[nearest] if difference[nearest] <= _MAX_DIFFERENCE else None
        if group is None:
            group = len(groups)
            groups.append([])
            if row is not None:
                if not owners:
                    tiny = np.empty((len(hits), len(row)), np.int16)
                tiny[len(owners)] = row
                owners.append(group)
        if digest is not None:
            first_of.setdefault(digest, group)
        groups[group].append(hit)
    return [
        replace(first, duplicates=tuple(hit.item for hit in others)) if others else first
        for first, *others in groups
    ]


def fuse(
    query: Codes, weights: BitWeights | None, nearest: Ranking, matches: KeywordMatches, k: int
) -> Ranking:
    """Return the k best of one query's nearest items and keyword matches.

    The score of an item is its similarity, 1 - 2 c / C with its cost c out of C (0 for a code that
    is as different as a random one), plus its coverage of the query's words (0 to 1, keywords.py).
    Such a sum of scores with fixed bounds is the fusion of Bruch, Gai and Ingber, An Analysis of
    Fusion Functions for Hybrid Retrieval (2023), with equal weights. Unlike a sum of reciprocal
    ranks it needs no rank of an item that only one of the two found, so the k best are exact: an
    item without a word of the query that is not among the k nearest has k items before it.
    Equal scores are ordered by cost, then by Hamming distance, then by number.
    """
    is_item = nearest.ids[0] >= 0
    ids, distances = nearest.ids[0][is_item], nearest.distances[0][is_item]
    costs = distances if nearest.costs is None else nearest.costs[0][is_item]
    is_near = np.isin(matches.numbers, ids)
    others = Codes(matches.codes[~is_near], query.bits)
    other_distances, other_costs = _compare(query, weights, others)
    highest = max(1, query.bits if weights is None else int(weights.sum()))
    coverage = matches.coverage_of(ids)
    ids = np.concatenate([ids, matches.numbers[~is_near]])
    distances = np.concatenate([distances, other_distances]).astype(np.int32)
    covered = [coverage.get(number, 0.0) for number in ids[: len(costs)].tolist()]
    costs = np.concatenate([costs, other_costs])
    scores = np.maximum(0, 1 - 2 * costs / highest)
    scores += np.concatenate([covered, matches.coverage[~is_near]])
    # Sorting all would take longer than all the rest.
    best = np.arange(len(ids))
    if len(ids) > k:
        best = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    keys = (ids[best], distances[best], costs[best], -scores[best])
    order = best[np.lexsort(keys)[:k]]
    return Ranking(ids[order][None], distances[order][None], costs[order][None])


def rank_codes(
    query: Codes,
    weights: BitWeights | None,
    numbers: npt.NDArray[np.int64],
    packed: npt.NDArray[np.uint8],
) -> Ranking:
    """Return all items for one query: smallest cost first, then by Hamming distance and number."""
    distances, costs = _compare(query, weights, Codes(packed, query.bits))
    order = np.lexsort((numbers, distances, costs))
    return Ranking(numbers[order][None], distances[order][None], costs[order][None])


def _compare(
    query: Codes, weights: BitWeights | None, items: Codes
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the distances and the costs of items."""
    distances = query.hamming(items)[0].astype(np.int32)
    if weights is None:
        return distances, distances.astype(np.int64)
    return distances, costs_to_items(query.packed[0], items.packed, weights[0])
