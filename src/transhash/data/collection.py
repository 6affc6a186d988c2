"""Collections of images or texts, before features are computed from them."""

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
ImageSource = Path | bytes  # an image file, or its content
ItemData = TypeVar("ItemData", ImageSource, str)
Labels = frozenset[str]


def check_modality(name: str) -> Modality:
    """Return `name` as a modality, or raise for anything else, such as "image"."""
    for modality in MODALITIES:
        if isinstance(name, str) and name == modality:
            return modality
    raise DataError(f"Unknown modality {name!r}. Choose from: {', '.join(MODALITIES)}.")


class Problem(NamedTuple):
    """A row or file that was skipped, and the reason."""

    source: str  # the folder or file that was read
    location: str  # line, row, path or id in it
    reason: str


class FolderPaths(Sequence[Path]):
    """Paths in a folder, created on access: a million Path objects take half a gigabyte."""

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
    """Items of one modality: images or texts."""

    ids: Sequence[str]
    items: Sequence[ItemData]
    labels: Sequence[Labels] | None = None
    features: npt.NDArray[Any] | None = None  # one row per item, if already computed
    problems: tuple[Problem, ...] = ()
    source: str = ""  # resolved path of the folder or file; "" for items from memory
    ids_are_row_numbers: bool = False  # because the source has no ids
    objects: Sequence[Any] | None = None  # what a program passed; None for items from files
    rows: Sequence[int] | None = None  # of the items in `objects`; None: all of them, in order

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
            rows=None if self.objects is None else [self.object_row(row) for row in rows],
        )

    def object_row(self, row: int) -> int:
        """Return the position in `objects` of an item."""
        return row if self.rows is None else self.rows[row]

    def describe(self, row: int) -> str:
        """Return the path of an item, or its id if it is not a file."""
        item = self.items[row]
        return str(item) if isinstance(item, Path) else self.ids[row]

    def without_labels(self) -> Collection[ItemData]:
        return replace(self, labels=None)


Images = Collection[ImageSource]
Texts = Collection[str]


@dataclass(frozen=True)
class AuxiliaryCollection:
    """The auxiliary set: images, texts and the relation between them."""

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
        """Build the relation from triples if given, else from shared labels and equal ids.

        With `labels_only`, as in the paper, equal ids count only if there are no labels.
        """
        if not len(images) or not len(texts):
            missing = "images" if not len(images) else "texts"
            raise DataError(f"The auxiliary set has no usable {missing}. See the skipped rows.")
        if triples is not None:
            return cls(images, texts, _from_triples(images, texts, triples))
        numbered_apart = (
            images.ids_are_row_numbers
            and texts.ids_are_row_numbers
            and images.source != texts.source
        )
        if images.labels is not None and texts.labels is not None:
            classes = sorted(set().union(*images.labels) & set().union(*texts.labels))
            if not classes:
                raise DataError(
                    "Auxiliary images and texts share no label. Use the same label names, or "
                    "remove the labels column to use row pairs."
                )
            shared = LabelRelation(
                label_matrix(images.labels, classes, ignore_others=True),
                label_matrix(texts.labels, classes, ignore_others=True),
            )
            if labels_only or numbered_apart or set(images.ids).isdisjoint(texts.ids):
                return cls(images, texts, shared)
            pairs = SparseRelation.from_pairs(images.ids, texts.ids)
            return cls(images, texts, GradedRelation(shared, pairs))
        if numbered_apart:
            rows = _row_keys(images, texts)
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
    """Return an (items, classes) matrix that is true where item i has class k.

    A label outside `classes` is an error, or is ignored with `ignore_others`.
    """
    column = {name: k for k, name in enumerate(classes)}
    if len(column) != len(classes):
        raise DataError("The list of classes has duplicates. Pass each class once.")
    matrix = np.zeros((len(labels), len(classes)), dtype=np.bool_)
    for row, names in enumerate(labels):
        if isinstance(names, str):  # would be read letter by letter
            raise DataError(f"Item {row} has the string {names!r} as labels. Pass a list.")
        for name in names:
            if name in column:
                matrix[row, column[name]] = True
            elif not ignore_others:
                raise DataError(
                    f"Item {row} has the unknown label {name!r}. Add it to the classes."
                )
    return matrix


def _row_keys(images: Images, texts: Texts) -> list[str]:
    """Return keys that pair the n-th image with the n-th text of two files without ids."""
    remedy = "Add an id column to both files, or use --relation."
    if len(images) != len(texts):
        raise DataError(
            f"{images.source} has {len(images)} rows but {texts.source} has {len(texts)}, so they "
            f"cannot be paired by row. {remedy}"
        )
    for part in (images, texts):
        if part.problems:
            raise DataError(
                f"Rows of {part.source} were skipped ({part.problems[0].location}: "
                f"{part.problems[0].reason}), so the rest cannot be paired by row. {remedy}"
            )
    return [str(row) for row in range(len(images))]


def _from_triples(
    images: Images, texts: Texts, triples: Sequence[tuple[str, str, float]]
) -> SparseRelation:
    row_of = {name: i for i, name in enumerate(images.ids)}
    column_of = {name: j for j, name in enumerate(texts.ids)}
    matches = [
        (row_of[image], column_of[text], value)
        for image, text, value in triples
        if image in row_of and text in column_of
    ]
    if not matches:
        raise DataError(
            "No line of the relation names an auxiliary image and an auxiliary text. Use image "
            f"ids such as {images.ids[0]!r} and text ids such as {texts.ids[0]!r}."
        )
    return SparseRelation.from_triples(
        [(i, j) for i, j, _ in matches],
        [value for _, _, value in matches],
        (len(images), len(texts)),
    )
