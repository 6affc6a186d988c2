"""Texts -> arrays: by their words, or by words and meaning together; kept in a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, NotFittedError
from transhash.features import named_library
from transhash.features.bag_of_words import BagOfWords
from transhash.features.meaning import Meaning, find_meaning, saved_meaning
from transhash.features.words import TextRows, Words, tokens
from transhash.storage import read_json, read_tensors, write_json, write_tensors


class TextFeatures(Protocol):
    """Fitted on training texts only; then a row a text."""

    @property
    def name(self) -> str: ...

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self: ...

    def transform(self, texts: Sequence[str]) -> TextRows: ...

    def known_words(self, text: str) -> list[str]: ...

    def unknown_words(self, text: str) -> list[str]: ...

    def state(self) -> dict[str, npt.NDArray[Any]]: ...

    def lists(self) -> Any:
        """Words that vocabulary.json keeps."""
        ...


@dataclass
class JoinedText:
    """Words and meaning side by side, each scaled to the same spread, so that neither drowns."""

    words: Words
    meaning: Meaning

    @property
    def name(self) -> str:
        return f"{self.words.name}+{self.meaning.name}"

    @property
    def vocabulary_(self) -> list[str]:
        return self.words.vocabulary_

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self:
        self.words.fit(*collections, seed=seed)
        texts = [text for part in collections for text in part]
        parts = self.words.transform(texts), self.meaning.rows(texts)
        spread = [np.sqrt(((part - part.mean(axis=0)) ** 2).sum(axis=1).mean()) for part in parts]
        self.scale_ = np.array([1 / max(float(one), 1e-6) for one in spread], np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> TextRows:
        if not hasattr(self, "scale_"):
            raise NotFittedError("the text features were not fitted; call fit() or load an encoder")
        by_word, by_meaning = self.scale_
        return np.concatenate(
            [self.words.transform(texts) * by_word, self.meaning.rows(texts) * by_meaning], axis=1
        )

    def known_words(self, text: str) -> list[str]:
        """The words of `text` that count; empty ones do not."""
        known, empty = set(self.words.known_words(text)), set(self.words.dropped_)
        return [
            word
            for word in tokens(text)
            if word in known or (word not in empty and self.meaning.knows(word))
        ]

    def unknown_words(self, text: str) -> list[str]:
        return [word for word in self.words.unknown_words(text) if not self.meaning.knows(word)]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self.words.state() | {"scale": self.scale_}

    def lists(self) -> dict[str, list[str]]:
        return self.words.lists()


def text_features(named: str | None, device: str = "cpu") -> TextFeatures:
    """Unfitted: `words` (None, too), `bag-of-words`, or words joined with a model of that name.

    `open_clip:` and `transformers:` name joint models, which read texts alone, in their own space.
    """
    if named in (None, Words.name):
        return Words()
    if named == BagOfWords.name:
        return BagOfWords()
    if named_library(named):
        from transhash.features.pretrained import JointText  # imports torch

        return JointText(str(named), device)
    return JoinedText(Words(), find_meaning(named, device))


def save_text(features: TextFeatures, folder: Path) -> dict[str, Any]:
    """Write what `load_text` needs; what config.json has to say of it."""
    write_json(folder / "vocabulary.json", features.lists())
    write_tensors(folder / "text.safetensors", features.state())
    named: dict[str, Any] = {"text_features": features.name}
    if isinstance(features, JoinedText):
        named["text_model"] = features.meaning.save(folder)
    if named_library(features.name):
        from transhash.features.pretrained import model_record

        named |= model_record("text_model", features)
    return named


def load_text(folder: Path, config: dict[str, Any], device: str = "cpu") -> TextFeatures:
    """The inverse of `save_text`."""
    if named_library(config["text_features"]):
        from transhash.features.pretrained import JointText, same_model

        found = JointText(config["text_features"], device)
        same_model(found, config.get("text_model"), folder)
        return found
    lists, state = read_json(folder / "vocabulary.json"), read_tensors(folder / "text.safetensors")
    if config["text_features"] == BagOfWords.name:
        _check(folder, lists, state, axis=1)
        return BagOfWords().restore(lists, state)
    if not isinstance(lists, dict) or set(lists) != {"words", "dropped"}:
        raise DataError(f"{folder / 'vocabulary.json'} does not list words; fit it anew")
    _check(folder, lists["words"], state, axis=0)
    words = Words().restore(lists, state)
    if config["text_features"] == Words.name:
        return words
    record = config.get("text_model")
    if not isinstance(record, dict) or "scale" not in state:
        raise DataError(f"{folder / 'config.json'} does not say its text_model; fit it anew")
    joined = JoinedText(words, saved_meaning(folder, record, device))
    joined.scale_ = state["scale"]
    return joined


def _check(folder: Path, words: Any, state: dict[str, npt.NDArray[Any]], axis: int) -> None:
    """Refuse arrays that are not of these words, which lie along that axis."""
    known = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not known or len(set(words)) < len(words):
        raise DataError(f"{folder / 'vocabulary.json'} is not a list of words; fit it anew")
    weights, rarity = state.get("components"), state.get("rarity")
    if (
        weights is None
        or weights.ndim != 2
        or weights.shape[axis] != len(words)
        or (rarity is not None and rarity.shape != (len(words),))
    ):
        raise DataError(
            f"{folder / 'text.safetensors'} does not fit the {len(words):,} words of "
            f"{folder / 'vocabulary.json'}; fit it anew"
        )
