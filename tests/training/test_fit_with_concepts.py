"""Fitting on the built-in concepts, alone or beside an auxiliary set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import transhash
from transhash.cli import load_commands
from transhash.data.feedback import UnionRelation
from transhash.data.relation import SparseRelation
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError
from transhash.features.images import EfficientNetLite0
from transhash.hashers import make_hasher
from transhash.model.encoder import Encoder
from transhash.storage import read_json
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data
from transhash.training.validation import covers_better

TEXTS = [f"note {i} about a {name}" for i in range(4) for name in ("dog", "bus", "lemon")]


def noise(count: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (16, 16, 3), np.uint8) for _ in range(count)]


def run_fit(out: Path, **inputs: Any) -> Fit:
    use_concepts = inputs.pop("use_concepts", True)
    fit = Fit(
        make_hasher("QCH", bits=16), "QCH", out, EfficientNetLite0(), "words",
        validate=False, use_concepts=use_concepts,
    )  # fmt: skip
    return fit.run_files(read_fit_data(**inputs))


def test_images_and_texts_without_pairs_are_searchable(tmp_path: Path) -> None:
    images = [Image.fromarray(pixels) for pixels in noise(6, 0)]
    with transhash.fit(
        images=images, texts=TEXTS, out=tmp_path / "run", method="CVH", bits=16,
        text_features="words",
    ) as engine:  # fmt: skip
        assert len(engine.similar_to_text("a golden retriever", k=6)) == 6
        assert len(engine.similar_to_image(images[0], k=12)) == 12
        assert engine.query_encoder.text_features.unknown_words("retriever xqz") == ["xqz"]
    auxiliary = read_json(tmp_path / "run" / "report.json")["auxiliary"]
    assert (auxiliary["images"], auxiliary["texts"], auxiliary["concepts"]) == (0, 0, 1387)


def test_images_alone_are_enough(tmp_path: Path) -> None:
    training = run_fit(tmp_path / "run", images=noise(6, 0)).training
    assert training.target_texts is None
    assert training.images.shape == (1387, 1280)
    assert training.target_images is not None
    mean = training.target_images.mean(axis=0)
    assert abs(training.images.mean(axis=0) - mean).max() < 0.1 * np.linalg.norm(mean)


def test_an_auxiliary_set_and_concepts_are_learned_from_together(tmp_path: Path) -> None:
    pairs = list(zip(noise(4, 1), ["a red dog", "a bus", "a dog", "lemons"]))
    fit = run_fit(tmp_path / "run", auxiliary=pairs, images=noise(6, 0), texts=TEXTS)
    assert isinstance(fit.training.relation, UnionRelation)
    assert fit.training.relation.first.shape == (4, 4)
    assert len(fit.training.images) == len(fit.training.texts) == 4 + 1387


def test_concepts_can_be_left_out(tmp_path: Path) -> None:
    pairs = list(zip(noise(4, 1), ["a red dog", "a bus", "a dog", "lemons"]))
    fit = run_fit(tmp_path / "run", auxiliary=pairs, images=noise(6, 0), use_concepts=False)
    assert len(fit.training.images) == 4
    with pytest.raises(DataError, match="nothing to learn from"):
        run_fit(tmp_path / "other", images=noise(6, 0), use_concepts=False)


def test_precomputed_features_need_an_auxiliary_set(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).normal(size=(6, 8)))
    with pytest.raises(DataError, match="Precomputed features"):
        run_fit(tmp_path / "run", images=tmp_path / "images.npy")
    pairs = list(zip(noise(4, 1), ["a red dog", "a bus", "a dog", "lemons"]))
    assert run_fit(tmp_path / "pairs", auxiliary=pairs).concepts is not None


def test_fine_tuning_needs_images_with_captions(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Fine-tuning needs images"):
        transhash.fit(images=noise(6, 0), texts=TEXTS, out=tmp_path / "run", fine_tune={})


def test_labels_are_learned_from_alone(tmp_path: Path) -> None:
    rows = [
        {"image": image, "text": f"a {label} {i}", "labels": [label]}
        for i, (image, label) in enumerate(zip(noise(6, 1), 3 * ["dog", "bus"]))
    ]
    fit = run_fit(tmp_path / "run", auxiliary=rows, images=noise(6, 0), texts=TEXTS)
    assert fit.concepts is None
    assert len(fit.training.images) == 6


def sets_of_classes(noise_level: float) -> tuple[TrainingSet, AuxiliarySet]:
    """Return captions like the target, and concepts that are farther from it with more noise."""
    rng = np.random.default_rng(0)
    centers_x, centers_y = rng.normal(size=(2, 8, 20)) * 4

    def draw(level: float) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 8, 200)
        x, y = centers_x[labels], centers_y[labels]
        return (
            (x + level * rng.normal(size=x.shape)).astype(np.float32),
            (y + level * rng.normal(size=y.shape)).astype(np.float32),
        )

    keys = [str(i) for i in range(200)]
    relation = SparseRelation.from_pairs(keys, keys)
    captions = TrainingSet(*draw(1.0), relation, *draw(1.0))
    return captions, AuxiliarySet(*draw(noise_level), relation)


def test_concepts_are_left_out_where_captions_cover_the_target_better() -> None:
    captions, worse = sets_of_classes(20.0)
    assert covers_better(captions, worse)
    target = captions.target_images, captions.target_texts
    same = AuxiliarySet(captions.images, captions.texts, captions.relation)
    far = replace(captions, images=worse.images, texts=worse.texts)
    assert not covers_better(TrainingSet(far.images, far.texts, far.relation, *target), same)
    assert not covers_better(replace(captions, target_images=None, target_texts=None), worse)


def test_concepts_that_are_left_out_leave_nothing_in_the_text_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    things = ["zorp", "quibbet", "flumox", "dradle", "snurf", "wibbly", "grommish", "plonk"]
    colors = rng.integers(0, 256, (len(things), 1, 1, 3))

    def draw(count: int) -> tuple[list[Any], list[str]]:
        images, texts = [], []
        for i in range(count):
            kind = i % len(things)
            noisy = colors[kind] + rng.integers(-30, 31, (16, 16, 3))
            images.append(noisy.clip(0, 255).astype(np.uint8))
            texts.append(f"{things[kind]} number {i} of the {things[kind]} kind")
        return images, texts

    images, captions = draw(96)
    target_images, target_texts = draw(48)
    inputs = {"auxiliary": list(zip(images, captions)), "images": target_images}
    alone, default = (
        run_fit(tmp_path / str(use), **inputs, texts=target_texts, use_concepts=use)
        for use in (False, True)
    )
    assert default.concepts is None
    assert np.array_equal(alone.training.texts, default.training.texts)
    assert alone.training.target_texts is not None
    assert np.array_equal(alone.training.target_texts, default.training.target_texts)
    words = [fit.text_features.word_lists() for fit in (alone, default)]  # type: ignore[union-attr]
    assert words[0] == words[1]


@pytest.mark.parametrize(("given", "rounds"), [({}, 1), ({"matching_rounds": 4}, 4)])
def test_a_number_of_matching_rounds_that_is_given_is_kept(
    tmp_path: Path, given: dict[str, int], rounds: int
) -> None:
    notes = ["a golden retriever", "the school bus", "lemons for sale", "an old violin"]
    with transhash.fit(
        images=noise(6, 0), texts=notes, out=tmp_path / "python", method="CVH+target", bits=16,
        text_features="words", settings=given,
    ) as engine:  # fmt: skip
        assert engine.encoder.hasher.settings()["matching_rounds"] == rounds
    (tmp_path / "notes.txt").write_text("\n".join(notes))
    arguments = ["fit", "cvh+target", "--texts", str(tmp_path / "notes.txt"), "--bits", "16"]
    arguments += ["--text-features", "words", "--no-validate", "--out", str(tmp_path / "run")]
    arguments += [f"--set={name}={value}" for name, value in given.items()]
    result = CliRunner().invoke(load_commands(), arguments)
    assert result.exit_code == 0, result.output
    settings = Encoder.load(tmp_path / "run").hasher.settings()
    assert settings["matching_rounds"] == rounds
