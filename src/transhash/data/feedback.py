"""Votes on results as further auxiliary items: image, text, whether they belong together.

Nothing is known between a voted item and any other but what was voted: the paper's click-through
relation, beside labels or pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.data.collection import (
    AuxiliaryCollection,
    Collection,
    ImageSource,
    ItemData,
    Problem,
)
from transhash.data.manifest import Manifest, RowError, image_and_text
from transhash.data.relation import GradedRelation, LabelRelation, Relation, Rows, SparseRelation
from transhash.data.tables import delimiter_of, open_text, read_fields, read_records
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError

_Truth = npt.NDArray[np.bool_]


class Vote(NamedTuple):
    """A picture, a text, and 1 if somebody said that they belong together, 0 if not."""

    image: ImageSource
    text: str
    vote: int


class FeedbackRelation:
    """`base` among the items that nobody voted on, and the votes; all else is unknown.

    In sums over related pairs (`times`) a voted item weighs as much as another item does on
    average: by labels an item is related to many others, by votes to a few.
    """

    def __init__(
        self, base: Relation, votes: SparseRelation, voted_images: _Truth, voted_texts: _Truth
    ) -> None:
        self.base, self.votes = base, votes  # both over all items
        self.voted_images, self.voted_texts = voted_images, voted_texts
        self._weight = self._weight_of_a_vote()

    @classmethod
    def extend(
        cls, relation: Relation, votes: Mapping[tuple[int, int], int], images: int, texts: int
    ) -> FeedbackRelation:
        """`relation`, and after its items so many more with votes on pairs of them."""
        n, m = relation.shape
        shape = (n + images, m + texts)
        similar, known = (
            sp.csr_array(
                (np.ones(len(pairs), np.float32), tuple(np.reshape(pairs, (-1, 2)).T.astype(int))),
                shape=shape,
            )
            for pairs in (
                [(n + i, m + j) for (i, j), vote in votes.items() if vote],
                [(n + i, m + j) for i, j in votes],
            )
        )
        return cls(
            _extended(relation, images, texts),
            SparseRelation(similar, known),
            np.arange(shape[0]) >= n,
            np.arange(shape[1]) >= m,
        )

    def _weight_of_a_vote(self) -> float:
        ups = self.votes.positives
        if not ups or not self.base.positives:
            return 1.0
        liked = self.votes.similar
        shares = [
            len(np.unique(found)) / max(1, int((~voted).sum()))
            for found, voted in zip(liked.nonzero(), (self.voted_images, self.voted_texts))
        ]
        return self.base.positives * sum(shares) / 2 / ups

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    @property
    def positives(self) -> int:
        return self.base.positives + self.votes.positives

    @property
    def known(self) -> int:
        everything = self.shape[0] * self.shape[1]
        if self.base.known < everything:
            return self.base.known + self.votes.known
        return int((~self.voted_images).sum() * (~self.voted_texts).sum()) + self.votes.known

    def block(
        self, rows: Rows, columns: Rows
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        s, mask = self.base.block(rows, columns)
        voted, listed = self.votes.block(rows, columns)
        assert listed is not None  # votes are never known to be all
        others = np.outer(~self.voted_images[rows], ~self.voted_texts[columns]).astype(np.float32)
        return s + voted, others * (1.0 if mask is None else mask) + listed

    def times(self, texts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return self.base.times(texts) + self._weight * self.votes.times(texts)

    def transposed_times(self, images: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        own = self.votes.transposed_times(images)
        return self.base.transposed_times(images) + self._weight * own

    def factors(self) -> None:
        return None

    def sample_partners(self, rows: Rows, rng: np.random.Generator) -> Rows:
        drawn = self.base.sample_partners(rows, rng)
        voted = self.voted_images[rows]
        drawn[voted] = self.votes.sample_partners(rows[voted], rng)
        return drawn

    def subset(self, rows: Rows, columns: Rows) -> FeedbackRelation:
        return FeedbackRelation(
            self.base.subset(rows, columns),
            self.votes.subset(rows, columns),
            self.voted_images[rows],
            self.voted_texts[columns],
        )


def is_feedback_file(source: Path) -> bool:
    """Whether a file for `--relation` names pictures and texts themselves, not ids of them."""
    if source.suffix.lower() == ".jsonl":
        return source.is_file()
    if not source.is_file() or source.suffix.lower() not in (".csv", ".tsv"):
        return False
    header = next(read_fields(open_text(source), delimiter_of(source)), (0, [], ""))[1]
    return "vote" in (name.strip().lower() for name in header)


def read_votes(source: str | Path) -> tuple[list[Vote], list[Problem]]:
    """The rows of a csv, tsv or jsonl with columns image, text and vote (0 or 1)."""
    manifest = Manifest(Path(source))
    votes = []
    for record in read_records(manifest.source):
        try:
            if record.problem:
                raise RowError(record.problem)
            image, text = image_and_text(manifest.source, record.values)
            if image is None or text is None:
                raise RowError("a vote has an image and a text")
            votes.append(
                Vote(manifest.source.parent / image, text, parse_vote(record.values.get("vote")))
            )
        except (RowError, DataError) as flaw:
            manifest.report(f"line {record.number}", str(flaw))
    if not votes:
        first = f"; first problem: {manifest.problems[0].reason}" if manifest.problems else ""
        raise DataError(f"{source} holds no vote: columns image, text and vote (0 or 1){first}")
    return votes, manifest.problems


def parse_vote(value: object) -> int:
    """1 or 0, as people and files write it."""
    if str(value).strip() not in ("0", "1"):
        raise DataError(f"a vote is 0 or 1, got {str(value)[:40]!r}")
    return int(str(value))


def add_votes(auxiliary: AuxiliaryCollection, votes: Sequence[Vote]) -> AuxiliaryCollection:
    """The same, and after them the pictures and texts that were voted on, each once.

    Of two votes on the same two the last counts.
    """
    for kind, features in (
        ("image", auxiliary.images.features),
        ("text", auxiliary.texts.features),
    ):
        if features is not None:
            raise DataError(
                f"the auxiliary {kind}s are features, and votes are on pictures and texts; give "
                "the auxiliary files themselves, or leave the votes out"
            )
    images = list(dict.fromkeys(vote.image for vote in votes))
    texts = list(dict.fromkeys(vote.text for vote in votes))
    row_of = {image: row for row, image in enumerate(images)}
    column_of = {text: column for column, text in enumerate(texts)}
    values = {(row_of[vote.image], column_of[vote.text]): vote.vote for vote in votes}
    relation = FeedbackRelation.extend(auxiliary.relation, values, len(images), len(texts))
    return AuxiliaryCollection(
        _longer(auxiliary.images, images), _longer(auxiliary.texts, texts), relation
    )


def drop_votes(training: TrainingSet) -> TrainingSet:
    """What there was before votes were added: votes are no measure of themselves."""
    relation = training.relation
    if not isinstance(relation, FeedbackRelation):
        return training
    rows, columns = np.flatnonzero(~relation.voted_images), np.flatnonzero(~relation.voted_texts)
    return replace(
        training,
        images=training.images[rows],
        texts=training.texts[columns],
        relation=relation.base.subset(rows, columns),
    )


def _longer(part: Collection[ItemData], more: Sequence[ItemData]) -> Collection[ItemData]:
    # Ids of files have no blanks around them, so these are nobody's.
    ids = [*part.ids, *(f" vote {i}" for i in range(len(more)))]
    return replace(part, ids=ids, items=list(chain(part.items, more)), labels=None)


@overload
def _extended(relation: LabelRelation, images: int, texts: int) -> LabelRelation: ...
@overload
def _extended(relation: SparseRelation, images: int, texts: int) -> SparseRelation: ...
@overload
def _extended(relation: Relation, images: int, texts: int) -> Relation: ...
def _extended(relation: Relation, images: int, texts: int) -> Relation:
    """The same relation with more items, which it relates to nothing."""
    if isinstance(relation, LabelRelation):
        return LabelRelation(
            np.pad(relation.image_labels, ((0, images), (0, 0))),
            np.pad(relation.text_labels, ((0, texts), (0, 0))),
        )
    if isinstance(relation, GradedRelation):
        labels = _extended(relation.labels, images, texts)
        return GradedRelation(labels, _extended(relation.pairs, images, texts))
    if isinstance(relation, SparseRelation):
        parts = [relation.similar.copy(), None if relation.mask is None else relation.mask.copy()]
        for part in parts:
            if part is not None:
                part.resize(relation.shape[0] + images, relation.shape[1] + texts)
        return SparseRelation(*parts)
    raise DataError(f"votes cannot be added to a {type(relation).__name__}")
