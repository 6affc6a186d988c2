"""What is added to an auxiliary set: votes on search results, or a second auxiliary set.

Only the votes are known about an item with votes: the paper's click-through relation, added to
labels or pairs. How the items of two auxiliary sets relate to each other is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

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
from transhash.data.relation import (
    GradedRelation,
    LabelRelation,
    Relation,
    Rows,
    SparseRelation,
    SumRelation,
    Term,
    sparse_ones,
)
from transhash.data.tables import (
    delimiter_of,
    is_table,
    open_text,
    read_fields,
    read_records,
    unescape_formula,
)
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError

_Mask = npt.NDArray[np.bool_]


class Vote(NamedTuple):
    """An image, a text, and 1 if a user confirmed that they belong together, 0 if not."""

    image: ImageSource
    text: str
    vote: int


class FeedbackRelation(SumRelation):
    """`base` among the items without votes, plus the votes. All other pairs are unknown.

    In products, an item with votes weighs as much as another item on average: labels relate an
    item to many others, votes to a few.
    """

    def __init__(
        self, base: Relation, votes: SparseRelation, voted_images: _Mask, voted_texts: _Mask
    ) -> None:
        self.base, self.votes = base, votes  # both over all items
        self.voted_images, self.voted_texts = voted_images, voted_texts
        super().__init__(
            Term(base, scope=(~voted_images, ~voted_texts)),
            Term(votes, self._vote_weight(), images=voted_images),
        )

    @classmethod
    def extend(
        cls, relation: Relation, votes: Mapping[tuple[int, int], int], images: int, texts: int
    ) -> FeedbackRelation:
        """Append `images` and `texts` new items to a relation, with votes on pairs of them."""
        if not isinstance(relation, LabelRelation | SparseRelation | GradedRelation):
            kind = type(relation).__name__
            raise DataError(f"Votes cannot be added to a {kind}. Use labels, pairs or both.")
        n, m = relation.shape
        shape = (n + images, m + texts)
        pairs = np.array([(n + i, m + j) for i, j in votes], np.int64).reshape(-1, 2)
        similar = pairs[np.array(list(votes.values()), np.int64) > 0]
        return cls(
            relation.pad(images, texts),
            SparseRelation(sparse_ones(similar, shape), sparse_ones(pairs, shape)),
            np.arange(shape[0]) >= n,
            np.arange(shape[1]) >= m,
        )

    def _vote_weight(self) -> float:
        if not self.votes.positives or not self.base.positives:
            return 1.0
        shares = [
            len(np.unique(related)) / max(1, int((~voted).sum()))
            for related, voted in zip(
                self.votes.similar.nonzero(), (self.voted_images, self.voted_texts)
            )
        ]
        return self.base.positives * sum(shares) / 2 / self.votes.positives

    def subset(self, rows: Rows, columns: Rows) -> FeedbackRelation:
        return FeedbackRelation(
            self.base.subset(rows, columns),
            self.votes.subset(rows, columns),
            self.voted_images[rows],
            self.voted_texts[columns],
        )


def is_feedback_file(source: Path) -> bool:
    """Return whether a file for `--relation` has votes, which name images and texts, not ids."""
    if source.suffix.lower() == ".jsonl":
        return source.is_file()
    if not source.is_file() or source.suffix.lower() not in (".csv", ".tsv"):
        return False
    header = next(read_fields(open_text(source), delimiter_of(source)), (0, [], ""))[1]
    return "vote" in (name.strip().lower() for name in header)


def read_votes(source: str | Path) -> tuple[list[Vote], list[Problem]]:
    """Read a csv, tsv or jsonl file with columns image, text and vote (0 or 1)."""
    manifest = Manifest(Path(source))
    if not is_table(manifest.source):
        raise DataError(f"{source} is not a table. Pass a csv, tsv or jsonl file of votes.")
    votes = []
    for record in read_records(manifest.source):
        try:
            if record.problem:
                raise RowError(record.problem)
            values = dict(record.values)
            if manifest.source.suffix.lower() != ".jsonl":  # from a table of `export_votes`
                for name in values.keys() & {"image", "text"}:
                    values[name] = unescape_formula(values[name])
            image, text = image_and_text(manifest.source, values)
            if image is None or text is None:
                raise RowError("a vote needs an image and a text")
            votes.append(
                Vote(manifest.source.parent / image, text, parse_vote(record.values.get("vote")))
            )
        except (RowError, DataError) as error:
            manifest.report(f"line {record.number}", str(error))
    if not votes:
        raise DataError(
            f"{source} contains no votes{manifest.first_problem}. "
            "Add columns image, text and vote (0 or 1)."
        )
    return votes, manifest.problems


def parse_vote(value: object) -> int:
    if str(value).strip() not in ("0", "1"):
        raise DataError(f"{str(value)[:40]!r} is not a vote. Use 0 or 1.")
    return int(str(value))


def add_votes(auxiliary: AuxiliaryCollection, votes: Sequence[Vote]) -> AuxiliaryCollection:
    """Append the images and texts of the votes, each once. The last vote on a pair counts."""
    if auxiliary.images.features is not None or auxiliary.texts.features is not None:
        raise DataError(
            "Votes cannot be added to an auxiliary set of features. "
            "Pass its images and texts, or omit the votes."
        )
    images = list(dict.fromkeys(vote.image for vote in votes))
    texts = list(dict.fromkeys(vote.text for vote in votes))
    row_of = {image: row for row, image in enumerate(images)}
    column_of = {text: column for column, text in enumerate(texts)}
    values = {(row_of[vote.image], column_of[vote.text]): vote.vote for vote in votes}
    relation = FeedbackRelation.extend(auxiliary.relation, values, len(images), len(texts))
    return AuxiliaryCollection(
        _append(auxiliary.images, images), _append(auxiliary.texts, texts), relation
    )


def drop_votes(training: TrainingSet) -> TrainingSet:
    """Return the training set without votes, for validation: they must not judge themselves."""
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


def _append(items: Collection[ItemData], added: Sequence[ItemData]) -> Collection[ItemData]:
    # Ids from files have no leading blank, so these are free.
    ids = [*items.ids, *(f" vote {i}" for i in range(len(added)))]
    return replace(items, ids=ids, items=list(chain(items.items, added)), labels=None)


class UnionRelation(SumRelation):
    """S of a first and an appended set: known within each of them, unknown between them.

    In products, the pairs of the appended set weigh as much in sum as those of the first, however
    many each has.
    """

    def __init__(self, first: Relation, appended: SparseRelation) -> None:
        if not isinstance(first, LabelRelation | SparseRelation | GradedRelation):
            kind = type(first).__name__
            raise DataError(f"Pairs cannot be appended to a {kind}. Use labels, pairs or both.")
        self.first, self.appended = first, appended
        weight = first.positives / max(1, appended.positives) if first.positives else 1.0
        (n, m), (added_n, added_m) = first.shape, appended.shape
        images, texts = np.arange(n + added_n) >= n, np.arange(m + added_m) >= m
        super().__init__(
            Term(first.pad(added_n, added_m), scope=(~images, ~texts)),
            Term(_pad_before(appended, n, m), weight, images=images, scope=(images, texts)),
        )

    def subset(self, rows: Rows, columns: Rows) -> UnionRelation:
        """Return S of sorted rows and columns."""
        n, m = self.first.shape
        return UnionRelation(
            self.first.subset(rows[rows < n], columns[columns < m]),
            self.appended.subset(rows[rows >= n] - n, columns[columns >= m] - m),
        )


def append_auxiliary(training: TrainingSet, appended: AuxiliarySet) -> TrainingSet:
    """Return a training set that also has the items of another auxiliary set."""
    if not isinstance(appended.relation, SparseRelation):
        raise DataError("Only an auxiliary set of pairs can be appended. Pass one without labels.")
    relation: Relation = training.relation
    added = appended.relation.shape
    if isinstance(relation, FeedbackRelation):
        relation = FeedbackRelation(
            UnionRelation(relation.base, appended.relation),
            relation.votes.pad(*added),
            np.pad(relation.voted_images, (0, added[0])),
            np.pad(relation.voted_texts, (0, added[1])),
        )
    else:
        relation = UnionRelation(relation, appended.relation)
    return replace(
        training,
        images=np.concatenate([training.images, appended.images]),
        texts=np.concatenate([training.texts, appended.texts]),
        relation=relation,
    )


def _pad_before(relation: SparseRelation, images: int, texts: int) -> SparseRelation:
    """Prepend items that are related to nothing."""

    def pad(matrix: sp.csr_array) -> sp.csr_array:
        coordinates = matrix.tocoo()
        shape = (matrix.shape[0] + images, matrix.shape[1] + texts)
        return sp.csr_array(
            (coordinates.data, (coordinates.row + images, coordinates.col + texts)), shape=shape
        )

    return SparseRelation(
        pad(relation.similar), None if relation.mask is None else pad(relation.mask)
    )
