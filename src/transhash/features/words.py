"""Texts -> arrays by their words: rare ones count more, empty ones not at all.

A word that no training text has falls back on the known words that are spelt like it, so that an
inflection ("dogs", "doggy") or a compound is not nothing. No list of any language is used.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.errors import DataError, NotFittedError

if TYPE_CHECKING:
    # a second to import, which a question by known words need not wait for
    from sklearn.feature_extraction.text import CountVectorizer

TextRows = npt.NDArray[np.float32]  # (texts, dimensions)
Substitutes = tuple[list[int], list[float]]  # known words, and how much each counts

# Chosen on held-out captions (docs/data.md): a word is empty if it is frequent and its company
# is everybody's. Frequency alone would drop the one word that a small set is about.
_EMPTY_SHARE = 0.1  # of the texts, in any of the collections fitted on
_EMPTY_COMPANY = 0.2  # nats between the words around it and all words
_AVOIDED = 5  # meetings with other frequent words that chance would have brought about
_RARITY = 0.5  # power of log(1 / share)
_RELATED, _RELATED_WEIGHT = 0.4, 0.5  # known words spelt alike lend each other a little
_STAND_INS, _LIKENESS = 3, 0.4  # known words that stand for an unknown one, at least so alike
_AT_ONCE = 512  # words compared with all known ones
_REMEMBERED = 100_000  # unknown words whose stand-ins are kept

_NOTHING: Substitutes = ([], [])
_LOG = [float(np.log2(1 + count)) for count in range(100)]  # 1 for a word said once

# One-letter words carry no topic.
_WORD = re.compile(r"(?u)\b\w\w+\b")


def tokenize(text: str) -> list[str]:
    """Lower-case words of two letters or more; accents fold so that café = cafe."""
    text = text.lower()
    if not text.isascii():
        parts = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in parts if not unicodedata.combining(letter))
    return _WORD.findall(text)


def normalize_rows(counts: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix, each row divided by its length; an empty row stays."""
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    squares = np.bincount(rows, counts.data.astype(np.float64) ** 2, counts.shape[0])
    lengths = np.sqrt(squares)
    lengths[lengths == 0] = 1
    counts.data = (counts.data / lengths[rows]).astype(np.float32)
    return counts


@dataclass
class WordFeatures:
    """Rarity x log(1 + count) of each word, unit length, then the leading principal directions."""

    dimensions: int = 1000  # the paper, Section 4.1
    vocabulary_limit: int = 20_000
    name: str = "words"

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self:
        """Vocabulary, rarity and directions of these texts; what is empty in one is empty in all.

        Beyond `vocabulary_limit` the rarer words count by their parts only.
        """
        parts = [part for part in collections if len(part)]
        counted = [Counter(word for text in part for word in set(tokenize(text))) for part in parts]
        total = sum(counted, Counter[str]())
        if not total:
            raise DataError("the training texts have no word of two letters; give other texts")
        frequent = sorted(total, key=lambda word: (-total[word], word))[: self.vocabulary_limit]
        share = {
            word: max(count[word] / len(part) for count, part in zip(counted, parts))
            for word in frequent
        }
        empty = {word for part in parts for word in stop_words(part)}
        if all(word in empty for word in frequent):  # nothing else is said
            empty = set()
        self.dropped_: list[str] = sorted(empty)
        self.vocabulary_: list[str] = sorted(word for word in frequent if word not in empty)
        shares = np.array([min(share[word], 0.9) for word in self.vocabulary_])  # never quite 0
        self.rarity_: TextRows = ((-np.log(shares)) ** _RARITY).astype(np.float32)
        self._prepare()
        lent = self._spelling.similar_words()
        texts = [text for part in parts for text in part]
        counts = self._counts(texts) @ lent
        rank = max(1, min(self.dimensions, min(counts.shape) - 1))
        found = np.ones((1, 1))  # of the only word there is
        if counts.shape[1] > 1:
            from sklearn.decomposition import TruncatedSVD

            found = TruncatedSVD(rank, n_iter=5, random_state=seed).fit(counts).components_
        # Lending and projecting are both linear, so one table, (words, dimensions), does both.
        self.components_: TextRows = np.ascontiguousarray(lent @ found.T, np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> TextRows:
        """A row a text; without a word that counts it is zero."""
        if not hasattr(self, "components_"):
            raise NotFittedError("the words were not fitted; call fit() or load an encoder")
        return np.asarray(self._counts(texts) @ self.components_, np.float32)

    def known_words(self, text: str) -> list[str]:
        """The words of `text` that count: known ones, and those that known ones stand in for."""
        self._learn_unknown(tokenize(text))
        return [word for word in tokenize(text) if self._of_word.get(word, _NOTHING)[0]]

    def unknown_words(self, text: str) -> list[str]:
        """The words of `text` that nothing is known of; empty ones are known to be empty."""
        self._learn_unknown(tokenize(text))
        empty = set(self.dropped_)
        return [
            word
            for word in tokenize(text)
            if word not in empty and not self._of_word.get(word, _NOTHING)[0]
        ]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"components": self.components_, "rarity": self.rarity_}

    def lists(self) -> dict[str, list[str]]:
        """What a run keeps beside the arrays."""
        return {"words": self.vocabulary_, "dropped": self.dropped_}

    def restore(
        self, lists: Mapping[str, Sequence[str]], state: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        self.vocabulary_, self.dropped_ = list(lists["words"]), list(lists["dropped"])
        self.components_, self.rarity_ = state["components"], state["rarity"]
        self._prepare()
        return self

    def _prepare(self) -> None:
        self._spelling = Spelling(self.vocabulary_)
        self._start_over()

    def _start_over(self) -> None:
        """Columns and weights of every word met; unknown ones are added as they come."""
        self._of_word: dict[str, Substitutes] = dict.fromkeys(self.dropped_, _NOTHING)
        for column, word in enumerate(self.vocabulary_):
            self._of_word[word] = [column], [float(self.rarity_[column])]

    def _learn_unknown(self, words: Iterable[str]) -> None:
        unknown = list({word for word in words if word not in self._of_word})
        if not unknown:
            return
        for word, (columns, likeness) in zip(unknown, self._spelling.substitutes(unknown)):
            weights = [alike * float(self.rarity_[i]) for i, alike in zip(columns, likeness)]
            self._of_word[word] = columns, weights

    def _counts(self, texts: Sequence[str]) -> sp.csr_matrix:
        """Rarity x log(1 + count), (texts, vocabulary), rows of unit length."""
        if len(self._of_word) > len(self.vocabulary_) + _REMEMBERED:
            self._start_over()
        split = [tokenize(text) for text in texts]
        self._learn_unknown(word for words in split for word in words)
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for words in split:
            for word, count in _counted(words):
                at, weights = self._of_word[word]
                columns += at
                values += weights if count == 1 else [w * _LOG[min(count, 99)] for w in weights]
            ends.append(len(columns))
        counts = sp.csr_matrix(
            (np.array(values, np.float32), np.array(columns, np.int32), np.array(ends)),
            shape=(len(texts), len(self.vocabulary_)),
        )
        counts.sum_duplicates()
        return normalize_rows(counts)


def _counted(words: list[str]) -> Iterable[tuple[str, int]]:
    """Each word and how often; a Counter is slow where all are said once."""
    return Counter(words).items() if len(words) != len(set(words)) else zip(words, repeat(1))


class Spelling:
    """Which of the words are spelt alike: cosine of their runs of 3 to 5 letters, rare ones more.

    Runs know where a word begins and ends, so that "hat" is nearer to "hats" than to "what".
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    @cached_property
    def _known(self) -> tuple[CountVectorizer, npt.NDArray[np.float32], sp.csc_matrix]:
        from sklearn.feature_extraction.text import CountVectorizer

        runs = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5), dtype=np.float32)
        counts = runs.fit_transform(self._words)
        share = np.bincount(counts.indices, minlength=counts.shape[1]) / len(self._words)
        weights = (1 - np.log(share)).astype(np.float32)
        return runs, weights, self._unit(counts, weights).T.tocsr()

    def similar_words(self) -> sp.csr_matrix:
        """I + a little of the known words spelt alike, (words, words)."""
        parts = [sp.csr_matrix((0, len(self._words)), dtype=np.float32)]
        for start in range(0, len(self._words), _AT_ONCE):
            alike = self._likeness(self._words[start : start + _AT_ONCE])
            alike.data[alike.data < _RELATED] = 0
            parts.append(alike)
        found = sp.vstack(parts).tocsr()
        found.setdiag(0)
        found.eliminate_zeros()
        return (sp.identity(len(self._words), np.float32) + _RELATED_WEIGHT * found).tocsr()

    def substitutes(self, unknown: Sequence[str]) -> Iterator[Substitutes]:
        """For each word the few known ones spelt most like it; together as heavy as the best."""
        for start in range(0, len(unknown), _AT_ONCE):
            alike = self._likeness(unknown[start : start + _AT_ONCE])
            for first, last in pairwise(alike.indptr):
                columns, likeness = alike.indices[first:last], alike.data[first:last]
                best = np.argsort(-likeness, kind="stable")[:_STAND_INS]
                best = best[likeness[best] >= _LIKENESS]
                kept = likeness[best]
                share = kept * (kept[0] / kept.sum()) if len(kept) else kept
                yield columns[best].tolist(), share.tolist()

    def _likeness(self, words: Sequence[str]) -> sp.csr_matrix:
        runs, weights, known = self._known
        return (self._unit(runs.transform(words), weights) @ known).tocsr()

    @staticmethod
    def _unit(counts: sp.csr_matrix, weights: npt.NDArray[np.float32]) -> sp.csr_matrix:
        counts.data *= weights[counts.indices]
        return normalize_rows(counts)


def stop_words(texts: Sequence[str]) -> list[str]:
    """Words in many texts whose company is everybody's: they say nothing about a text.

    The company of a word are the words of the texts it is in. What a draw of so many words would
    differ from all words by chance is taken off, so that few texts make no word look special. A
    word that other frequent words avoid is one of several things said in its place, so it is kept.
    """
    total: Counter[str] = Counter()
    split = [set(tokenize(text)) for text in texts]
    for words in split:
        total.update(words)
    column = {word: at for at, word in enumerate(total)}
    frequent = [w for w, count in total.items() if count > max(1, _EMPTY_SHARE * len(texts))]
    said = sp.csr_matrix(
        (
            np.ones(sum(map(len, split)), np.float32),
            [column[word] for words in split for word in words],
            np.cumsum([0, *map(len, split)]),
        ),
        shape=(len(texts), len(total)),
    )
    together = (said[:, [column[word] for word in frequent]].T @ said).toarray()
    background = np.array(list(total.values())) / max(1, sum(total.values()))
    often = np.array([total[word] for word in frequent])
    found = []
    for word, company in zip(frequent, together):
        met = company[[column[other] for other in frequent]]
        expected = often * (total[word] / len(texts))
        if expected[met < expected / 2].sum() >= _AVOIDED:
            continue
        company[column[word]] = 0
        size = company.sum()
        if size == 0:  # always alone: all that its texts say
            continue
        share = company[company > 0] / size
        others = background[company > 0] / (1 - background[column[word]])
        apart = float((share * np.log(share / others)).sum())
        by_chance = float((1 - np.exp(-size * background)).sum()) / (2 * size)
        if apart - by_chance < _EMPTY_COMPANY:
            found.append(word)
    return found


# Texts -> arrays as in the paper: plain counts of words, reduced by PCA.


@dataclass
class BagOfWords:
    """log(1 + count) of each word, unit length, then the leading principal directions."""

    dimensions: int = 1000  # the paper, Section 4.1
    minimum_texts: int = 2  # a word seen once relates nothing to anything
    vocabulary_limit: int = 20_000
    name: str = "bag-of-words"

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self:
        from sklearn.decomposition import TruncatedSVD

        texts = [text for part in collections for text in part]
        vectorizer = self._vectorizer(
            min_df=min(self.minimum_texts, len(texts)), max_features=self.vocabulary_limit
        )
        try:
            vectorizer.fit(texts)
        except ValueError:
            raise DataError(
                "no word occurs in two training texts, so they cannot be compared; give more texts"
            ) from None
        words = vectorizer.vocabulary_
        self.vocabulary_: list[str] = sorted(words, key=lambda word: int(words[word]))
        counts = self._counts(texts)
        rank = max(1, min(self.dimensions, min(counts.shape) - 1))
        svd = TruncatedSVD(rank, n_iter=5, random_state=seed).fit(counts)
        self.components_: TextRows = svd.components_.astype(np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> TextRows:
        if not hasattr(self, "components_"):
            raise NotFittedError("bag of words was not fitted; call fit() or load an encoder")
        return np.asarray(self._counts(texts) @ self.components_.T, dtype=np.float32)

    def known_words(self, text: str) -> list[str]:
        """The words of `text` that can influence its code."""
        words = set(self.vocabulary_)
        return [word for word in self._vectorizer().build_analyzer()(text) if word in words]

    def unknown_words(self, text: str) -> list[str]:
        words = set(self.vocabulary_)
        return [word for word in self._vectorizer().build_analyzer()(text) if word not in words]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"components": self.components_}

    def lists(self) -> list[str]:
        """What a run keeps beside the arrays."""
        return self.vocabulary_

    def restore(self, vocabulary: Sequence[str], state: Mapping[str, npt.NDArray[Any]]) -> Self:
        self.vocabulary_ = list(vocabulary)
        self.components_ = state["components"]
        return self

    def _counts(self, texts: Sequence[str]) -> sp.csr_matrix:
        if getattr(self, "_counter", None) is None:
            self._counter = self._vectorizer(vocabulary=self.vocabulary_)
        counts = self._counter.transform(texts).astype(np.float32)
        counts.data = np.log1p(counts.data)
        return normalize_rows(counts)

    @staticmethod
    def _vectorizer(**settings: Any) -> CountVectorizer:
        from sklearn.feature_extraction.text import CountVectorizer

        # \w\w+ drops one-letter words, which carry no topic; accents fold so that café = cafe.
        return CountVectorizer(
            lowercase=True, strip_accents="unicode", token_pattern=r"(?u)\b\w\w+\b", **settings
        )
