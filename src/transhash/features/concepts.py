"""Built-in concepts: what an ImageNet classifier knows, as pairs of an image vector and a text.

The classifier layer of an image network has one weight vector per class, in the space of the image
features. With the names and definitions of the classes in WordNet, these are 1,000 pairs that need
no image. A group of classes (dog, vehicle) gets the mean direction of its members. concepts.json
and concept_statistics.safetensors are written by benchmarks/make_concepts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from transhash.data.relation import SparseRelation
from transhash.data.training_set import AuxiliarySet, Features
from transhash.errors import DataError
from transhash.features.efficientnet import lite_classifier
from transhash.features.images import EfficientNetLite0, ImageFeatures, unit_rows
from transhash.features.pretrained import PretrainedFeatures
from transhash.storage import read_json, read_tensors

_FILE = Path(__file__).with_name("concepts.json")
_STATISTICS = Path(__file__).with_name("concept_statistics.safetensors")
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ImageStatistics:
    """Mean of image features, and mean distance from it."""

    mean: npt.NDArray[np.float64]
    distance: float

    @classmethod
    def from_features(cls, images: Features) -> ImageStatistics:
        mean = np.asarray(images.mean(axis=0, dtype=np.float64))
        return cls(mean, float(np.linalg.norm(images - mean, axis=1).mean()))

    @classmethod
    def from_photographs(cls, features: ImageFeatures | None) -> ImageStatistics:
        """Return those of ordinary photographs, which the package has for two networks."""
        name = None if features is None else features.name
        tensors = read_tensors(_STATISTICS)
        if f"{name}.mean" not in tensors:
            raise DataError(
                f"With {name} the built-in concepts need some of your images. Pass --images as "
                "well, or use --features efficientnet-lite0."
            )
        mean = tensors[f"{name}.mean"].astype(np.float64)
        return cls(mean, float(tensors[f"{name}.distance"][0]))


@dataclass(frozen=True)
class Concepts:
    """Concepts and the classes that each of them covers: one, or all members of a group."""

    names: list[list[str]]  # synonyms, the most common first
    definitions: list[str]
    members: sp.csr_array  # (concepts, classes), rows sum to 1

    def __len__(self) -> int:
        return len(self.names)

    @property
    def texts(self) -> list[str]:
        """Return "names: definition" of each concept."""
        return [
            f"{', '.join(names)}: {definition}"
            for names, definition in zip(self.names, self.definitions, strict=True)
        ]

    def image_vectors(self, class_weights: _Floats, images: ImageStatistics) -> _Floats:
        """Return one image vector per concept: the direction of its classes, among images.

        Vectors are centered at the mean of the images and as far from it as those are on average.
        Only directions are learned from, but methods that compare both need one scale.
        """
        directions = unit_rows(class_weights - class_weights.mean(axis=0, dtype=np.float64))
        return np.asarray(
            unit_rows(self.members @ directions) * images.distance + images.mean, np.float32
        )

    def pairs(
        self, class_weights: _Floats, images: ImageStatistics, text_features: Features
    ) -> AuxiliarySet:
        """Return the concepts as an auxiliary set, one pair each; see `image_vectors`."""
        vectors = self.image_vectors(class_weights, images)
        return AuxiliarySet(vectors, text_features, SparseRelation(sp.eye_array(len(self)).tocsr()))


def class_weights(features: ImageFeatures | None, concepts: Concepts) -> _Floats | None:
    """Return (classes, dimensions): a linear ImageNet classifier on exactly these features.

    A joint model needs no classifier: its texts of the class names are in the space of its images.
    None: the features have no classifier.
    """
    if isinstance(features, EfficientNetLite0):
        return lite_classifier(features.name)[0]
    if isinstance(features, PretrainedFeatures):
        names = [synonyms[0] for synonyms in concepts.names[: concepts.members.shape[1]]]
        return features.class_weights(names)
    return None


def require_class_weights(features: ImageFeatures | None, concepts: Concepts) -> _Floats:
    weights = class_weights(features, concepts)
    if weights is None:
        name = "Precomputed features" if features is None else f"The image features {features.name}"
        raise DataError(
            f"{name} have no ImageNet classifier, so there are no built-in concepts to learn from. "
            "Pass --auxiliary FILE with columns image and text, or use --features "
            "efficientnet-lite0."
        )
    return weights


@cache
def load_concepts() -> Concepts:
    """Read the concepts of the package: classes first, in the order of the classifier."""
    content: Any = read_json(_FILE)
    classes, groups = content["classes"], content["groups"]
    rows = [[row] for row in range(len(classes))] + [group["members"] for group in groups]
    lengths = [len(members) for members in rows]
    members = sp.csr_array(
        (
            np.repeat(1.0 / np.array(lengths), lengths),
            np.concatenate(rows).astype(np.int64),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        shape=(len(rows), len(classes)),
    )
    return Concepts(
        [entry["names"] for entry in (*classes, *groups)],
        [entry["definition"] for entry in (*classes, *groups)],
        members,
    )
