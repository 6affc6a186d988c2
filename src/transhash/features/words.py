"""Text features from words: WordFeatures, and the paper's plain BagOfWords.

WordFeatures give rare words more weight and ignore stop words. A word that is in no training text
falls back on known words with a similar spelling, so that inflections ("dogs", "doggy") and
compounds count. No word list of any language is used.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.errors import DataError, NotFittedError
from transhash.progress import Track, no_progress, phase
from transhash.threads import single_blas_thread

if TYPE_CHECKING:
    # Importing it takes a second, which a query does not need.
    from sklearn.feature_extraction.text import CountVectorizer

TextRows = npt.NDArray[np.float32]  # (texts, dimensions)
Substitutes = tuple[list[int], list[float]]  # columns of known words, and their weights

# Chosen on held-out captions (docs/choosing.md). A stop word is frequent and occurs with the same
# words as any other. Frequency alone would drop the one word that a small set is about.
_STOP_WORD_FRACTION = 0.1  # of the texts, in any of the collections
_STOP_WORD_DIVERGENCE = 0.2  # nats between the words around it and all words
_MIN_AVOIDED = 5  # missing co-occurrences with other frequent words, compared to chance
_RARITY_POWER = 0.5  # of log(1 / fraction of the texts)
_SIMILAR_SPELLING, _SIMILAR_WEIGHT = 0.4, 0.5  # known words with similar spelling share weight
_MAX_SUBSTITUTES, _MIN_SIMILARITY = 3, 0.4  # known words in place of an unknown one
_CHUNK_WORDS = 512  # words compared with all known ones at a time
_MAX_CACHED_WORDS = 100_000  # unknown words whose substitutes are cached

_NO_SUBSTITUTES: Substitutes = ([], [])
_LOG = [float(np.log2(1 + count)) for count in range(100)]  # 1 for a word that occurs once
_WORD = re.compile(r"(?u)\b\w\w+\b")  # one-letter words carry no topic


def tokenize(text: str) -> list[str]:
    """Return lower-case words of two letters or more, without accents (café = cafe)."""
    text = text.lower()
    if not text.isascii():
        parts = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in parts if not unicodedata.combining(letter))
    return _WORD.findall(text)


def normalize_rows(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Divide each row by its length, in place. Empty rows stay."""
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    squares = np.bincount(rows, counts.data.astype(np.float64) ** 2, counts.shape[0])
    lengths = np.sqrt(squares)
    lengths[lengths == 0] = 1
    counts.data = (counts.data / lengths[rows]).astype(np.float32)
    return counts


class _VocabularyFeatures:
    """Weighted word counts of unit length, projected on their leading principal axes."""

    vocabulary_: list[str]
    stop_words_: list[str]
    components_: TextRows  # (words, dimensions)

    def __init__(self, dimensions: int = 1000, vocabulary_limit: int = 20_000) -> None:
        self.dimensions = dimensions  # the paper, Section 4.1
        self.vocabulary_limit = vocabulary_limit

    def transform(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        """Return one row per text; a text without known words gets zeros."""
        if not hasattr(self, "components_"):
            raise NotFittedError("The text features are not fitted. Call fit() or load an encoder.")
        return np.asarray(self._counts(texts) @ self.components_, np.float32)

    def known_words(self, text: str) -> list[str]:
        words = tokenize(text)
        known = self._known(words)
        return [word for word in words if word in known]

    def unknown_words(self, text: str) -> list[str]:
        words = tokenize(text)
        known = self._known(words).union(self.stop_words_)
        return [word for word in words if word not in known]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"components": self.components_}

    def word_lists(self) -> dict[str, list[str]]:
        return {"words": self.vocabulary_, "stop_words": self.stop_words_}

    def restore(
        self, lists: Mapping[str, Sequence[str]], state: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        self.vocabulary_, self.stop_words_ = list(lists["words"]), list(lists["stop_words"])
        self.components_ = state["components"]
        return self

    def _known(self, words: Iterable[str]) -> set[str]:
        """Return which of the words influence a vector."""
        raise NotImplementedError

    def _counts(self, texts: Sequence[str]) -> sp.csr_matrix:
        """Return weighted counts (texts, vocabulary), rows of unit length."""
        raise NotImplementedError

    def _principal_axes(self, counts: sp.csr_matrix, seed: int) -> npt.NDArray[Any]:
        """Return axes (words, dimensions)."""
        if counts.shape[1] == 1:
            return np.ones((1, 1))
        from sklearn.decomposition import TruncatedSVD

        rank = max(1, min(self.dimensions, min(counts.shape) - 1))
        with single_blas_thread():  # two threads took ten times as long where others use the cores
            svd = TruncatedSVD(rank, n_iter=5, random_state=seed).fit(counts)
        return svd.components_.T  # type: ignore[no-any-return]


class WordFeatures(_VocabularyFeatures):
    """Counts are rarity x log(1 + count) of each word."""

    name = "words"

    @phase("word features")
    def fit(self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress) -> Self:
        """Learn vocabulary, rarity, stop words and axes.

        A stop word of one collection is one of all. Words beyond `vocabulary_limit` count only
        by their spelling.
        """
        parts = [part for part in collections if len(part)]
        counters = [
            Counter(word for text in part for word in set(tokenize(text))) for part in parts
        ]
        total = sum(counters, Counter[str]())
        if not total:
            raise DataError("No training text has a word of two letters. Pass other texts.")
        frequent = sorted(total, key=lambda word: (-total[word], word))[: self.vocabulary_limit]
        ignored = {word for part in parts for word in stop_words(part)}
        if ignored.issuperset(frequent):  # the texts have no other words
            ignored = set()
        self.stop_words_ = sorted(ignored)
        self.vocabulary_ = sorted(word for word in frequent if word not in ignored)
        fractions = [
            max(counter[word] / len(part) for counter, part in zip(counters, parts))
            for word in self.vocabulary_
        ]
        # At most 0.9, so that a word of all texts still counts.
        rarity = (-np.log(np.minimum(fractions, 0.9))) ** _RARITY_POWER
        self.rarity_: TextRows = rarity.astype(np.float32)
        self._prepare()
        similar = self._spelling.similar_words()
        counts = self._counts([text for part in parts for text in part]) @ similar
        # Sharing weight and projecting are both linear, so one table does both.
        axes = self._principal_axes(counts, seed)
        self.components_ = np.ascontiguousarray(similar @ axes, np.float32)
        return self

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return super().state() | {"rarity": self.rarity_}

    def restore(
        self, lists: Mapping[str, Sequence[str]], state: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        super().restore(lists, state)
        self.rarity_ = state["rarity"]
        self._prepare()
        return self

    def _prepare(self) -> None:
        self._spelling = Spelling(self.vocabulary_)
        self._columns = self._known_columns()

    def _known_columns(self) -> dict[str, Substitutes]:
        """Return columns and weights of known words. Unknown ones are added as they occur."""
        columns: dict[str, Substitutes] = dict.fromkeys(self.stop_words_, _NO_SUBSTITUTES)
        for column, word in enumerate(self.vocabulary_):
            columns[word] = [column], [float(self.rarity_[column])]
        return columns

    def _known(self, words: Iterable[str]) -> set[str]:
        words = set(words)
        table = self._columns_of(words)
        return {word for word in words if table[word][0]}

    def _columns_of(self, words: Iterable[str]) -> Mapping[str, Substitutes]:
        """Return a table that has these words, and keep it for later texts."""
        # A local name, because another thread may replace the table before the caller has read it.
        table = self._columns
        if len(table) > len(self.vocabulary_) + len(self.stop_words_) + _MAX_CACHED_WORDS:
            table = self._columns = self._known_columns()
        unknown = list({word for word in words if word not in table})
        if unknown:
            for word, (columns, similarity) in zip(unknown, self._spelling.substitutes(unknown)):
                weights = [
                    cosine * float(self.rarity_[i]) for i, cosine in zip(columns, similarity)
                ]
                table[word] = columns, weights
        return table

    def _counts(self, texts: Sequence[str]) -> sp.csr_matrix:
        tokens = [tokenize(text) for text in texts]
        table = self._columns_of(word for words in tokens for word in words)
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for words in tokens:
            for word, count in _count_words(words):
                at, weights = table[word]
                columns += at
                values += weights if count == 1 else [w * _LOG[min(count, 99)] for w in weights]
            ends.append(len(columns))
        counts = sp.csr_matrix(
            (np.array(values, np.float32), np.array(columns, np.int32), np.array(ends)),
            shape=(len(texts), len(self.vocabulary_)),
        )
        counts.sum_duplicates()
        return normalize_rows(counts)


def _count_words(words: list[str]) -> Iterable[tuple[str, int]]:
    # A Counter is slow, and most texts repeat no word.
    return Counter(words).items() if len(words) != len(set(words)) else zip(words, repeat(1))


class BagOfWords(_VocabularyFeatures):
    """Counts are log(1 + count) of each word, as in the paper."""

    name = "bag-of-words"

    @phase("word features")
    def fit(self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress) -> Self:
        texts = [text for part in collections for text in part]
        # A word that occurs in one text only relates no texts.
        vectorizer = _word_counter(min_df=min(2, len(texts)), max_features=self.vocabulary_limit)
        try:
            vectorizer.fit(texts)
        except ValueError:
            raise DataError("No word occurs in two training texts. Pass more texts.") from None
        words = vectorizer.vocabulary_
        vars(self).pop("_counter", None)  # of an earlier fit
        self.vocabulary_, self.stop_words_ = sorted(words, key=lambda word: int(words[word])), []
        axes = self._principal_axes(self._counts(texts), seed)
        self.components_ = np.ascontiguousarray(axes, np.float32)
        return self

    def _known(self, words: Iterable[str]) -> set[str]:
        return set(self.vocabulary_).intersection(words)

    def _counts(self, texts: Sequence[str]) -> sp.csr_matrix:
        counts = self._counter.transform(texts).astype(np.float32)
        counts.data = np.log1p(counts.data)
        return normalize_rows(counts)

    @cached_property
    def _counter(self) -> CountVectorizer:
        return _word_counter(vocabulary=self.vocabulary_)


def _word_counter(**settings: Any) -> CountVectorizer:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(analyzer=tokenize, **settings)


def _letter_runs(word: str) -> Iterator[str]:
    word = f" {word} "
    for size in range(3, 6):
        for start in range(max(1, len(word) - size + 1)):
            yield word[start : start + size]
        if len(word) <= size:  # a short word once only
            return


def _count_runs(words: Sequence[str], columns: Mapping[str, int]) -> sp.csr_matrix:
    rows = [[columns[run] for run in _letter_runs(word) if run in columns] for word in words]
    ends = np.cumsum([0, *map(len, rows)])
    flat = np.fromiter(chain.from_iterable(rows), np.int32, ends[-1])
    counts = sp.csr_matrix(
        (np.ones(len(flat), np.float32), flat, ends), shape=(len(words), len(columns))
    )
    counts.sum_duplicates()
    return counts


class Spelling:
    """Compares spellings: cosine of weighted runs of 3 to 5 letters, rare runs count more.

    Runs mark where a word begins and ends, so that "hat" is nearer to "hats" than to "what".
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    @cached_property
    def _known(self) -> tuple[dict[str, int], npt.NDArray[np.float32], sp.csr_matrix]:
        """Columns and weights of runs, and the known words as columns of unit length."""
        names = sorted({run for word in self._words for run in _letter_runs(word)})
        columns = {run: column for column, run in enumerate(names)}
        counts = _count_runs(self._words, columns)
        fractions = np.bincount(counts.indices, minlength=len(columns)) / len(self._words)
        weights = (1 - np.log(fractions)).astype(np.float32)
        return columns, weights, self._unit(counts, weights).T.tocsr()

    def similar_words(self) -> sp.csr_matrix:
        """Return the identity plus a fraction of each known word's similar ones, (words, words)."""
        parts = [sp.csr_matrix((0, len(self._words)), dtype=np.float32)]
        for start in range(0, len(self._words), _CHUNK_WORDS):
            cosines = self._cosines(self._words[start : start + _CHUNK_WORDS])
            cosines.data[cosines.data < _SIMILAR_SPELLING] = 0
            parts.append(cosines)
        similar = sp.vstack(parts).tocsr()
        similar.setdiag(0)
        similar.eliminate_zeros()
        return (sp.identity(len(self._words), np.float32) + _SIMILAR_WEIGHT * similar).tocsr()

    def substitutes(self, unknown: Sequence[str]) -> Iterator[Substitutes]:
        """Yield the few most similar known words, whose weights add up to the best similarity."""
        for start in range(0, len(unknown), _CHUNK_WORDS):
            cosines = self._cosines(unknown[start : start + _CHUNK_WORDS])
            for first, last in pairwise(cosines.indptr):
                columns, similarity = cosines.indices[first:last], cosines.data[first:last]
                best = np.argsort(-similarity, kind="stable")[:_MAX_SUBSTITUTES]
                best = best[similarity[best] >= _MIN_SIMILARITY]
                weights = similarity[best]
                if len(weights):
                    weights = weights * (weights[0] / weights.sum())
                yield columns[best].tolist(), weights.tolist()

    def _cosines(self, words: Sequence[str]) -> sp.csr_matrix:
        columns, weights, known = self._known
        return (self._unit(_count_runs(words, columns), weights) @ known).tocsr()

    @staticmethod
    def _unit(counts: sp.csr_matrix, weights: npt.NDArray[np.float32]) -> sp.csr_matrix:
        counts.data *= weights[counts.indices]
        return normalize_rows(counts)


def stop_words(texts: Sequence[str]) -> list[str]:
    """Return frequent words that occur with the same words as any other, so carry no topic.

    The words that occur with a word are compared with all words by their divergence, less what
    chance would cause, so that no word looks special in few texts. A word that avoids other
    frequent words is one of several alternatives, so it is not a stop word.
    """
    total: Counter[str] = Counter()
    tokens = [set(tokenize(text)) for text in texts]
    for words in tokens:
        total.update(words)
    column = {word: i for i, word in enumerate(total)}
    frequent = [
        word for word, count in total.items() if count > max(1, _STOP_WORD_FRACTION * len(texts))
    ]
    occurrences = sp.csr_matrix(
        (
            np.ones(sum(map(len, tokens)), np.float32),
            [column[word] for words in tokens for word in words],
            np.cumsum([0, *map(len, tokens)]),
        ),
        shape=(len(texts), len(total)),
    )
    frequent_columns = [column[word] for word in frequent]
    together = (occurrences[:, frequent_columns].T @ occurrences).toarray()
    background = np.array(list(total.values())) / max(1, sum(total.values()))
    counts = np.array([total[word] for word in frequent])
    result = []
    for word, neighbors in zip(frequent, together):
        expected = counts * (total[word] / len(texts))
        if expected[neighbors[frequent_columns] < expected / 2].sum() >= _MIN_AVOIDED:
            continue
        neighbors[column[word]] = 0
        size = neighbors.sum()
        if size == 0:  # always alone, so its texts consist of it
            continue
        fractions = neighbors[neighbors > 0] / size
        others = background[neighbors > 0] / (1 - background[column[word]])
        divergence = float((fractions * np.log(fractions / others)).sum())
        by_chance = float((1 - np.exp(-size * background)).sum()) / (2 * size)
        if divergence - by_chance < _STOP_WORD_DIVERGENCE:
            result.append(word)
    return result
