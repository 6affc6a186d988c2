"""Encoder = features + hasher, one folder on disk: raw image or string -> Codes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from transhash.codes import Codes
from transhash.data.collection import Collection, Images, Modality, Problem, Texts
from transhash.errors import DataError
from transhash.features import BACKBONE_FILE, FINE_TUNED_SUFFIX, named_library
from transhash.features.backbone import Backbone, FineTunedFeatures
from transhash.features.decode import decode
from transhash.features.images import ImageFeatures, image_features
from transhash.features.pretrained import (
    PretrainedFeatures,
    check_same_model,
    external_model_record,
)
from transhash.features.stream import FeatureBatch, extract_all, stream_images, with_progress
from transhash.features.texts import TextFeatures, save_text
from transhash.hashers import Hasher
from transhash.hashers.methods import HASHER_FORMAT
from transhash.model.files import (
    LEARNED_VOTES,
    PRECOMPUTED,
    TrainedVotes,
    check_files,
    read_config,
    read_hasher,
    read_text_features,
    write_config,
)
from transhash.progress import Track, no_progress
from transhash.storage import content_digest

Projections = npt.NDArray[np.float32]  # (items, bits)
_HASHED = 512  # rows hashed at a time: what memory has to hold of them


class EncodedBatch(NamedTuple):
    """Consecutive items of a collection, encoded; positions are those in the collection."""

    readable: list[int]
    codes: Codes  # of the good ones
    digests: list[bytes]  # of their contents
    thumbnails: list[bytes | None]
    unchanged: list[int]  # those the caller knows
    unreadable: list[tuple[int, str]]  # and why


@dataclass
class Encoder:
    """Everything a query needs; None stands for features that come precomputed."""

    hasher: Hasher
    image_features: ImageFeatures | None
    text_features: TextFeatures | None
    method: str = "THN"
    votes: TrainedVotes | None = None  # that it learned from
    folder: Path | None = None  # where it was loaded from

    @property
    def bits(self) -> int:
        return self.hasher.bits

    def encode_batches(
        self,
        items: Collection[Any],
        modality: Modality,
        size: int,
        *,
        cache: bool = True,
        workers: int | None = None,
        thumbnails: bool = False,
        same: Callable[[int, bytes], bool] | None = None,
        track: Track = no_progress,
        description: str = "",
        start: int = 0,
    ) -> Iterator[EncodedBatch]:
        """All items in order, `size` at a time: the one way from items to codes.

        Options as of `stream_images`; `start` is what the bar begins with.
        """
        description = description or f"encoding {modality}"
        parts = self._parts(items, modality, size, cache, workers, thumbnails, same)
        moving = with_progress(parts, track, description, start + len(items), start)
        files = modality == "images" and items.features is None
        hashing = self.hasher.encode_images if modality == "images" else self.hasher.encode_texts
        # One core for hashing beside the threads that compute: BLAS threads would wait for them.
        limits = threadpool_limits(1, "blas") if files else nullcontext()
        with limits, ThreadPoolExecutor(1) as beside, closing(parts):
            block: list[FeatureBatch] = []
            codes: list[Future[Codes]] = []
            rows: list[npt.NDArray[Any]] = []
            at, end = 0, size
            for part in moving:
                while len(part):
                    piece, part = part.cut(end)
                    at += len(piece)
                    block.append(replace(piece, vectors=piece.vectors[:0]))
                    if piece.readable:
                        rows.append(piece.vectors)
                    last = at in (end, len(items))
                    if rows and (last or sum(map(len, rows)) >= _HASHED):
                        codes.append(beside.submit(hashing, np.concatenate(rows)))
                        rows = []
                    if last:
                        yield _coded(block, [future.result() for future in codes], self.bits)
                        block, codes, end = [], [], end + size

    def encode_images(
        self, images: Images, track: Track = no_progress
    ) -> tuple[Codes, Images, list[Problem]]:
        """Codes of the readable images, those images, and what was wrong with the others."""
        blocks = list(self.encode_batches(images, "images", _HASHED, track=track))
        kept, problems = _readable(images, [one for block in blocks for one in block.unreadable])
        return Codes.concatenate(block.codes for block in blocks), kept, problems

    def encode_texts(self, texts: Texts | Sequence[str]) -> Codes:
        """Texts -> codes."""
        return Codes.from_projections(self.project_texts(texts))

    def encode_image(self, source: Path | bytes) -> Codes:
        """The code of one image file or its bytes."""
        return Codes.from_projections(self.project_image(source))

    def project_images(
        self, images: Images, track: Track = no_progress
    ) -> tuple[Projections, Images, list[Problem]]:
        """The real values whose signs `encode_images` keeps."""
        rows, kept, problems = extract_readable(self.image_features, images, track)
        blocks = range(0, len(rows), _HASHED)
        parts = [self.hasher.project_images(rows[at : at + _HASHED]) for at in blocks]
        return np.concatenate(parts), kept, problems

    def project_texts(self, texts: Texts | Sequence[str]) -> Projections:
        """The real values whose signs `encode_texts` keeps."""
        if not isinstance(texts, Sequence):
            if texts.features is not None:
                return self.hasher.project_texts(texts.features)
            texts = texts.items
        return self.hasher.project_texts(self._words().transform(texts))

    def project_image(self, source: Path | bytes) -> Projections:
        """The real values whose signs `encode_image` keeps."""
        if self.image_features is None:
            raise DataError(
                "this model was trained on precomputed image features and cannot read images; "
                "search with a row of features instead"
            )
        pixels = decode(source, self.image_features.size)
        if isinstance(pixels, str):
            name = "the image" if isinstance(source, bytes) else str(source)
            raise DataError(f"{name} cannot be used: {pixels}")
        return self.hasher.project_images(self.image_features.extract(pixels[None]))

    def _parts(
        self,
        items: Collection[Any],
        modality: Modality,
        size: int,
        cache: bool,
        workers: int | None,
        thumbnails: bool,
        same: Callable[[int, bytes], bool] | None,
    ) -> Generator[FeatureBatch, None, None]:
        if modality == "images" and items.features is None:
            yield from stream_images(
                _need(self.image_features), items.items,
                cache=cache, workers=workers, thumbnails=thumbnails, same=same,
            )  # fmt: skip
            return
        given = items.features
        step = min(size, _HASHED)
        for start in range(0, len(items), step):
            span = range(start, min(start + step, len(items)))
            if given is not None:
                digests = [content_digest(given[i].tobytes()) for i in span]
            else:
                digests = [content_digest(items.items[i].encode("utf-8", "replace")) for i in span]
            known = [same is not None and same(i, digests[i - start]) for i in span]
            good = [i for i, old in zip(span, known) if not old]
            if given is not None:
                rows = given[good]
            else:
                texts = [items.items[i] for i in good]
                rows = self._words().transform(texts) if texts else np.empty((0, 0), np.float32)
            kept = [digests[i - start] for i in good]
            seen = [i for i, old in zip(span, known) if old]
            yield FeatureBatch(good, rows, kept, [None] * len(good), seen, [])

    def _words(self) -> TextFeatures:
        if self.text_features is None:
            raise DataError("this model takes precomputed text features; give a .npy, not texts")
        return self.text_features

    def save(self, folder: str | Path) -> None:
        """config.json, hasher.safetensors and what the text features are made of."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.hasher.save_state(folder)
        images = self.image_features
        if isinstance(images, FineTunedFeatures):
            images.save(folder)
        else:
            (folder / BACKBONE_FILE).unlink(missing_ok=True)  # of an earlier run
        texts: dict[str, Any] = {"text_features": PRECOMPUTED}
        if self.text_features is not None:
            texts = save_text(self.text_features, folder)
        if self.votes is None:
            (folder / LEARNED_VOTES).unlink(missing_ok=True)
        else:
            self.votes.save(folder)
        # Last, because a folder with a config.json is a whole one.
        write_config(
            folder,
            {
                "method": self.method,
                "settings": self.hasher.settings(),
                "image_features": images.name if images else PRECOMPUTED,
                **external_model_record("image_model", images),
                **texts,
                **({"votes": self.votes.counts} if self.votes else {}),
            },
        )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Encoder:
        """The encoder that a fit saved in a run folder."""
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give one that `transhash fit` wrote")
        config = read_config(folder)
        check_files(folder, config)
        hasher = read_hasher(folder, config, device)
        named = config["image_features"]
        words = config["text_features"] != PRECOMPUTED
        texts = read_text_features(folder, config, hasher, device) if words else None
        try:
            images = None if named == PRECOMPUTED else _read_images(folder, config, device)
        except DataError as error:
            raise DataError(f"{folder / 'config.json'}: {error}") from None
        votes = TrainedVotes.load(folder) if "votes" in config else None
        return cls(hasher, images, texts, config["method"], votes, folder)

    def save_pretrained(self, folder: str | Path) -> None:
        """What `from_pretrained` reads, with a model card made from the run's report."""
        from transhash.model.hub import save_with_model_card

        save_with_model_card(self, Path(folder))

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str = "cpu",
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Encoder:
        """The encoder in that folder, or of that name on the Hugging Face Hub."""
        from transhash.model.hub import fetch

        return cls.load(fetch(name, revision, token, cache_dir, local_files_only), device)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        commit_message: str = "Add a transhash encoder",
    ) -> str:
        """Upload what `save_pretrained` writes; returns the address of the commit."""
        from transhash.model.hub import upload

        return upload(self, name, private, token, branch, commit_message)


def load(folder: str | Path, device: str = "cpu") -> Encoder | Hasher:
    """What was saved there: the Encoder of a run, or a hasher alone."""
    folder = Path(folder)
    config = read_config(folder, hasher_alone=True)
    if config["format"] != HASHER_FORMAT:
        return Encoder.load(folder, device)
    check_files(folder, config)
    return read_hasher(folder, config, device)


def _read_images(folder: Path, config: dict[str, Any], device: str) -> ImageFeatures:
    """The image features of a run, with its own backbone where that was fine-tuned."""
    named = config["image_features"]
    if named_library(named):
        found = PretrainedFeatures(named, device)
        check_same_model(found, config.get("image_model"), folder)
        return found
    base = image_features(named.removesuffix(FINE_TUNED_SUFFIX), device)
    if not named.endswith(FINE_TUNED_SUFFIX):
        return base
    if not isinstance(base, Backbone):
        raise DataError(f"{base.name} is no backbone that can be fine-tuned; fit it anew")
    return FineTunedFeatures.load(folder, base)


def extract_readable(
    features: ImageFeatures | None, images: Images, track: Track = no_progress
) -> tuple[npt.NDArray[np.generic], Images, list[Problem]]:
    """Feature rows of the readable images, those images, and the problems of the others."""
    if images.features is not None:
        return images.features, images, []
    rows, bad = extract_all(_need(features), images.items, track)
    return rows, *_readable(images, bad)


def _readable(images: Images, bad: Sequence[tuple[int, str]]) -> tuple[Images, list[Problem]]:
    """The images without the bad ones; refused where that leaves none."""
    problems = [Problem(images.describe(i), images.ids[i], reason) for i, reason in bad]
    skipped = {i for i, _ in bad}
    kept = images.take([i for i in range(len(images)) if i not in skipped]) if bad else images
    if not len(kept):
        first = f"; first: {problems[0].location}: {problems[0].reason}" if problems else ""
        raise DataError(f"none of the {len(images)} images can be read{first}")
    return kept, problems


def _need(features: ImageFeatures | None) -> ImageFeatures:
    if features is None:
        raise DataError("this model takes precomputed image features; give a .npy, not image files")
    return features


def _coded(parts: Sequence[FeatureBatch], codes: Sequence[Codes], bits: int) -> EncodedBatch:
    packed = [np.zeros((0, bits // 8), np.uint8), *(part.packed for part in codes)]
    return EncodedBatch(
        [i for part in parts for i in part.readable],
        Codes(np.concatenate(packed), bits),
        [digest for part in parts for digest in part.digests],
        [picture for part in parts for picture in part.thumbnails],
        [i for part in parts for i in part.unchanged],
        [one for part in parts for one in part.unreadable],
    )
