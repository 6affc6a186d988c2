"""Encoder: the features and the hasher of a run, from an image or a text to its code."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import Collection, Images, Modality, Problem, Texts
from transhash.data.inputs import to_image_source, to_images, to_text_list
from transhash.data.training_set import Features
from transhash.errors import DataError, check_type
from transhash.features import BACKBONE_FILE, FINE_TUNED_SUFFIX, named_library
from transhash.features.backbone import Backbone, FineTunedFeatures
from transhash.features.decode import ImageSummary, Pixels
from transhash.features.decode_processes import decode_isolated
from transhash.features.images import ImageFeatures, ImageSample, image_features
from transhash.features.pretrained import (
    PretrainedFeatures,
    check_same_model,
    external_model_record,
)
from transhash.features.stream import (
    FeatureBatch,
    extract_readable,
    require_image_features,
    split_readable,
    stream_images,
)
from transhash.features.texts import TextFeatures, save_text
from transhash.hashers import Hasher
from transhash.hashers.methods import HASHER_FORMAT
from transhash.model.files import (
    IMAGE_SAMPLE_FILE,
    PRECOMPUTED,
    TRAINED_VOTES_FILE,
    TrainedVotes,
    check_files,
    read_config,
    read_hasher,
    read_text_features,
    require_run,
    write_config,
)
from transhash.progress import Track, no_progress, with_progress
from transhash.storage import content_digest, make_folder
from transhash.threads import single_blas_thread

Projections = npt.NDArray[np.float32]  # (items, bits)
_CHUNK_ROWS = 512  # rows hashed at a time, which bounds memory


class EncodedBatch(NamedTuple):
    """Codes of consecutive items; positions are those in the collection."""

    readable: list[int]
    codes: Codes  # of the readable items
    digests: list[bytes]  # of their contents
    summaries: list[ImageSummary | None]
    unchanged: list[int]  # positions for which `is_unchanged` was true
    unreadable: list[tuple[int, str]]  # with the reason


@dataclass
class Encoder:
    """Features and hasher of a run. Features are None if they were precomputed."""

    hasher: Hasher
    image_features: ImageFeatures | None
    text_features: TextFeatures | None
    method: str = "THN"
    votes: TrainedVotes | None = None
    folder: Path | None = None  # that it was loaded from
    trial_queries: Mapping[Modality, Codes] = field(default_factory=dict)  # typical codes of each
    image_sample: ImageSample | None = None  # of the images that it was trained on

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
        summaries: bool = False,
        is_unchanged: Callable[[int, bytes], bool] | None = None,
        track: Track = no_progress,
        description: str = "",
        start: int = 0,
    ) -> Iterator[EncodedBatch]:
        """Encode all items in order, `size` at a time.

        Options are those of `stream_images`. The progress bar begins at `start`.
        """
        description = description or f"encoding {modality}"
        batches = self._features(items, modality, size, cache, workers, summaries, is_unchanged)
        tracked = with_progress(batches, track, description, start + len(items), start)
        hash_rows = self.hasher.encode_images if modality == "images" else self.hasher.encode_texts
        # Hashing has one core while other threads compute features: more BLAS threads would wait.
        from_files = modality == "images" and items.features is None
        limits = single_blas_thread() if from_files else nullcontext()
        with limits, ThreadPoolExecutor(1) as executor, closing(batches):
            parts: list[FeatureBatch] = []
            codes: list[Future[Codes]] = []
            rows: list[npt.NDArray[Any]] = []
            count, end = 0, size
            for batch in tracked:
                while len(batch):
                    part, batch = batch.cut(end)
                    count += len(part)
                    parts.append(replace(part, vectors=part.vectors[:0]))
                    if part.readable:
                        rows.append(part.vectors)
                    is_last = count in (end, len(items))
                    if rows and (is_last or sum(map(len, rows)) >= _CHUNK_ROWS):
                        codes.append(executor.submit(hash_rows, np.concatenate(rows)))
                        rows = []
                    if is_last:
                        yield _join(parts, [future.result() for future in codes], self.bits)
                        parts, codes, end = [], [], end + size

    def encode_images(
        self, images: Any, track: Track = no_progress
    ) -> tuple[Codes, Images, list[Problem]]:
        """Return codes of the readable images, those images, and the problems of the others."""
        images = to_images(images)
        batches = list(self.encode_batches(images, "images", _CHUNK_ROWS, track=track))
        unreadable = [pair for batch in batches for pair in batch.unreadable]
        readable, problems = split_readable(images, unreadable)
        return Codes.concatenate(batch.codes for batch in batches), readable, problems

    def encode_texts(self, texts: Texts | Sequence[str], track: Track = no_progress) -> Codes:
        """Return one code per text."""
        return Codes.from_projections(self.project_texts(texts, track))

    def encode_image(self, source: Any) -> Codes:
        """Encode one image: a path, the bytes of a file, a PIL image or an array of pixels."""
        return Codes.from_projections(self.project_image(source))

    def project_images(
        self, images: Any, track: Track = no_progress
    ) -> tuple[Projections, Images, list[Problem]]:
        """Return the projections whose signs are the codes of `encode_images`."""
        images = to_images(images)
        rows, readable, problems = extract_readable(self.image_features, images, track)
        chunks = [
            self.hasher.project_images(rows[start : start + _CHUNK_ROWS])
            for start in range(0, len(rows), _CHUNK_ROWS)
        ]
        return np.concatenate(chunks), readable, problems

    def project_texts(
        self, texts: Texts | Sequence[str], track: Track = no_progress
    ) -> Projections:
        """Return the projections whose signs are the codes of `encode_texts`."""
        if isinstance(texts, Collection):
            if texts.features is not None:
                return self.hasher.project_texts(texts.features)
            texts = texts.items
        rows = self._require_text_features().transform(to_text_list(texts), track)
        return self.hasher.project_texts(rows)

    def project_image(self, source: Any) -> Projections:
        """Return the projection whose signs are the code of `encode_image`."""
        return self.hasher.project_images(self.extract_image(source))

    def extract_image(self, source: Any) -> Features:
        """Return the features of one image, (1, dimensions)."""
        features = require_image_features(self.image_features)
        source = to_image_source(source)
        pixels = decode_isolated(source, features.size)
        if isinstance(pixels, str):
            name = "The image" if isinstance(source, bytes) else str(source)
            raise DataError(f"{name} cannot be used: {pixels}. Choose another image.")
        return self.extract_pixels(pixels)

    def extract_pixels(self, pixels: Pixels) -> Features:
        """Return the features of an image that is decoded already, (size, size, 3)."""
        return require_image_features(self.image_features).extract(pixels[None])

    def project_pixels(self, pixels: Pixels) -> Projections:
        """Return the projection of an image that is decoded already."""
        return self.hasher.project_images(self.extract_pixels(pixels))

    def is_unknown_image(self, features: Features) -> bool | None:
        """Return whether an image is far from all that it was trained on; None: it cannot tell."""
        return None if self.image_sample is None else self.image_sample.is_unknown(features)

    def _features(
        self,
        items: Collection[Any],
        modality: Modality,
        size: int,
        cache: bool,
        workers: int | None,
        summaries: bool,
        is_unchanged: Callable[[int, bytes], bool] | None,
    ) -> Generator[FeatureBatch, None, None]:
        if modality == "images" and items.features is None:
            yield from stream_images(
                require_image_features(self.image_features), items.items,
                cache=cache, workers=workers, summaries=summaries, is_unchanged=is_unchanged,
            )  # fmt: skip
            return
        step = min(size, _CHUNK_ROWS)
        for start in range(0, len(items), step):
            readable, digests, unchanged = [], [], []
            for i in range(start, min(start + step, len(items))):
                if items.features is not None:
                    digest = content_digest(items.features[i].tobytes())
                else:
                    digest = content_digest(items.items[i].encode("utf-8", "replace"))
                if is_unchanged is not None and is_unchanged(i, digest):
                    unchanged.append(i)
                else:
                    readable.append(i)
                    digests.append(digest)
            if items.features is not None:
                vectors = items.features[readable]
            elif readable:
                texts = [items.items[i] for i in readable]
                vectors = self._require_text_features().transform(texts)
            else:
                vectors = np.empty((0, 0), np.float32)
            yield FeatureBatch(readable, vectors, digests, [None] * len(readable), unchanged, [])

    def _require_text_features(self) -> TextFeatures:
        if self.text_features is None:
            raise DataError("This model needs precomputed text features. Pass a .npy file.")
        return self.text_features

    def save(self, folder: str | Path) -> None:
        """Write config.json, hasher.safetensors and the files of the features."""
        check_type(folder, (str, os.PathLike), "The folder", "a path")
        folder = Path(folder)
        make_folder(folder)
        self.hasher.save_state(folder)
        images = self.image_features
        if isinstance(images, FineTunedFeatures):
            images.save(folder)
        else:
            (folder / BACKBONE_FILE).unlink(missing_ok=True)  # of an earlier run
        texts: dict[str, Any] = {"text_features": PRECOMPUTED}
        if self.text_features is not None:
            texts = save_text(self.text_features, folder)
        if self.image_sample is None:
            (folder / IMAGE_SAMPLE_FILE).unlink(missing_ok=True)
        else:
            self.image_sample.save(folder / IMAGE_SAMPLE_FILE)
        if self.votes is None:
            (folder / TRAINED_VOTES_FILE).unlink(missing_ok=True)
        else:
            self.votes.save(folder)
        # Written last: a folder with a config.json is complete.
        write_config(
            folder,
            {
                "method": self.method,
                "settings": self.hasher.settings(),
                "image_features": images.name if images else PRECOMPUTED,
                **external_model_record("image_model", images),
                **texts,
                **({"votes": self.votes.counts} if self.votes else {}),
                "trial_queries": {
                    modality: codes.packed.tobytes().hex()
                    for modality, codes in self.trial_queries.items()
                },
            },
        )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Encoder:
        """Load the encoder of a run folder."""
        folder = require_run(folder)
        config = read_config(folder)
        check_files(folder, config)
        return cls.from_config(folder, config, device)

    @classmethod
    def from_config(
        cls,
        folder: Path,
        config: dict[str, Any],
        device: str = "cpu",
        text_features: TextFeatures | None = None,
    ) -> Encoder:
        """Load the encoder of a folder whose files have been checked, or share text features."""
        hasher = read_hasher(folder, config, device)
        texts, images = text_features, None
        if texts is None and config["text_features"] != PRECOMPUTED:
            texts = read_text_features(folder, config, hasher.project_texts, device)
        if config["image_features"] != PRECOMPUTED:
            try:
                images = _read_images(folder, config, device)
            except DataError as error:
                raise DataError(f"{folder / 'config.json'}: {error}") from None
        votes = TrainedVotes.load(folder) if "votes" in config else None
        trials: dict[Modality, Codes] = {}
        for modality, digits in config.get("trial_queries", {}).items():
            packed = np.frombuffer(bytes.fromhex(digits), np.uint8)
            trials[modality] = Codes(packed.reshape(-1, hasher.bits // 8), hasher.bits)
        sample = None
        if IMAGE_SAMPLE_FILE in config["files"]:
            sample = ImageSample.load(folder / IMAGE_SAMPLE_FILE)
        return cls(hasher, images, texts, config["method"], votes, folder, trials, sample)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder with a model card, for `from_pretrained`."""
        from transhash.model.hub import save_with_model_card

        save_with_model_card(self, Path(folder))

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, device: str = "cpu", **download_options: Any
    ) -> Encoder:
        """Load an encoder from a folder or from the Hugging Face Hub.

        Options are those of `huggingface_hub.snapshot_download`, such as `revision` and `token`.
        """
        from transhash.model.hub import fetch

        return cls.load(fetch(name, **download_options), device)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        commit_message: str = "Add a transhash encoder",
    ) -> str:
        """Upload the encoder with a model card and return the URL of the commit."""
        from transhash.model.hub import upload

        return upload(self, name, private, token, branch, commit_message)


def load(folder: str | Path, device: str = "cpu") -> Encoder | Hasher:
    """Load the encoder of a run folder, or a hasher that was saved alone."""
    folder = require_run(folder)
    config = read_config(folder, hasher_only=True)
    check_files(folder, config)
    if config["format"] == HASHER_FORMAT:
        return read_hasher(folder, config, device)
    return Encoder.from_config(folder, config, device)


def _read_images(folder: Path, config: dict[str, Any], device: str) -> ImageFeatures:
    """Load the image features of a run, with its fine-tuned backbone if it has one."""
    name = config["image_features"]
    if named_library(name):
        features = PretrainedFeatures(name, device)
        check_same_model(features, config.get("image_model"), folder)
        return features
    base = image_features(name.removesuffix(FINE_TUNED_SUFFIX), device)
    if not name.endswith(FINE_TUNED_SUFFIX):
        return base
    if not isinstance(base, Backbone):
        raise DataError(f"{base.name} cannot be fine-tuned. Refit the run.")
    return FineTunedFeatures.load(folder, base)


def _join(parts: Sequence[FeatureBatch], codes: Sequence[Codes], bits: int) -> EncodedBatch:
    packed = [np.zeros((0, bits // 8), np.uint8), *(chunk.packed for chunk in codes)]
    return EncodedBatch(
        [i for part in parts for i in part.readable],
        Codes(np.concatenate(packed), bits),
        [digest for part in parts for digest in part.digests],
        [summary for part in parts for summary in part.summaries],
        [i for part in parts for i in part.unchanged],
        [pair for part in parts for pair in part.unreadable],
    )
