"""Sentence embeddings of BERT models in NumPy, so that queries need neither torch nor transformers.

Supported are folders of sentence-transformers with a BERT encoder and mean pooling, such as
all-MiniLM-L6-v2. The weights are mapped into memory, so that a query reads only what it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.progress import Track, no_progress, with_progress
from transhash.storage import read_json
from transhash.threads import cpu_count, single_blas_thread

Rows = npt.NDArray[np.float32]
_BATCH_TOKENS = 1024  # whose activations fit in the processor's cache
_CHUNK_ROWS = 256  # smaller ones would make threads wait for Python's lock
_TYPES = {"F32": np.float32, "F16": np.float16}
_DTYPES = ("float32", "float16")
_TOKENIZERS = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
_POOLING = "pooling_mode_"
# Abramowitz and Stegun, 7.1.26: erf(x) = 1 - t (a1 + a2 t + ...) exp(-x²), t = 1 / (1 + p x), for
# x >= 0, with an error below 1.5e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_SCALE = 0.3275911


class _Settings(NamedTuple):
    heads: int
    layers: int
    epsilon: float  # of the layer norms
    max_tokens: int


class BertModel:
    """A tokenizer and a BERT encoder with mean pooling."""

    def __init__(self, folder: Path) -> None:
        settings = _read_settings(folder)
        if settings is None:
            raise DataError(f"{folder} is not a BERT model with mean pooling. Pass another model.")
        from tokenizers import Tokenizer

        self._settings = settings
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(settings.max_tokens)
        self._tokenizer.no_padding()
        tensors = map_tensors(folder / "model.safetensors")
        prefix = "bert." if "bert.embeddings.word_embeddings.weight" in tensors else ""
        self._words = tensors[f"{prefix}embeddings.word_embeddings.weight"]
        self._embeddings = _Weights(tensors, f"{prefix}embeddings.")
        self._layers = [
            _Weights(tensors, f"{prefix}encoder.layer.{i}.") for i in range(settings.layers)
        ]
        # All texts are first sentences, so one row of the types is part of the positions.
        types = self._embeddings["token_type_embeddings.weight"][0]
        self._positions = self._embeddings["position_embeddings.weight"] + types

    def embed(self, texts: Sequence[str], track: Track = no_progress) -> Rows:
        """Return rows of unit length; a bar counts the texts."""
        # One by one: the tokenizer's own threads would cost more than they gain.
        ids = [self._tokenizer.encode(_valid(text)).ids for text in texts]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        result = np.empty((len(ids), self._words.shape[1]), np.float32)
        start = 0
        for rows in with_progress(
            self._embed_batches([ids[i] for i in order]), track, "text features", len(ids)
        ):
            result[order[start : start + len(rows)]] = rows
            start += len(rows)
        return result

    def _embed_batches(self, ids: Sequence[Sequence[int]]) -> Generator[Rows, None, None]:
        batches = _split(ids)
        # BLAS with several threads needs 10 times the time for one query on a busy machine.
        with single_blas_thread():
            if len(batches) < 2 or cpu_count() == 1:
                yield from map(self._embed_batch, batches)
                return
            executor = ThreadPoolExecutor(min(cpu_count(), len(batches)))
            try:
                yield from executor.map(self._embed_batch, batches)
            finally:
                executor.shutdown(cancel_futures=True)  # of an interrupted caller

    def _embed_batch(self, ids: Sequence[Sequence[int]]) -> Rows:
        """Embed texts of descending length. Their tokens are joined, so nothing is padded."""
        lengths = [len(part) for part in ids]
        starts = np.cumsum([0, *lengths[:-1]])
        tokens = np.concatenate([np.asarray(part, np.intp) for part in ids])
        positions = np.concatenate([np.arange(length) for length in lengths])
        x = self._words[tokens].astype(np.float32, copy=False) + self._positions[positions]
        x = self._embeddings.norm("LayerNorm", x, self._settings.epsilon)
        groups = [(length, len(list(group))) for length, group in groupby(lengths)]
        for layer in self._layers:
            x = self._layer(layer, x, groups)
        rows = np.add.reduceat(x, starts) / np.array(lengths, np.float32)[:, None]
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.maximum(norms, 1e-12), np.float32)

    def _layer(self, weights: _Weights, x: Rows, groups: Sequence[tuple[int, int]]) -> Rows:
        attention, epsilon = "attention.self.", self._settings.epsilon
        parts = [weights.linear(f"{attention}{name}", x) for name in ("query", "key", "value")]
        mixed = self._attend(parts, groups)
        x = x + weights.linear("attention.output.dense", mixed)
        x = weights.norm("attention.output.LayerNorm", x, epsilon)
        hidden = gelu(weights.linear("intermediate.dense", x))
        return weights.norm("output.LayerNorm", x + weights.linear("output.dense", hidden), epsilon)

    def _attend(self, parts: Sequence[Rows], groups: Sequence[tuple[int, int]]) -> Rows:
        """Let the tokens of each text attend to each other.

        Parts are queries, keys and values; a group is (tokens of each text, texts).
        """
        heads, result, start = self._settings.heads, np.empty_like(parts[0]), 0
        scale = np.float32(1 / math.sqrt(result.shape[1] // heads))
        for length, count in groups:
            end = start + length * count
            shape = (count, length, heads, -1)
            q, k, v = (part[start:end].reshape(shape).swapaxes(1, 2) for part in parts)
            scores = q @ k.swapaxes(2, 3)
            scores *= scale
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            result[start:end] = (scores @ v).swapaxes(1, 2).reshape(end - start, -1)
            start = end
        return result


class _Weights:
    """The arrays of one layer in float32, by their names without the prefix."""

    def __init__(self, tensors: dict[str, Rows], prefix: str) -> None:
        self._arrays = {
            name.removeprefix(prefix): array.astype(np.float32, copy=False)
            for name, array in tensors.items()
            if name.startswith(prefix) and "word_embeddings" not in name
        }

    def __getitem__(self, name: str) -> Rows:
        return self._arrays[name]

    def linear(self, name: str, x: Rows) -> Rows:
        result = x @ self[f"{name}.weight"].T
        result += self[f"{name}.bias"]
        return result

    def norm(self, name: str, x: Rows, epsilon: float) -> Rows:
        x = x - x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
        x /= np.sqrt(variance + np.float32(epsilon))
        x *= self[f"{name}.weight"]
        x += self[f"{name}.bias"]
        return x


def gelu(x: Rows) -> Rows:
    """Replace x by x (1 + erf(x / √2)) / 2, in place."""
    # In pieces that stay in the cache, because every operation is a pass.
    for start in range(0, len(x), _CHUNK_ROWS):
        part = x[start : start + _CHUNK_ROWS]
        size = np.abs(part)
        t = 1 / (1 + np.float32(_ERF_SCALE / math.sqrt(2)) * size)
        tail = np.full_like(t, _ERF[-1])
        for coefficient in (*_ERF[-2::-1], 0.0):
            tail *= t
            tail += np.float32(coefficient)
        tail *= size
        tail *= np.float32(0.5)
        tail *= np.exp(np.float32(-0.5) * size * size)
        np.maximum(part, 0, out=part)
        part -= tail
    return x


def _valid(text: str) -> str:
    """Replace lone surrogates, which the tokenizer refuses."""
    return text.encode("utf-8", "replace").decode()


def _split(ids: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Split token lists into batches of similar size."""
    batches: list[list[Sequence[int]]] = []
    free = 0
    for part in ids:
        if len(part) > free:
            batches.append([])
            free = max(_BATCH_TOKENS, len(part))
        batches[-1].append(part)
        free -= len(part)
    return batches


def is_bert_model(folder: Path) -> bool:
    """Return whether `BertModel` gives the same embeddings as sentence-transformers."""
    return _read_settings(folder) is not None


def _read_settings(folder: Path) -> _Settings | None:
    """Return the settings, or None if the folder has any that are not supported here."""
    paths = ("modules.json", "config.json", "1_Pooling/config.json", "tokenizer.json")
    if not all((folder / path).is_file() for path in (*paths, "model.safetensors")):
        return None
    modules, config, pooling, tokenizer = (read_json(folder / path) for path in paths)
    more = [
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in (
            "sentence_bert_config.json", "config_sentence_transformers.json",
            "tokenizer_config.json",
        )
    ]  # fmt: skip
    if not isinstance(modules, list) or not all(isinstance(part, dict) for part in modules):
        return None
    if not all(isinstance(part, dict) for part in (config, pooling, tokenizer, *more)):
        return None
    sentence, library, words = more
    places = [(str(part.get("type")).rpartition(".")[2], part.get("path")) for part in modules]
    if places[:2] != [("Transformer", ""), ("Pooling", "1_Pooling")]:
        return None
    normalizer = tokenizer.get("normalizer") or {}
    is_supported = (
        [name for name, _ in places[2:]] in ([], ["Normalize"])
        and config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and (config.get("dtype") or config.get("torch_dtype") or "float32") in _DTYPES
        and _is_mean(pooling)
        and not sentence.get("do_lower_case")
        and not library.get("default_prompt_name")
        and words.get("tokenizer_class", _TOKENIZERS[0]) in _TOKENIZERS
        and normalizer.get("type") == "BertNormalizer"
        and words.get("do_lower_case", True) == normalizer.get("lowercase")
        and words.get("strip_accents") == normalizer.get("strip_accents")
    )
    numbers = [
        config.get(key)
        for key in ("num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    ]
    if not is_supported or not all(isinstance(number, int) and number > 0 for number in numbers):
        return None
    heads, layers, positions = numbers
    limit = sentence.get("max_seq_length") or words.get("model_max_length") or positions
    return _Settings(
        heads, layers, float(config.get("layer_norm_eps", 1e-12)), min(int(limit), positions)
    )


def _is_mean(pooling: dict[str, Any]) -> bool:
    modes = {name: value for name, value in pooling.items() if name.startswith(_POOLING)}
    if modes:  # of versions before 6
        return {name for name, value in modes.items() if value} == {f"{_POOLING}mean_tokens"}
    return bool(pooling.get("pooling_mode") == "mean")


def map_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the floating-point arrays of a safetensors file without reading them.

    The library of that name copies an array before it returns it.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size - 8:
            raise DataError(f"{path} is not a safetensors file. Pass a complete model folder.")
        header = json.loads(file.read(size))
    content = np.memmap(path, np.uint8, "r", 8 + size)
    result = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in _TYPES:
            first, last = entry["data_offsets"]
            array = np.asarray(content[first:last]).view(_TYPES[entry["dtype"]])
            result[name] = array.reshape(entry["shape"])
    return result
