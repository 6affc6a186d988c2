"""Any sequence of operations has the same effect on a grouped index and on a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transhash.codes import Codes
from transhash.index.grouped import segment
from transhash.index.grouped.grouped import GroupedIndex

IDS = st.lists(st.integers(0, 60), max_size=20, unique=True)
SEEDS = st.integers(0, 2**16)


class GroupedAgainstDictionary(RuleBasedStateMachine):
    """Segments after 12 changes, so that merges and deleted ids appear within a few steps."""

    @initialize(bits=st.sampled_from([8, 16, 40, 64, 128]), on_disk=st.booleans())
    def create(self, bits: int, on_disk: bool) -> None:
        self.patches = [
            patch.object(GroupedIndex, "flush_at", 12),
            patch.object(segment, "MIN_TABLE_BYTES", 0),
            patch.object(segment, "SPARE_BYTES", 10**6),
        ]
        for each in self.patches:
            each.start()
        self.bits = bits
        self.folder = Path(tempfile.mkdtemp()) if on_disk else None
        self.index = GroupedIndex.open(self.folder, bits)
        self.reader = GroupedIndex.open(self.folder, bits, read_only=True) if on_disk else None
        self.model: dict[int, bytes] = {}

    def codes(self, count: int, seed: int) -> Codes:
        generator = np.random.default_rng(seed)
        spread = generator.choice([2, 256])
        packed = generator.integers(0, spread, (count, self.bits // 8), dtype=np.uint8)
        return Codes(packed, self.bits)

    @rule(ids=IDS, seed=SEEDS)
    def add(self, ids: list[int], seed: int) -> None:
        fresh = [i for i in ids if i not in self.model]
        codes = self.codes(len(fresh), seed)
        self.index.add(fresh, codes)
        self.model.update(zip(fresh, map(bytes, codes.packed)))

    @rule(ids=IDS, seed=SEEDS)
    def update(self, ids: list[int], seed: int) -> None:
        codes = self.codes(len(ids), seed)
        self.index.update(ids, codes)
        self.model.update(zip(ids, map(bytes, codes.packed)))

    @rule(ids=IDS)
    def remove(self, ids: list[int]) -> None:
        known = [i for i in ids if i in self.model]
        assert self.index.remove(ids) == len(known)
        for i in known:
            del self.model[i]

    @rule(k=st.integers(1, 80), seed=SEEDS, through_reader=st.booleans())
    def search(self, k: int, seed: int, through_reader: bool) -> None:
        queries = self.codes(3, seed)
        ranking = ((through_reader and self.reader) or self.index).search(queries, k)
        for row, expected in enumerate(self.expected(queries)):
            best = expected[:k]
            assert ranking.ids[row, : len(best)].tolist() == [i for _, i in best]
            assert ranking.distances[row, : len(best)].tolist() == [d for d, _ in best]
            assert (ranking.ids[row, len(best) :] == -1).all()
            assert (ranking.distances[row, len(best) :] == -1).all()

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @rule()
    def reopen(self) -> None:
        if self.folder is not None:
            self.index.close()
            self.index = GroupedIndex.open(self.folder, None)

    @invariant()
    def has_the_items_of_the_dictionary(self) -> None:
        for index in (self.index, self.reader):
            if index is not None:
                assert len(index) == len(self.model)
                ids, codes = index.export()
                assert dict(zip(ids.tolist(), map(bytes, codes.packed))) == self.model

    def expected(self, queries: Codes) -> list[list[tuple[int, int]]]:
        return [
            sorted(
                (sum((a ^ b).bit_count() for a, b in zip(code, query)), i)
                for i, code in self.model.items()
            )
            for query in map(bytes, queries.packed)
        ]

    def teardown(self) -> None:
        self.index.close()
        if self.reader is not None:
            self.reader.close()
        for each in self.patches:
            each.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder)


GroupedAgainstDictionary.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_every_sequence_of_operations_agrees_with_a_dictionary = GroupedAgainstDictionary.TestCase
