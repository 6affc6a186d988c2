"""Anybody's labelled files: some items of each kind ask, all of the other kind are ranked."""

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


@dataclass(frozen=True)
class LabelledFiles:
    """Labelled items of both kinds: some of each ask, all of the other kind are the database."""

    images: Images
    texts: Texts
    query_images: Rows
    asking_texts: Rows
    classes: list[str]  # those that occur on both sides; the others relate nothing
    unlabelled: int  # rows left out


def read_labelled(images: Path, texts: Path, queries: int = 1000, seed: int = 0) -> LabelledFiles:
    """The labelled items of two sources, and up to `queries` of each that ask."""
    if queries < 1:
        raise DataError(f"the number of queries must be 1 or more, got {queries}")
    all_images, all_texts = read_images(images), read_texts(texts)
    some_images, some_texts = _with_labels(all_images, images), _with_labels(all_texts, texts)
    classes = sorted(_names(some_images) & _names(some_texts))
    if not classes:
        raise DataError(
            f"no label of {images} occurs in {texts}; use the same label words for both"
        )
    # Drawn before anything is read, so that the same items ask whatever ranks them.
    rng = np.random.default_rng([seed, 0xA5C])
    return LabelledFiles(
        some_images,
        some_texts,
        np.sort(rng.permutation(len(some_images))[:queries]),
        np.sort(rng.permutation(len(some_texts))[:queries]),
        classes,
        len(all_images) - len(some_images) + len(all_texts) - len(some_texts),
    )


def drop_voted_queries(
    items: LabelledFiles, votes: TrainedVotes | None
) -> tuple[LabelledFiles, int]:
    """Without asking items that the run learned votes on, and how many those were.

    A pair that was voted on is scored only if one of the two asks, so none is left.
    """
    if votes is None:
        return items, 0
    images = [
        row
        for row in items.query_images
        if image_file_digest(items.images.items[row]) not in votes.images
    ]
    texts = [
        row for row in items.asking_texts if text_digest(items.texts.items[row]) not in votes.texts
    ]
    if not images or not texts:
        kind = "texts" if images else "images"
        raise DataError(f"all asking {kind} were voted on, which is no score; label some others")
    asked = len(items.query_images) + len(items.asking_texts)
    left = replace(items, query_images=np.array(images), asking_texts=np.array(texts))
    return left, asked - len(images) - len(texts)


def labelled_directions(
    encoder: Encoder,
    items: LabelledFiles,
    ranking: RankingMode = "hamming",
    track: Track = no_progress,
) -> tuple[dict[str, Direction], list[Problem]]:
    """Everything encoded, and the images that cannot be read."""
    codes, images, bad = encoder.encode_images(items.images, track)
    of_images = label_matrix_for(images, items.classes)
    text_codes, of_texts = (
        encoder.encode_texts(items.texts),
        label_matrix_for(items.texts, items.classes),
    )
    database = LabeledCodes(codes, of_images), LabeledCodes(text_codes, of_texts)
    if ranking != "hamming":  # the asking items again: what their codes no longer say
        queries, _ = labelled_queries(encoder, items, ranking, track)
        return both_directions(queries["image_to_text"], queries["text_to_image"], *database), bad
    names = {items.images.ids[row] for row in items.query_images}
    rows = np.array([i for i, name in enumerate(images.ids) if name in names], np.int64)
    directions = both_directions(
        LabeledCodes(codes[rows], of_images[rows]),
        LabeledCodes(text_codes[items.asking_texts], of_texts[items.asking_texts]),
        *database,
    )
    return directions, bad


def labelled_queries(
    encoder: Encoder,
    items: LabelledFiles,
    ranking: RankingMode = "hamming",
    track: Track = no_progress,
) -> tuple[dict[str, LabeledCodes], list[Problem]]:
    """Codes and labels of the asking items only, and the images that cannot be read."""
    z, images, bad = encoder.project_images(items.images.take(items.query_images), track)
    texts = items.texts.take(items.asking_texts)
    of_texts = label_matrix_for(texts, items.classes)
    queries = {
        "image_to_text": encode_queries(z, label_matrix_for(images, items.classes), ranking),
        "text_to_image": encode_queries(encoder.project_texts(texts), of_texts, ranking),
    }
    return queries, bad


def _with_labels(items: Collection[Any], source: Path) -> Collection[Any]:
    kept = [row for row, names in enumerate(items.labels or ()) if names]
    if not kept:
        raise DataError(
            f"{source} holds no label; scores need a column `labels`, several joined by |"
        )
    return items.take(kept)


def _names(items: Collection[Any]) -> set[str]:
    return set().union(*(items.labels or ()))


# Keyword search on the names of pictures: what a user would have without learning anything.

_NAMED = 0.5  # of the pictures have a name that some text says: else names are numbers


def keyword_directions(items: LabelledFiles) -> dict[str, ScoredDirection] | None:
    """Both ways by the words that a text and a picture's name share; None without such names.

    A name is the file's without its ending, or the id where there is no file. Shared words count
    by their rarity among the texts, and long names or texts no more than short ones.
    """
    pictures = zip(items.images.items, items.images.ids)
    names = [_words_of(_name(item, key)) for item, key in pictures]
    texts = [[word for word in tokenize(text) if word.isalpha()] for text in items.texts.items]
    said = Counter(word for words in texts for word in set(words))
    if sum(any(word in said for word in words) for words in names) < _NAMED * len(names):
        return None
    column = {word: place for place, word in enumerate(said)}
    rarity = [math.log(1 + len(texts) / often) for often in said.values()]
    x, y = _weighed(names, column, rarity), _weighed(texts, column, rarity)
    image_labels = label_matrix_for(items.images, items.classes)
    text_labels = label_matrix_for(items.texts, items.classes)
    asking_x, asking_y = items.query_images, items.asking_texts
    return {
        "image_to_text": ScoredDirection(
            lambda rows: (x[asking_x[rows]] @ y.T).toarray(), image_labels[asking_x], text_labels
        ),
        "text_to_image": ScoredDirection(
            lambda rows: (y[asking_y[rows]] @ x.T).toarray(), text_labels[asking_y], image_labels
        ),
    }


def _name(item: Path | bytes, key: str) -> str:
    return item.stem if isinstance(item, Path) and item.name else Path(key).stem


def _words_of(name: str) -> list[str]:
    """RedBoat_03-at-sea: red, boat, at, sea."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tokenize(re.sub(r"[\W\d_]+", " ", apart))


def _weighed(
    lists: Sequence[Sequence[str]], column: dict[str, int], rarity: Sequence[float]
) -> sp.csr_array:
    """(items, words) of rarity, rows of unit length."""
    known = [sorted({column[word] for word in words if word in column}) for words in lists]
    values = []
    for row in known:
        length = math.sqrt(sum(rarity[place] ** 2 for place in row))
        values += [rarity[place] / length for place in row]
    ends = np.cumsum([0, *map(len, known)])
    places = [place for row in known for place in row]
    return sp.csr_array((values, places, ends), shape=(len(lists), len(column)))
