"""Keyword search on the names of pictures: what a user would have without learning anything."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from transhash.features.words import tokens
from transhash.runs.score.directions import ScoredDirection
from transhash.runs.score.files import LabelledFiles
from transhash.runs.task import labels_among

_NAMED = 0.5  # of the pictures have a name that some text says: else names are numbers


def keyword_directions(items: LabelledFiles) -> dict[str, ScoredDirection] | None:
    """Both ways by the words that a text and a picture's name share; None without such names.

    A name is the file's without its ending, or the id where there is no file. Shared words count
    by their rarity among the texts, and long names or texts no more than short ones.
    """
    pictures = zip(items.images.items, items.images.ids)
    names = [_words_of(_name(item, key)) for item, key in pictures]
    texts = [[word for word in tokens(text) if word.isalpha()] for text in items.texts.items]
    said = Counter(word for words in texts for word in set(words))
    if sum(any(word in said for word in words) for words in names) < _NAMED * len(names):
        return None
    column = {word: place for place, word in enumerate(said)}
    rarity = [math.log(1 + len(texts) / often) for often in said.values()]
    x, y = _weighed(names, column, rarity), _weighed(texts, column, rarity)
    image_labels = labels_among(items.images, items.classes)
    text_labels = labels_among(items.texts, items.classes)
    asking_x, asking_y = items.asking_images, items.asking_texts
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
    return tokens(re.sub(r"[\W\d_]+", " ", apart))


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
