"""From files to a run folder: read, extract features, fit, save, and report what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import Auxiliary, Images, Problem, Texts
from transhash.data.manifest import (
    images_of,
    read_images,
    read_manifest,
    read_texts,
    read_triples,
    texts_of,
)
from transhash.data.training import Related, TrainingSet
from transhash.errors import DataError
from transhash.features.image import ImageFeatures
from transhash.features.text import BagOfWords
from transhash.hashers import Hasher
from transhash.hashers.thn import THN
from transhash.hashers.tuning import Trial, tune
from transhash.hashers.world import ALONE, World
from transhash.progress import Track, silent
from transhash.runs.encoder import Encoder, image_rows
from transhash.storage import WriterLock, write_json

TARGET_LIMIT = 2000  # unlabelled items used for alignment; the paper takes 500


@dataclass
class Sources:
    """Where a user's data lie; each is a path that `data.manifest` reads."""

    auxiliary: Path | None = None  # rows with image and text
    auxiliary_images: Path | None = None  # or the two apart
    auxiliary_texts: Path | None = None
    relation: Path | None = None  # triples image id, text id, 0/1
    images: Path | None = None  # target, unlabelled
    texts: Path | None = None


@dataclass
class Material:
    """What was read: the bridge, the unlabelled target items and every skipped row."""

    auxiliary: Auxiliary
    images: Images | None
    texts: Texts | None
    problems: list[Problem] = field(default_factory=list)


def read_sources(sources: Sources) -> Material:
    """Collections and relation of the given files; target labels are dropped on the way in."""
    triples = problems = None
    if sources.relation is not None:
        triples, problems = read_triples(sources.relation)
    if sources.auxiliary is not None:
        manifest = read_manifest(sources.auxiliary)
        labelled = triples is None
        images = images_of(manifest, labelled=labelled)
        texts = texts_of(manifest, labelled=labelled)
    elif sources.auxiliary_images is not None and sources.auxiliary_texts is not None:
        images = read_images(sources.auxiliary_images, labelled=triples is None)
        texts = read_texts(sources.auxiliary_texts, labelled=triples is None)
    else:
        raise DataError(
            "no auxiliary data: give --auxiliary FILE with columns image and text, "
            "or --auxiliary-images and --auxiliary-texts"
        )
    target_images = read_images(sources.images) if sources.images is not None else None
    target_texts = read_texts(sources.texts) if sources.texts is not None else None
    found = [*(problems or ())]
    for part in (images, texts, target_images, target_texts):
        found += part.problems if part is not None else ()
    return Material(
        Auxiliary.build(images, texts, triples),
        None if target_images is None else target_images.without_labels(),
        None if target_texts is None else target_texts.without_labels(),
        list(dict.fromkeys(found)),
    )


def fit_files(
    hasher: Hasher,
    method: str,
    material: Material,
    out: Path,
    features: ImageFeatures | None,
    *,
    trials: int = 0,
    track: Track = silent,
    world: World = ALONE,
) -> tuple[Encoder, dict[str, Any]]:
    """Learn from a user's files and write the run folder; returns encoder and report."""
    check_world(hasher, trials, world)
    with _only_fit(out, world):
        training, features, words, problems = _prepare(hasher, material, features, track, world)
        return _fit(
            hasher, method, training, out, features, words,
            trials=trials, problems=problems, track=track, world=world,
        )  # fmt: skip


def _prepare(
    hasher: Hasher,
    material: Material,
    features: ImageFeatures | None,
    track: Track,
    world: World,
) -> tuple[TrainingSet, ImageFeatures | None, BagOfWords | None, list[Problem]]:
    """What to learn from, what made it out of files, and what was skipped."""
    auxiliary, problems = material.auxiliary, list(material.problems)
    if auxiliary.images.features is not None:
        features = None  # the model will take precomputed features, and says so when asked
    rng = np.random.default_rng(hasher.seed)
    x, kept, bad = world.in_turn(lambda: image_rows(features, auxiliary.images, track))
    problems += bad
    relation = auxiliary.relation
    if len(kept) != len(auxiliary.images):
        rows = np.flatnonzero(np.isin(auxiliary.images.ids, kept.ids))
        relation = relation.subset(rows, np.arange(len(auxiliary.texts)))
    target_x = None
    if material.images is not None:
        some = _some(material.images, rng)
        target_x, _, bad = world.in_turn(lambda: image_rows(features, some, track))
        problems += bad
    target = None if material.texts is None else _some(material.texts, rng)
    words = None
    if auxiliary.texts.features is None:
        training_texts = [*auxiliary.texts.items, *(target.items if target is not None else ())]
        words = BagOfWords().fit(training_texts)
    training = TrainingSet(
        x,
        _text(words, auxiliary.texts),
        relation,
        target_x,
        None if target is None else _text(words, target),
    )
    return training, features, words, problems


def check_world(hasher: Hasher, trials: int, world: World) -> None:
    if world.size > 1 and (trials or not isinstance(hasher, THN)):
        what = "tuning" if trials else hasher.name
        raise DataError(f"{what} runs in one process; start it without torchrun")
    if isinstance(hasher, THN):
        hasher.check(world)


def fit_run(
    hasher: Hasher,
    method: str,
    training: TrainingSet,
    out: Path,
    features: ImageFeatures | None,
    words: BagOfWords | None,
    *,
    held_out: Related | None = None,
    trials: int = 0,
    problems: Sequence[Problem] = (),
    track: Track = silent,
    world: World = ALONE,
) -> tuple[Encoder, dict[str, Any]]:
    """Fit (after choosing settings on held-out auxiliary data, if `trials`) and save the run."""
    check_world(hasher, trials, world)
    with _only_fit(out, world):
        return _fit(
            hasher, method, training, out, features, words,
            held_out=held_out, trials=trials, problems=problems, track=track, world=world,
        )  # fmt: skip


@contextmanager
def _only_fit(out: Path, world: World) -> Iterator[None]:
    """No other fit writes to the folder meanwhile; one that was made for nothing goes again."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    lock = WriterLock(out, "wait for it") if world.rank == 0 else None
    try:
        if lock:
            for draft in out.glob(".*.draft"):  # of a fit that was killed
                draft.unlink(missing_ok=True)
        yield
    finally:
        if lock:
            with suppress(OSError):
                (out / "writer.lock").unlink()  # while it is held, so that nobody else's goes
            lock.release()
            with suppress(OSError):
                for folder in made:
                    folder.rmdir()  # if empty


def _fit(
    hasher: Hasher,
    method: str,
    training: TrainingSet,
    out: Path,
    features: ImageFeatures | None,
    words: BagOfWords | None,
    *,
    held_out: Related | None = None,
    trials: int,
    problems: Sequence[Problem],
    track: Track,
    world: World,
) -> tuple[Encoder, dict[str, Any]]:
    done: list[Trial] = []
    start = time.perf_counter()
    if trials:
        hasher, done = tune(hasher, training, held_out, trials=trials, track=track)
    elif isinstance(hasher, THN):
        hasher.fit(training, folder=out, track=track, world=world)
    else:
        hasher.fit(training, folder=out, track=track)
    seconds = time.perf_counter() - start
    encoder = Encoder(hasher, features, words, method)
    report = describe(encoder, training, seconds, problems, done)
    if world.rank == 0:
        write_json(out / "report.json", report)
        write_json(out / "diagnostics.json", alignment_map(hasher, training))
        encoder.save(out)  # last: a folder with a model has all of the run
    return encoder, report


def describe(
    encoder: Encoder,
    training: TrainingSet,
    seconds: float,
    problems: Sequence[Problem] = (),
    trials: Sequence[Trial] = (),
) -> dict[str, Any]:
    """What a run is made of: data, settings, codes, alignment, alarms, skipped rows."""
    hasher = encoder.hasher
    some_x, some_y = training.images[:2000], training.texts[:2000]
    if training.target_images is not None:
        some_x = training.target_images[:2000]
    if training.target_texts is not None:
        some_y = training.target_texts[:2000]
    codes = Codes.concatenate([hasher.encode_images(some_x), hasher.encode_texts(some_y)])
    balance = codes.bit_balance()
    relation = training.relation
    return {
        "method": encoder.method,
        "bits": hasher.bits,
        "settings": hasher.settings(),
        "training_seconds": round(seconds, 2),
        "auxiliary": {
            "images": len(training.images),
            "texts": len(training.texts),
            "related_share": relation.positives / relation.known,
        },
        "target": {
            "images": _count(training.target_images),
            "texts": _count(training.target_texts),
        },
        "codes": {
            "items": len(codes),
            "distinct": codes.distinct(),
            "bit_balance": [round(float(balance.min()), 3), round(float(balance.max()), 3)],
        },
        "alignment": getattr(hasher, "alignment_", None),
        "alarms": getattr(hasher, "alarms_", []),
        "tuning": [
            {"score": round(trial.score, 4), "settings": trial.settings, "seconds": trial.seconds}
            for trial in trials
        ],
        "problem_count": len(problems),
        "problems": [problem._asdict() for problem in problems],
    }


def alignment_map(hasher: Hasher, training: TrainingSet, limit: int = 250) -> dict[str, Any]:
    """2-D positions of auxiliary and target items before and after alignment, for a picture.

    Before: target items pass the auxiliary path. One PCA for all, so that the two compare.
    """
    if training.target_images is None or training.target_texts is None:
        return {}
    x, y = training.images[:limit], training.texts[:limit]
    t_x, t_y = training.target_images[:limit], training.target_texts[:limit]
    own = hasher.held_out_projections(x, y)
    before = hasher.held_out_projections(t_x, t_y)
    after = (hasher.project_images(t_x), hasher.project_texts(t_y))
    parts = [np.tanh(part) for part in (*own, *before, *after)]
    joint = np.concatenate(parts)
    centre = joint.mean(axis=0)
    _, _, axes = np.linalg.svd(joint - centre, full_matrices=False)
    flat = [np.round((part - centre) @ axes[:2].T, 3).tolist() for part in parts]
    names = ("auxiliary_images", "auxiliary_texts")
    return {
        "before": dict(zip((*names, "target_images", "target_texts"), (*flat[:2], *flat[2:4]))),
        "after": dict(zip((*names, "target_images", "target_texts"), (*flat[:2], *flat[4:]))),
    }


def _some(collection: Any, rng: np.random.Generator) -> Any:
    """At most TARGET_LIMIT items, drawn evenly: more cost time and align no better."""
    if len(collection) <= TARGET_LIMIT:
        return collection
    return collection.take(np.sort(rng.permutation(len(collection))[:TARGET_LIMIT]))


def _text(words: BagOfWords | None, texts: Texts) -> npt.NDArray[np.float32]:
    if texts.features is not None:
        return texts.features
    if words is None:
        raise DataError("auxiliary texts are features but target texts are words; give one kind")
    return words.transform(texts.items)


def _count(part: npt.NDArray[Any] | None) -> int:
    return 0 if part is None else len(part)
