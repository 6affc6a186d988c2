"""Items as they exist before learning: pictures, texts, labels, and what was wrong with some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from transhash.data.relation import GradedRelation, LabelRelation, Relation, SparseRelation
from transhash.errors import DataError
from transhash.storage import content_digest

Modality = Literal["images", "texts"]
MODALITIES: tuple[Modality, Modality] = ("images", "texts")
ImageSource = Path | bytes  # a file, or the content of one
ItemData = TypeVar("ItemData", ImageSource, str)  # what an item is: an image, or a text
Labels = frozenset[str]


def check_modality(name: str) -> Modality:
    """Return `name` as a modality, or raise for anything else, such as "image"."""
    for modality in MODALITIES:
        if name == modality:
            return modality
    raise DataError(f"Unknown modality {name!r}. Choose from: {', '.join(MODALITIES)}.")


class Problem(NamedTuple):
    """A row or file that was skipped, and why."""

    source: str  # the file it was found in
    location: str  # line, row or item
    reason: str


class FolderPaths(Sequence[Path]):
    """Paths in a folder, made when asked for: a million of them held would be half a gigabyte."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, row: int) -> Path: ...

    @overload
    def __getitem__(self, row: slice) -> FolderPaths: ...

    def __getitem__(self, row: int | slice) -> Path | FolderPaths:
        if isinstance(row, slice):
            return FolderPaths(self._folder, self._names[row])
        return self._folder / self._names[row]

    def take(self, rows: Sequence[int]) -> FolderPaths:
        return FolderPaths(self._folder, [self._names[row] for row in rows])


@dataclass(frozen=True)
class Collection(Generic[ItemData]):
    """Items of one modality in one domain: images or texts."""

    ids: Sequence[str]
    items: Sequence[ItemData]
    labels: Sequence[Labels] | None = None
    features: npt.NDArray[Any] | None = None  # one row an item, where already computed
    problems: tuple[Problem, ...] = ()
    source: str = ""  # the file or folder they were read from, resolved; "" if from none
    ids_are_row_numbers: bool = False  # ids are places in the file, because it gives none

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[Any] | Sequence[int]) -> Collection[ItemData]:
        rows = [int(row) for row in rows]
        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            items=self.items.take(rows)
            if isinstance(self.items, FolderPaths)
            else [self.items[row] for row in rows],
            labels=None if self.labels is None else [self.labels[row] for row in rows],
            features=None if self.features is None else self.features[rows],
        )

    def describe(self, row: int) -> str:
        """Where an item stands, for a report: its path, else its id."""
        item = self.items[row]
        return str(item) if isinstance(item, Path) else self.ids[row]

    def without_labels(self) -> Collection[ItemData]:
        return replace(self, labels=None)


Images = Collection[ImageSource]
Texts = Collection[str]


@dataclass(frozen=True)
class AuxiliaryCollection:
    """The bridge: images and texts of one domain and the relation between them."""

    images: Images
    texts: Texts
    relation: Relation

    @classmethod
    def from_collections(
        cls,
        images: Images,
        texts: Texts,
        triples: Sequence[tuple[str, str, float]] | None = None,
        *,
        labels_only: bool = False,
    ) -> AuxiliaryCollection:
        """S from triples if given, else from shared labels and equal ids (pairing).

        With `labels_only`, as in the paper, labels make the pairing count for nothing.
        """
        if not len(images) or not len(texts):
            missing = "image" if not len(images) else "text"
            raise DataError(f"the auxiliary data hold no usable {missing}; see the reported rows")
        if triples is not None:
            return cls(images, texts, _from_triples(images, texts, triples))
        one_table = images.source == texts.source
        if images.labels is not None and texts.labels is not None:
            classes = sorted(set().union(*images.labels) & set().union(*texts.labels))
            if not classes:
                raise DataError(
                    "no label occurs on both an auxiliary image and an auxiliary text; "
                    "use the same label words for both, or leave labels out to use the pairing"
                )
            shared = LabelRelation(
                label_matrix(images.labels, classes, ignore_others=True),
                label_matrix(texts.labels, classes, ignore_others=True),
            )
            if labels_only or (
                images.ids_are_row_numbers and texts.ids_are_row_numbers and not one_table
            ):
                return cls(images, texts, shared)
            if set(images.ids).isdisjoint(texts.ids):
                return cls(images, texts, shared)
            pairs = SparseRelation.from_pairs(images.ids, texts.ids)
            return cls(images, texts, GradedRelation(shared, pairs))
        if images.ids_are_row_numbers and texts.ids_are_row_numbers and not one_table:
            rows = _same_rows(images, texts)
            return cls(images, texts, SparseRelation.from_pairs(rows, rows))
        return cls(images, texts, SparseRelation.from_pairs(images.ids, texts.ids))


def text_keys(texts: Texts) -> Sequence[str]:
    """Return the item keys of texts: their ids, or digests of their content if they have none.

    A line that moves within its file keeps its key. Equal lines are numbered in order.
    """
    if not texts.ids_are_row_numbers or texts.features is not None:
        return texts.ids
    counts: Counter[str] = Counter()
    keys = []
    for text in texts.items:
        digest = content_digest(text.encode("utf-8", "surrogatepass")).hex()
        counts[digest] += 1
        keys.append(f"{digest}:{counts[digest]}")
    return keys


def label_matrix(
    labels: Sequence[Iterable[str]], classes: Sequence[str], *, ignore_others: bool = False
) -> npt.NDArray[np.bool_]:
    """(items, classes) truth of "item i has class k".

    A label outside `classes` is refused; with `ignore_others` it relates the item to nothing.
    """
    column = {name: k for k, name in enumerate(classes)}
    if len(column) != len(classes):
        raise DataError("the list of classes names one twice")
    matrix = np.zeros((len(labels), len(classes)), dtype=np.bool_)
    for row, names in enumerate(labels):
        if isinstance(names, str):  # would be read letter by letter
            raise DataError(f"item {row}: labels must be a collection, got the string {names!r}")
        for name in names:
            if name in column:
                matrix[row, column[name]] = True
            elif not ignore_others:
                raise DataError(f"item {row} has the label {name!r}, which is not a class")
    return matrix


def _same_rows(images: Images, texts: Texts) -> list[str]:
    """Keys that pair the n-th image with the n-th text, where order is all that relates them."""
    remedy = "give tables with a column id, or --relation"
    if len(images) != len(texts):
        raise DataError(
            f"{images.source} has {len(images)} rows and {texts.source} {len(texts)}, so row by "
            f"row they do not belong together; {remedy}"
        )
    for part in (images, texts):
        if part.problems:
            raise DataError(
                f"rows of {part.source} were skipped ({part.problems[0].location}: "
                f"{part.problems[0].reason}), so the others no longer pair by order; {remedy}"
            )
    return [str(row) for row in range(len(images))]


def _from_triples(
    images: Images, texts: Texts, triples: Sequence[tuple[str, str, float]]
) -> SparseRelation:
    row_of = {name: i for i, name in enumerate(images.ids)}
    column_of = {name: j for j, name in enumerate(texts.ids)}
    found = [t for t in triples if t[0] in row_of and t[1] in column_of]
    if not found:
        raise DataError(
            "no line of the relation names an image id and a text id of the auxiliary data; "
            f"image ids look like {images.ids[0]!r}, text ids like {texts.ids[0]!r}"
        )
    return SparseRelation.from_triples(
        [(row_of[i], column_of[j]) for i, j, _ in found],
        [value for _, _, value in found],
        (len(images), len(texts)),
    )
