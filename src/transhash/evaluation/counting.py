"""How many items, and how many relevant ones, lie at each Hamming distance of every query.

Three observations make it fast without ever holding a queries x items matrix:

* Average precision needs counts, not an order, so nothing is sorted per query.
* Items with equal code and equal labels cannot be told apart. They are merged, and a merged item
  of multiplicity w is written in binary: it enters once in the plane of each set bit of w, and
  the counts of plane p are multiplied by 2**p. The planes together never hold more rows than the
  database, so repeated codes are cheap and unrepeated ones cost nothing extra.
* Within a plane the rows are ordered by label set, so the relevance of a chunk is a handful of
  runs, not a product of label matrices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.unsignedinteger[Any]]
Counts = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]

# Words, distances and keys of one chunk stay in the second-level cache. Above 2**15 items torch
# would count with threads of its own, which wait for each other: ten times the processor time.
CHUNK = 32_000


@dataclass(frozen=True)
class _Chunk:
    """Rows of one plane, ordered by label set."""

    weight: int  # 2**plane
    words: list[Words]  # one contiguous array for each machine word of the code
    label_sets: Index  # of each run
    run_lengths: Index


def count_pairs(
    query_codes: npt.NDArray[np.uint8],
    database_codes: npt.NDArray[np.uint8],
    query_labels: npt.NDArray[np.bool_],
    database_labels: npt.NDArray[np.bool_],
    workers: int | None = None,
) -> tuple[Counts, Counts]:
    """items[q, d] and relevant[q, d] for packed codes; relevant means sharing a label."""
    bits = query_codes.shape[1] * 8
    query_words, query_sets = _words(query_codes), _words(np.packbits(query_labels, axis=1))
    queries, copies = _merge(query_words, query_sets)
    chunks = list(_chunks(_words(database_codes), database_sets := _label_sets(database_labels)))
    histogram = np.zeros((len(queries), 2 * (bits + 1)), dtype=np.int64)

    def count(block: Index) -> None:
        rows = queries[block]
        histogram[block] = _count_block(
            query_words[rows], query_sets[rows], chunks, database_sets[0], bits
        )

    workers = workers or os.cpu_count() or 1
    # More blocks than workers, so that a slow core does not hold up the rest.
    blocks = np.array_split(np.arange(len(queries)), min(len(queries), 4 * workers) or 1)
    with ThreadPoolExecutor(workers) as pool:  # numpy and torch let go of the interpreter lock
        list(pool.map(count, blocks))
    relevant = histogram[:, bits + 1 :]
    items = histogram[:, : bits + 1] + relevant
    return items[copies], relevant[copies]


def _count_block(
    words: Words, label_sets: Words, chunks: list[_Chunk], database_sets: Words, bits: int
) -> Counts:
    """Histogram over distance + (bits + 1) * relevance; equal label sets must be neighbours."""
    import torch  # a second to import, which only counting has to pay

    width = 2 * (bits + 1)
    key_type = np.uint8 if width <= 256 else np.int16 if width <= 1 << 15 else np.int32
    histogram = np.zeros((len(words), width), dtype=np.int64)
    differences = np.empty(CHUNK, dtype=words.dtype)
    ones = np.empty(CHUNK, dtype=np.uint8)
    keys = np.empty(CHUNK, dtype=key_type)
    new_set = np.flatnonzero((label_sets[1:] != label_sets[:-1]).any(axis=1)) + 1
    for rows in np.split(np.arange(len(words)), new_set):
        if not len(rows):
            continue
        shares_label = (database_sets & label_sets[rows[0]]).any(axis=1)
        offsets = (shares_label * (bits + 1)).astype(key_type)
        for chunk in chunks:
            relevance = np.repeat(offsets[chunk.label_sets], chunk.run_lengths)
            n = len(relevance)
            key, one, difference = keys[:n], ones[:n], differences[:n]
            tensor = torch.from_numpy(key)  # the same memory
            for row in rows:
                addend = relevance
                for column, word in zip(chunk.words, words[row], strict=True):
                    np.bitwise_xor(column, word, out=difference)
                    np.bitwise_count(difference, out=one)
                    np.add(addend, one, out=key)
                    addend = key
                found = torch.bincount(tensor, minlength=width).numpy()
                histogram[row] += found if chunk.weight == 1 else chunk.weight * found
    return histogram


def _chunks(words: Words, label_sets: tuple[Words, Index]) -> Iterator[_Chunk]:
    """The database, equal items merged, one plane for each binary digit of the multiplicity."""
    if not len(words):
        return
    _, sets = label_sets
    codes = _identities(words)
    # Label set in the high part: np.unique then also orders by it.
    _, first, multiplicity = np.unique(
        sets * (codes.max() + 1) + codes, return_index=True, return_counts=True
    )
    for plane in range(int(multiplicity.max()).bit_length()):
        rows = first[(multiplicity >> plane) & 1 == 1]
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            runs, lengths = np.unique(sets[part], return_counts=True)
            columns = [np.ascontiguousarray(column) for column in words[part].T]
            yield _Chunk(1 << plane, columns, runs, lengths)


def _merge(words: Words, label_sets: Words) -> tuple[Index, Index]:
    """One row of each distinct (label set, code), neighbours by label set, and who copies it."""
    codes, sets = _identities(words), _identities(label_sets)
    if not len(codes):
        return codes, codes
    _, first, copies = np.unique(
        sets * (codes.max() + 1) + codes, return_index=True, return_inverse=True
    )
    return first, copies


def _label_sets(labels: npt.NDArray[np.bool_]) -> tuple[Words, Index]:
    """The distinct label sets as words, and which one each item has."""
    words = _words(np.packbits(labels, axis=1))
    identities = _identities(words)
    _, first = np.unique(identities, return_index=True)
    return words[first], identities


def _identities(words: Words) -> Index:
    """Equal numbers for equal rows, counted from 0."""
    identities = np.unique(words[:, 0], return_inverse=True)[1]
    for column in words.T[1:]:
        values, inverse = np.unique(column, return_inverse=True)
        # Both factors are at most n, so the product stays far below 2**63.
        identities = np.unique(identities * len(values) + inverse, return_inverse=True)[1]
    return identities


def _words(packed: npt.NDArray[np.uint8]) -> Words:
    """Packed bytes as the widest machine words that hold them, zeros at the end."""
    size = packed.shape[1]
    width = next((w for w in (1, 2, 4) if size <= w), 8)
    padded = np.zeros((len(packed), max(1, -(-size // width)) * width), dtype=np.uint8)
    padded[:, :size] = packed
    return padded.view(f"u{width}")
