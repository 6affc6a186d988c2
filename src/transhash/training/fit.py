"""From files to a run folder: read, extract features, fit, save, and report what happened."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import default_bits
from transhash.data.collection import AuxiliaryCollection, Images, Problem, Texts
from transhash.data.feedback import add_votes, drop_votes, is_feedback_file, read_votes
from transhash.data.inputs import to_auxiliary, to_images, to_texts, to_votes
from transhash.data.manifest import (
    manifest_images,
    manifest_texts,
    read_images,
    read_manifest,
    read_texts,
    read_triples,
)
from transhash.data.training_set import AuxiliarySet, TrainingSet
from transhash.errors import DataError
from transhash.features.images import ImageFeatures, image_features
from transhash.features.texts import TextFeatures, default_text_features, text_features
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.thn import THN
from transhash.hashers.tuning import Trial, tune
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.model.encoder import Encoder, extract_readable
from transhash.model.files import TrainedVotes, check_votes_allowed
from transhash.progress import Track, no_progress
from transhash.search.engine import SearchEngine
from transhash.storage import WriterLock, write_json
from transhash.training.fine_tune import (
    FineTuningRequest,
    TrainingImages,
    delete_backbone,
    fine_tune_run,
    tuning_request,
)
from transhash.training.report import alignment_map, build_report
from transhash.training.validation import (
    VALIDATION_FOLDER,
    ValidationSplit,
    baseline_advice,
    coverage_summary,
    measure_coverage,
    score_validation,
    validate,
    validation_summary,
)

MAX_TARGET_ITEMS = 2000  # unlabelled items used for alignment; the paper takes 500


@dataclass
class InputPaths:
    """Where a user's data lie; each is a path that `data.manifest` reads."""

    auxiliary: Path | None = None  # rows with image and text
    auxiliary_images: Path | None = None  # or the two apart
    auxiliary_texts: Path | None = None
    relation: Path | None = None  # triples image id, text id, 0/1; or votes (data.votes)
    images: Path | None = None  # target, unlabelled
    texts: Path | None = None


@dataclass
class FitData:
    """What was read: the bridge, the unlabelled target items and every skipped row."""

    auxiliary: AuxiliaryCollection
    images: Images | None
    texts: Texts | None
    problems: list[Problem] = field(default_factory=list)


def read_fit_data(sources: InputPaths) -> FitData:
    """Collections and relation of the given files; target labels are dropped on the way in."""
    triples = votes = problems = None
    if sources.relation is not None and is_feedback_file(sources.relation):
        votes, problems = read_votes(sources.relation)
    elif sources.relation is not None:
        triples, problems = read_triples(sources.relation)
    if sources.auxiliary is not None:
        manifest = read_manifest(sources.auxiliary)
        labelled = triples is None
        images = manifest_images(manifest, labelled=labelled)
        texts = manifest_texts(manifest, labelled=labelled)
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
    auxiliary = AuxiliaryCollection.from_collections(images, texts, triples)
    return FitData(
        auxiliary if votes is None else add_votes(auxiliary, votes),
        None if target_images is None else target_images.without_labels(),
        None if target_texts is None else target_texts.without_labels(),
        list(dict.fromkeys(found)),
    )


@dataclass(frozen=True)
class RawTexts:
    """The words themselves, where texts are no features: captions, and the target's texts."""

    captions: Sequence[str] | None = None
    texts: Sequence[str] | None = None


_NOTHING = RawTexts()


def fit_files(
    hasher: Hasher,
    method: str,
    material: FitData,
    out: Path,
    features: ImageFeatures | None,
    *,
    texts: str | None = None,
    device: str = "cpu",
    trials: int = 0,
    verdict: bool = True,
    tuning: FineTuningRequest | None = None,
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> tuple[Encoder, dict[str, Any]]:
    """Learn from a user's files and write the run folder; returns encoder and report.

    `texts` names text features, as `--text-features` does (None: words, with all-MiniLM-L6-v2
    where its wheel is installed); `device` is where they are computed. With `verdict` the report
    says how well held-out captions find their pictures, which takes a second training, and what
    the auxiliary data have to do with the target. With `tuning` the backbone of the image features
    is fine-tuned first.
    """
    check_world(hasher, trials, world)
    votes = TrainedVotes.of(material.auxiliary)
    if votes is not None:
        learners = {method: hasher, **({tuning.method: tuning.teacher} if tuning else {})}
        target = material.images is not None or material.texts is not None
        check_votes_allowed(learners, target=target, trials=trials)
    with _exclusive(out, world):
        words = None
        if material.auxiliary.texts.features is None:  # first: a missing model is told at once
            words = text_features(texts or default_text_features(), device)
        training, features, problems, said, pictures = _prepare(
            hasher, material, features, words, track, world
        )
        frozen = training
        if tuning is not None:
            training, features = fine_tune_run(
                tuning, training, pictures, features, out, track, world
            )
        return _fit(
            hasher, method, training, out, features, words, said=said, frozen=frozen, votes=votes,
            trials=trials, verdict=verdict, problems=problems, track=track, world=world,
        )  # fmt: skip


def _prepare(
    hasher: Hasher,
    material: FitData,
    features: ImageFeatures | None,
    words: TextFeatures | None,
    track: Track,
    world: World,
) -> tuple[TrainingSet, ImageFeatures | None, list[Problem], RawTexts, TrainingImages]:
    """What to learn from, what makes rows of images, what was skipped, words and pictures."""
    auxiliary, problems = material.auxiliary, list(material.problems)
    if auxiliary.images.features is not None:
        features = None  # the model will take precomputed features, and says so when asked
    rng = np.random.default_rng(hasher.seed)
    x, kept, bad = world.local_main_process_first(
        lambda: extract_readable(features, auxiliary.images, track)
    )
    problems += bad
    relation = auxiliary.relation
    if len(kept) != len(auxiliary.images):
        rows = np.flatnonzero(np.isin(auxiliary.images.ids, kept.ids))
        relation = relation.subset(rows, np.arange(len(auxiliary.texts)))
    target_x = seen = None
    if material.images is not None:
        some = _some(material.images, rng)
        target_x, seen, bad = world.local_main_process_first(
            lambda: extract_readable(features, some, track)
        )
        problems += bad
    target = None if material.texts is None else _some(material.texts, rng)
    if words is not None:
        also = [target.items] if hasher.uses_target and target is not None else []
        words.fit(auxiliary.texts.items, *also)
    training = TrainingSet(
        x,
        _text(words, auxiliary.texts),
        relation,
        target_x,
        None if target is None else _text(words, target),
    )
    said = RawTexts()
    if words is not None and target is not None:
        said = RawTexts(auxiliary.texts.items, target.items)
    return training, features, problems, said, TrainingImages(kept, seen)


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
    words: TextFeatures | None,
    *,
    held_out: AuxiliarySet | None = None,
    trials: int = 0,
    verdict: bool = True,
    tuning: FineTuningRequest | None = None,
    pictures: TrainingImages | None = None,
    problems: Sequence[Problem] = (),
    track: Track = no_progress,
    world: World = SINGLE_PROCESS,
) -> tuple[Encoder, dict[str, Any]]:
    """Fit (after choosing settings on held-out auxiliary data, if `trials`) and save the run.

    `held_out` are auxiliary items outside of `training`: they also ask for the verdict, which then
    needs no second training. `tuning` needs the `pictures` of both.
    """
    check_world(hasher, trials, world)
    with _exclusive(out, world):
        if tuning is not None and pictures is not None:
            training, features = fine_tune_run(
                tuning, training, pictures, features, out, track, world
            )
            if held_out is not None:
                held_out = pictures.held_out_as_read(held_out, features, track, world)
        return _fit(
            hasher, method, training, out, features, words,
            held_out=held_out, trials=trials, verdict=verdict, problems=problems, track=track,
            world=world,
        )  # fmt: skip


@contextmanager
def _exclusive(out: Path, world: World) -> Iterator[None]:
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
    words: TextFeatures | None,
    *,
    said: RawTexts = _NOTHING,
    frozen: TrainingSet | None = None,
    votes: TrainedVotes | None = None,
    held_out: AuxiliarySet | None = None,
    trials: int,
    verdict: bool,
    problems: Sequence[Problem],
    track: Track,
    world: World,
) -> tuple[Encoder, dict[str, Any]]:
    done: list[Trial] = []
    start = time.perf_counter()
    if trials:
        hasher, done = tune(hasher, training, held_out, trials=trials, track=track)
    seconds = time.perf_counter() - start
    judged = None
    if verdict and held_out is None:  # first: killed in it or after it, a fit goes on from there
        # On frozen features: a fine-tuned backbone has seen the captions that are held out.
        bridge = drop_votes(frozen or training)
        judged = validate(hasher, bridge, out / VALIDATION_FOLDER, _learn, track, world)
    try:
        if not trials:
            start = time.perf_counter()
            _learn(hasher, training, out, track, world)
            seconds = time.perf_counter() - start
    except DataError:
        shutil.rmtree(out / VALIDATION_FOLDER, ignore_errors=True)  # nothing goes on from there
        raise
    encoder = Encoder(hasher, features, words, method, votes)
    report = build_report(encoder, training, seconds, problems, done)
    if verdict:
        if held_out is not None and held_out.relation.positives:
            judged = score_validation(ValidationSplit.of(training, held_out), hasher, track)
        report["verdict"] = _validation_report(method, hasher, drop_votes(training), judged, said)
    if world.rank == 0:
        write_json(out / "report.json", report)
        write_json(out / "diagnostics.json", alignment_map(hasher, training))
        encoder.save(out)  # last: a folder with a model has all of the run
        shutil.rmtree(out / VALIDATION_FOLDER, ignore_errors=True)
        delete_backbone(out)  # it has its own now
    return encoder, report


def _learn(
    hasher: Hasher, training: TrainingSet, folder: Path, track: Track, world: World
) -> Hasher:
    if isinstance(hasher, THN):
        return hasher.fit(training, folder=folder, track=track, world=world)
    return hasher.fit(training, folder=folder, track=track)


def _validation_report(
    method: str,
    hasher: Hasher,
    training: TrainingSet,
    judged: dict[str, Any] | None,
    said: RawTexts,
) -> dict[str, Any]:
    """Numbers, what they say in sentences, and warnings."""
    captions = None if said.captions is None else said.captions[: len(training.texts)]
    covered = measure_coverage(training, captions, said.texts)
    sentences, warnings = coverage_summary(covered)
    if judged is not None:
        target = training.target_images is not None and training.target_texts is not None
        told = baseline_advice(judged, covered, method, hasher.uses_target and target)
        sentences = [validation_summary(judged), *([told] if told else []), *sentences]
    return {"held_out": judged, "coverage": covered, "said": sentences, "warnings": warnings}


def _some(collection: Any, rng: np.random.Generator) -> Any:
    """At most TARGET_LIMIT items, drawn evenly: more cost time and align no better."""
    if len(collection) <= MAX_TARGET_ITEMS:
        return collection
    return collection.take(np.sort(rng.permutation(len(collection))[:MAX_TARGET_ITEMS]))


def _text(words: TextFeatures | None, texts: Texts) -> npt.NDArray[np.float32]:
    if texts.features is not None:
        return texts.features
    if words is None:
        raise DataError("auxiliary texts are features but target texts are words; give one kind")
    return words.transform(texts.items)


# fit: from what a person holds in Python to an engine that can be asked.


def fit(
    pairs: Any,
    images: Any = None,
    texts: Any = None,
    *,
    votes: Any = None,
    out: str | Path | None = None,
    method: str = "THN",
    bits: int | None = None,
    seed: int = 0,
    features: str = "efficientnet-lite0",
    text_features: str | None = None,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    verdict: bool = False,
    fine_tune: Mapping[str, Any] | None = None,
    track: Track = no_progress,
) -> SearchEngine:
    """Learn from `pairs`, index `images` and `texts`, and return the engine that searches them.

    `pairs` is the bridge: a file, a frame or data set with columns image and text (and labels), or
    a list of (image, text). `images` and `texts`, which nobody paired, are folders, files, lists,
    frames, data sets or feature rows; images in memory may be bytes, PIL images or arrays.
    `votes` on results are further auxiliary items: a file that `transhash feedback` wrote, or a
    list of (image, text, 0 or 1).
    Without `out` the run folder is a temporary one, gone when the engine is closed. With `verdict`
    its report.json tells how well held-out captions find their pictures; that takes as long again.
    With `fine_tune`, settings of it or {}, the image backbone is trained, too.
    """
    if images is None and texts is None:
        raise DataError("give images, texts or both: what is to be searched")
    name = find_method(method).name
    bits = default_bits(name) if bits is None else bits
    hasher = make_hasher(name, **{"bits": bits, "seed": seed, **(settings or {})})
    pictures = None if images is None else to_images(images)
    words = None if texts is None else to_texts(texts)
    auxiliary = to_auxiliary(pairs)
    if votes is not None:
        auxiliary = add_votes(auxiliary, to_votes(votes))
    parts = [part for part in (auxiliary.images, auxiliary.texts, pictures, words) if part]
    material = FitData(
        auxiliary,
        None if pictures is None else pictures.without_labels(),
        None if words is None else words.without_labels(),
        list(dict.fromkeys(problem for part in parts for problem in part.problems)),
    )
    temporary = TemporaryDirectory(prefix="transhash-") if out is None else None
    folder = Path(temporary.name if temporary else out or "")
    extractor = image_features(features, device)
    tuning = None if fine_tune is None else tuning_request(hasher, name, fine_tune)
    fit_files(
        hasher, name, material, folder, extractor,
        texts=text_features, device=device, verdict=verdict, tuning=tuning, track=track,
    )  # fmt: skip
    engine = SearchEngine.open(folder, writable=True)
    engine.temporary = temporary
    if pictures is not None:
        engine.add_images(pictures, track)
    if words is not None:
        engine.add_texts(words, track)
    return engine
