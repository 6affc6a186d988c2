"""Texts -> arrays as in the paper: plain counts of words, reduced by PCA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.errors import DataError, NotFittedError
from transhash.features.words import TextRows, unit_length

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import CountVectorizer


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
        return unit_length(counts)

    @staticmethod
    def _vectorizer(**settings: Any) -> CountVectorizer:
        from sklearn.feature_extraction.text import CountVectorizer

        # \w\w+ drops one-letter words, which carry no topic; accents fold so that café = cafe.
        return CountVectorizer(
            lowercase=True, strip_accents="unicode", token_pattern=r"(?u)\b\w\w+\b", **settings
        )
