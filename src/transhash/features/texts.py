"""Text features: words, words combined with an embedding model, or a joint model's texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, NotFittedError
from transhash.features import named_library
from transhash.features.embedders import (
    TextEmbedder,
    embed_with_cache,
    load_embedder,
    load_saved_embedder,
)
from transhash.features.words import BagOfWords, TextRows, WordFeatures, tokenize
from transhash.progress import Track, no_progress
from transhash.storage import read_json, read_tensors, write_json, write_tensors


class TextFeatures(Protocol):
    """Turns texts into feature vectors, after a fit on training texts only."""

    @property
    def name(self) -> str: ...

    def fit(
        self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress
    ) -> Self: ...

    def transform(self, texts: Sequence[str], track: Track = no_progress) -> TextRows: ...

    def known_words(self, text: str) -> list[str]:
        """Return the words of `text` that influence its vector."""
        ...

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of `text` that are ignored though they are not stop words."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of text.safetensors."""
        ...

    def word_lists(self) -> dict[str, list[str]]:
        """Return the content of vocabulary.json."""
        ...


@dataclass
class CombinedTextFeatures:
    """Word features next to embeddings, both scaled to the same spread so that both count."""

    words: WordFeatures
    embedder: TextEmbedder

    @property
    def name(self) -> str:
        return f"{self.words.name}+{self.embedder.name}"

    def __post_init__(self) -> None:
        # Embeddings of the training texts, which `fit` needs and the first `transform` needs again.
        self._embeddings: tuple[dict[str, int], TextRows] = {}, np.empty((0, 0), np.float32)

    def fit(self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress) -> Self:
        self.words.fit(*collections, seed=seed)
        texts = [text for part in collections for text in part]
        distinct = list(dict.fromkeys(texts))
        rows = {text: row for row, text in enumerate(distinct)}
        self._embeddings = rows, embed_with_cache(self.embedder, distinct, track)
        parts = self.words.transform(texts), self._embed(texts, track)
        spreads = [np.sqrt(((part - part.mean(axis=0)) ** 2).sum(axis=1).mean()) for part in parts]
        self.scale_ = np.array([1 / max(float(spread), 1e-6) for spread in spreads], np.float32)
        return self

    def _embed(self, texts: Sequence[str], track: Track) -> TextRows:
        rows, embeddings = self._embeddings
        if len(texts) and all(text in rows for text in texts):
            return embeddings[[rows[text] for text in texts]]
        return self.embedder.embed(texts, track)

    def transform(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        if not hasattr(self, "scale_"):
            raise NotFittedError("The text features are not fitted. Call fit() or load an encoder.")
        word_scale, embedding_scale = self.scale_
        return np.concatenate(
            [
                self.words.transform(texts) * word_scale,
                self._embed(texts, track) * embedding_scale,
            ],
            axis=1,
        )

    def known_words(self, text: str) -> list[str]:
        known, ignored = set(self.words.known_words(text)), set(self.words.stop_words_)
        return [
            word
            for word in tokenize(text)
            if word in known or (word not in ignored and self.embedder.knows_word(word))
        ]

    def unknown_words(self, text: str) -> list[str]:
        unknown = self.words.unknown_words(text)
        return [word for word in unknown if not self.embedder.knows_word(word)]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self.words.state() | {"scale": self.scale_}

    def word_lists(self) -> dict[str, list[str]]:
        return self.words.word_lists()


def text_features(name: str | None, device: str = "cpu") -> TextFeatures:
    """Return unfitted text features: words (default), bag-of-words, or an embedding model.

    An embedding model is combined with words. A joint model (open_clip:NAME, transformers:NAME)
    is used alone, because its texts share a space with its images.
    """
    if name is None:
        return WordFeatures()
    for features in (WordFeatures, BagOfWords):
        if name == features.name:
            return features()
    if named_library(name):
        from transhash.features.pretrained import JointModelTextFeatures  # imports torch

        return JointModelTextFeatures(name, device)
    return CombinedTextFeatures(WordFeatures(), load_embedder(name, device))


def save_text(features: TextFeatures, folder: Path) -> dict[str, Any]:
    """Save what `load_text` needs, and return the entries of config.json."""
    write_json(folder / "vocabulary.json", features.word_lists())
    write_tensors(folder / "text.safetensors", features.state())
    config: dict[str, Any] = {"text_features": features.name}
    if isinstance(features, CombinedTextFeatures):
        config["text_model"] = features.embedder.save(folder)
    if named_library(features.name):
        from transhash.features.pretrained import external_model_record

        config |= external_model_record("text_model", features)
    return config


def load_text(folder: Path, config: dict[str, Any], device: str = "cpu") -> TextFeatures:
    """Load what `save_text` saved."""
    name, record = config["text_features"], config.get("text_model")
    if named_library(name):
        from transhash.features.pretrained import JointModelTextFeatures, check_same_model

        joint = JointModelTextFeatures(name, device)
        check_same_model(joint, record, folder)
        return joint
    lists, state = _read_words(folder)
    if name == BagOfWords.name:
        return BagOfWords().restore(lists, state)
    words = WordFeatures().restore(lists, state)
    if name == WordFeatures.name:
        return words
    if not isinstance(record, dict) or "scale" not in state:
        raise DataError(f"{folder / 'config.json'} does not name its text_model. Refit the run.")
    combined = CombinedTextFeatures(words, load_saved_embedder(folder, record, device))
    combined.scale_ = state["scale"]
    return combined


def _read_words(folder: Path) -> tuple[dict[str, list[str]], dict[str, npt.NDArray[Any]]]:
    """Read vocabulary.json and text.safetensors, and refuse arrays of other words."""
    path = folder / "vocabulary.json"
    lists, state = read_json(path), read_tensors(folder / "text.safetensors")
    if not isinstance(lists, dict) or set(lists) != {"words", "stop_words"}:
        raise DataError(f"{path} does not list words. Refit the run.")
    words = lists["words"]
    known = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not known or len(set(words)) < len(words):
        raise DataError(f"{path} is not a list of distinct words. Refit the run.")
    components, rarity = state.get("components"), state.get("rarity")
    if (
        components is None
        or components.ndim != 2
        or len(components) != len(words)
        or (rarity is not None and rarity.shape != (len(words),))
    ):
        raise DataError(
            f"{folder / 'text.safetensors'} does not fit the {len(words):,} words of {path}. "
            "Refit the run."
        )
    return lists, state
