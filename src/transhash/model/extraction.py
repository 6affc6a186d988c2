"""From files or Python objects to feature arrays, as `fit` and other libraries take them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Modality, Problem, check_modality
from transhash.data.inputs import to_images, to_texts
from transhash.errors import DataError, check_type
from transhash.features import ALEXNET, LITE0, check_image_features, named_library
from transhash.features.embedders import default_text_features, load_embedder
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import TextFeatures
from transhash.features.words import BagOfWords, WordFeatures
from transhash.model.encoder import Encoder
from transhash.progress import Track, show_progress
from transhash.storage import atomic_file, write_bytes


@dataclass(frozen=True)
class FeatureArray:
    """Features of the readable items, their ids, and the items that were skipped."""

    rows: npt.NDArray[Any]  # (items, features)
    ids: Sequence[str]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, path: str | Path) -> Path:
        """Write the rows to NAME.npy and the ids to NAME.ids.csv; return the path of the latter."""
        path = Path(path)
        if path.suffix != ".npy":
            raise DataError(f"{path} does not end in .npy. Choose a name that does.")
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([["row", "id"], *([row, name] for row, name in enumerate(self.ids))])
        table = path.with_name(f"{path.stem}.ids.csv")
        write_bytes(table, text.getvalue().encode())
        with atomic_file(path) as file:  # last: an array without ids would be of no use
            np.save(file, self.rows, allow_pickle=False)
        return table


def extract_features(
    source: Any,
    modality: Modality = "images",
    *,
    features: str | None = None,
    run: str | Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> FeatureArray:
    """Return one row of features per image or text.

    `source` is whatever `transhash.fit` accepts as images or texts. `features` is a name as for
    `--features`, by default efficientnet-lite0; for texts it is an embedding model, by default
    all-MiniLM-L6-v2. `run` takes the features of a run folder instead, with its fine-tuned
    backbone and its vocabulary. Image features are cached, so an interrupted call resumes.
    """
    modality = check_modality(modality)
    if features is not None and run is not None:
        raise DataError("Features are named twice. Pass either features or run.")
    with show_progress("features", progress) as track:
        if modality == "texts":
            return _extract_texts(source, features, run, device, track)
        network = _image_network(features, run, device)
        rows, images, problems = extract_readable(network, to_images(source), track)
        return FeatureArray(rows, images.ids, [*images.problems, *problems])


def _image_network(
    features: str | None, run: str | Path | None, device: str
) -> ImageFeatures | None:
    if run is not None:
        return Encoder.load(run, device).image_features
    name = LITE0 if features is None else features
    check_image_features(name)
    if name == ALEXNET:
        raise DataError("alexnet reads pixels and has no features of its own. Choose another name.")
    return image_features(name, device)


def _extract_texts(
    source: Any, features: str | None, run: str | Path | None, device: str, track: Track
) -> FeatureArray:
    texts = to_texts(source)
    if texts.features is not None:
        return FeatureArray(texts.features, texts.ids, list(texts.problems))
    if run is not None:
        fitted = Encoder.load(run, device).text_features
        if fitted is None:
            raise DataError(f"{run} was trained on precomputed text features. Pass another run.")
        rows = fitted.transform(texts.items, track)
    else:
        rows = _embed(
            texts.items,
            features if features is not None else default_text_features(),
            device,
            track,
        )
    return FeatureArray(rows, texts.ids, list(texts.problems))


def _embed(texts: Sequence[str], name: str, device: str, track: Track) -> npt.NDArray[np.float32]:
    check_type(name, str, "The name of the features", "a name such as all-MiniLM-L6-v2")
    if name in (WordFeatures.name, BagOfWords.name):
        raise DataError(
            f"The features {name!r} depend on the texts that a run was fitted on. Pass a run, or "
            "the name of an embedding model such as all-MiniLM-L6-v2."
        )
    if named_library(name):
        from transhash.features.pretrained import JointModelTextFeatures

        joint: TextFeatures = JointModelTextFeatures(name, device)
        return joint.transform(texts, track)
    return load_embedder(name, device).embed(texts, track)
