"""Scoring on labeled files: some items of each modality are queries against all of the other."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from transhash.data.collection import Collection, Images, Problem, Texts
from transhash.data.manifest import read_images, read_texts
from transhash.data.relation import Rows
from transhash.errors import DataError
from transhash.features.words import tokenize
from transhash.index.weighted import RankingMode
from transhash.model.encoder import Encoder
from transhash.model.files import TrainedVotes, image_file_digest, text_digest
from transhash.progress import Track, no_progress
from transhash.scoring.directions import (
    Direction,
    LabeledCodes,
    ScoredDirection,
    both_directions,
    encode_queries,
)
from transhash.training.split_data import label_matrix_for

_MIN_NAMED = 0.5  # fraction of images whose name has a word of some text; else names are numbers


@dataclass(frozen=True)
class LabeledFiles:
    """Labeled items of both modalities and the rows that are queries."""

    images: Images
    texts: Texts
    query_images: Rows
    query_texts: Rows
    classes: list[str]  # that occur in both modalities
    unlabeled: int  # number of excluded rows


def read_labeled(images: Path, texts: Path, queries: int = 1000, seed: int = 0) -> LabeledFiles:
    """Read the labeled items of two sources and draw up to `queries` queries from each."""
    if queries < 1:
        raise DataError(f"The number of queries must be 1 or more, got {queries}.")
    all_images, all_texts = read_images(images), read_texts(texts)
    labeled_images = _labeled_items(all_images, images)
    labeled_texts = _labeled_items(all_texts, texts)
    classes = sorted(_label_names(labeled_images) & _label_names(labeled_texts))
    if not classes:
        raise DataError(f"{images} and {texts} share no label. Use the same label names in both.")
    # Drawn before images are read, so that the queries are the same for every index.
    rng = np.random.default_rng([seed, 0xA5C])
    return LabeledFiles(
        labeled_images,
        labeled_texts,
        np.sort(rng.permutation(len(labeled_images))[:queries]),
        np.sort(rng.permutation(len(labeled_texts))[:queries]),
        classes,
        len(all_images) - len(labeled_images) + len(all_texts) - len(labeled_texts),
    )


def drop_voted_queries(files: LabeledFiles, votes: TrainedVotes | None) -> tuple[LabeledFiles, int]:
    """Remove queries that the run was trained on through votes; return how many those are.

    A pair is only scored if one of the two is a query, so no pair with a vote remains.
    """
    if votes is None:
        return files, 0
    images = [
        row
        for row in files.query_images
        if image_file_digest(files.images.items[row]) not in votes.images
    ]
    texts = [
        row for row in files.query_texts if text_digest(files.texts.items[row]) not in votes.texts
    ]
    if not images or not texts:
        modality = "texts" if images else "images"
        raise DataError(f"All query {modality} were used as training votes. Label other items.")
    dropped = len(files.query_images) + len(files.query_texts) - len(images) - len(texts)
    return replace(files, query_images=np.array(images), query_texts=np.array(texts)), dropped


def labeled_directions(
    encoder: Encoder,
    files: LabeledFiles,
    ranking: RankingMode = "hamming",
    track: Track = no_progress,
) -> tuple[dict[str, Direction], list[Problem]]:
    """Encode all items; also return the unreadable images."""
    codes, images, problems = encoder.encode_images(files.images, track)
    database_images = LabeledCodes(codes, label_matrix_for(images, files.classes))
    database_texts = LabeledCodes(
        encoder.encode_texts(files.texts), label_matrix_for(files.texts, files.classes)
    )
    if ranking == "hamming":
        names = {files.images.ids[row] for row in files.query_images}
        rows = np.array([i for i, name in enumerate(images.ids) if name in names], np.int64)
        query_images = database_images.take(rows)
        query_texts = database_texts.take(files.query_texts)
    else:  # their projections are needed, not only their codes
        queries, _ = labeled_queries(encoder, files, ranking, track)
        query_images, query_texts = queries["image_to_text"], queries["text_to_image"]
    directions = both_directions(query_images, query_texts, database_images, database_texts)
    return directions, problems


def labeled_queries(
    encoder: Encoder,
    files: LabeledFiles,
    ranking: RankingMode = "hamming",
    track: Track = no_progress,
) -> tuple[dict[str, LabeledCodes], list[Problem]]:
    """Encode the queries only; also return the unreadable images."""
    projections, images, problems = encoder.project_images(
        files.images.take(files.query_images), track
    )
    texts = files.texts.take(files.query_texts)
    image_labels = label_matrix_for(images, files.classes)
    text_labels = label_matrix_for(texts, files.classes)
    queries = {
        "image_to_text": encode_queries(projections, image_labels, ranking),
        "text_to_image": encode_queries(encoder.project_texts(texts), text_labels, ranking),
    }
    return queries, problems


def _labeled_items(items: Collection[Any], source: Path) -> Collection[Any]:
    rows = [row for row, names in enumerate(items.labels or ()) if names]
    if not rows:
        raise DataError(f"{source} has no labels. Add a column `labels`, several joined by |.")
    return items.take(rows)


def _label_names(items: Collection[Any]) -> set[str]:
    return set().union(*(items.labels or ()))


def keyword_directions(files: LabeledFiles) -> dict[str, ScoredDirection] | None:
    """Return keyword search on image names, a baseline without a model; None without such names.

    A name is the file name without its extension, or the id if there is no file. Shared words
    weigh by their rarity among the texts; names and texts are normalized to unit length.
    """
    names = [
        _split_name(item.stem if isinstance(item, Path) and item.name else Path(key).stem)
        for item, key in zip(files.images.items, files.images.ids)
    ]
    texts = [[word for word in tokenize(text) if word.isalpha()] for text in files.texts.items]
    frequency = Counter(word for words in texts for word in set(words))
    if sum(any(word in frequency for word in words) for words in names) < _MIN_NAMED * len(names):
        return None
    column = {word: place for place, word in enumerate(frequency)}
    rarity = [math.log(1 + len(texts) / count) for count in frequency.values()]
    x, y = _weigh_words(names, column, rarity), _weigh_words(texts, column, rarity)
    image_labels = label_matrix_for(files.images, files.classes)
    text_labels = label_matrix_for(files.texts, files.classes)
    query_x, query_y = files.query_images, files.query_texts
    return {
        "image_to_text": ScoredDirection(
            lambda rows: (x[query_x[rows]] @ y.T).toarray(), image_labels[query_x], text_labels
        ),
        "text_to_image": ScoredDirection(
            lambda rows: (y[query_y[rows]] @ x.T).toarray(), text_labels[query_y], image_labels
        ),
    }


def _split_name(name: str) -> list[str]:
    """Split RedBoat_03-at-sea into red, boat, at, sea."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tokenize(re.sub(r"[\W\d_]+", " ", words))


def _weigh_words(
    lists: Sequence[Sequence[str]], column: dict[str, int], rarity: Sequence[float]
) -> sp.csr_array:
    """Return (items, words) of rarity, rows of unit length."""
    known = [sorted({column[word] for word in words if word in column}) for words in lists]
    values = []
    for row in known:
        length = math.sqrt(sum(rarity[place] ** 2 for place in row))
        values += [rarity[place] / length for place in row]
    ends = np.cumsum([0, *map(len, known)])
    places = [place for row in known for place in row]
    return sp.csr_array((values, places, ends), shape=(len(lists), len(column)))
