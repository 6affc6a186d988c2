"""From files or Python objects to a run folder: read, extract features, fit, validate and save."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from transhash.codes import default_bits
from transhash.data.collection import AuxiliaryCollection, Collection, Images, Problem, Texts
from transhash.data.feedback import add_votes, drop_votes, is_feedback_file, read_votes
from transhash.data.inputs import to_auxiliary, to_images, to_texts, to_votes
from transhash.data.manifest import read_images, read_texts, read_triples
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError
from transhash.features import check_image_features
from transhash.features.embedders import default_text_features
from transhash.features.images import ImageFeatures, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import TextFeatures, text_features
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.training_loop import fingerprint
from transhash.hashers.tuning import Trial, tune
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.model.encoder import Encoder
from transhash.model.files import TrainedVotes, check_votes_allowed
from transhash.progress import Track, no_progress, phase, report_to, show_progress
from transhash.search.engine import SearchEngine
from transhash.storage import WriterLock, read_json, write_json
from transhash.threads import cpu_count, limit_threads
from transhash.training.fine_tune import (
    FINE_TUNING_FOLDER,
    FineTuningRequest,
    TrainingImages,
    delete_backbone,
    extract_images,
    fine_tune_backbone,
)
from transhash.training.report import alignment_map, build_report
from transhash.training.split_data import SplitData
from transhash.training.validation import (
    ValidationSplit,
    baseline_advice,
    coverage_summary,
    measure_coverage,
    score_validation,
    split_validation,
    validation_summary,
)

MAX_TARGET_ITEMS = 2000  # unlabeled items used for alignment; the paper takes 500
VALIDATION_FOLDER = "validation"  # in the run folder, while validation is not finished


@dataclass
class FitData:
    """Auxiliary set, unlabeled target items and skipped rows, as they were read."""

    auxiliary: AuxiliaryCollection
    images: Images | None
    texts: Texts | None
    problems: list[Problem] = field(default_factory=list)


def read_fit_data(
    auxiliary: Any = None,
    images: Any = None,
    texts: Any = None,
    *,
    auxiliary_images: Path | None = None,
    auxiliary_texts: Path | None = None,
    relation: Path | None = None,
    votes: Any = None,
) -> FitData:
    """Read the inputs of a fit from files or Python objects; labels of target items are dropped.

    `relation` is a file of triples (image id, text id, 0 or 1), or of votes.
    """
    triples = None
    problems: list[Problem] = []
    trained_votes = None if votes is None else to_votes(votes)
    if relation is not None and is_feedback_file(relation):
        trained_votes, problems = read_votes(relation)
    elif relation is not None:
        triples, problems = read_triples(relation)
    if auxiliary is not None:
        pairs = to_auxiliary(auxiliary, triples)
    elif auxiliary_images is not None and auxiliary_texts is not None:
        pairs = AuxiliaryCollection.from_collections(
            read_images(auxiliary_images, labeled=triples is None),
            read_texts(auxiliary_texts, labeled=triples is None),
            triples,
        )
    else:
        raise DataError(
            "No auxiliary set given. Pass --auxiliary FILE with columns image and text."
        )
    target_images = None if images is None else to_images(images)
    target_texts = None if texts is None else to_texts(texts)
    for part in (pairs.images, pairs.texts, target_images, target_texts):
        problems += part.problems if part is not None else ()
    return FitData(
        pairs if trained_votes is None else add_votes(pairs, trained_votes),
        None if target_images is None else target_images.without_labels(),
        None if target_texts is None else target_texts.without_labels(),
        list(dict.fromkeys(problems)),
    )


@dataclass
class Fit:
    """One fit: options, inputs and, after `run_files` or `run_split`, the results.

    `text_features` is a name as for `--text-features`; by default words, with all-MiniLM-L6-v2
    where it is installed. `validate` adds held-out retrieval, which fits a second model, and
    coverage to the report. `fine_tuning` trains the backbone of the image features first.
    """

    hasher: Hasher
    method: str
    out: Path
    image_features: ImageFeatures | None = None
    text_features: str | TextFeatures | None = None
    device: str = "cpu"
    trials: int = 0
    validate: bool = True
    fine_tuning: FineTuningRequest | None = None
    track: Track = no_progress
    world: World = SINGLE_PROCESS

    # Inputs
    training: TrainingSet = field(init=False)
    held_out: AuxiliarySet | None = field(init=False, default=None)  # outside of `training`
    images: TrainingImages | None = field(init=False, default=None)
    captions: Sequence[str] | None = field(init=False, default=None)  # raw auxiliary texts
    target_texts: Sequence[str] | None = field(init=False, default=None)
    votes: TrainedVotes | None = field(init=False, default=None)
    problems: list[Problem] = field(init=False, default_factory=list)

    # Results
    encoder: Encoder = field(init=False)
    report: dict[str, Any] = field(init=False)

    def check_world(self) -> None:
        """Refuse what cannot run in several processes."""
        if self.world.size > 1 and self.trials:
            raise DataError("Tuning runs in one process. Start it without torchrun.")
        self.hasher.check_world(self.world)

    def run_files(self, data: FitData) -> Self:
        """Fit on a user's files."""
        self.check_world()
        self.votes = TrainedVotes.from_auxiliary(data.auxiliary)
        if self.votes is not None:
            learners = {self.method: self.hasher}
            if self.fine_tuning is not None:
                learners[self.fine_tuning.teacher_method] = self.fine_tuning.teacher
            has_target = data.images is not None or data.texts is not None
            check_votes_allowed(learners, target=has_target, trials=self.trials)
        with self._exclusive(), report_to(self.track):
            self._extract_features(data)
            return self._run()

    def run_split(
        self,
        split: SplitData,
        images: TrainingImages | None = None,
        problems: Sequence[Problem] = (),
    ) -> Self:
        """Fit on a benchmark split, whose held-out part serves tuning and validation.

        Fine-tuning needs `images`.
        """
        self.check_world()
        self.training, self.held_out, self.images = split.training, split.held_out, images
        self.text_features, self.problems = split.text_features, list(problems)
        with self._exclusive(), report_to(self.track):
            return self._run()

    def validation_scores(self, training: TrainingSet) -> dict[str, Any]:
        """Fit a second model without a held-out part and score it on that part.

        The scores stay in the validation folder until the run is saved, so that a killed fit
        resumes there. The key `skipped` gives the reason if there are no scores.
        """
        if training.images.ndim > 2:
            return {"skipped": "Training on pixels a second time would take too long."}
        hasher, folder, world = self.hasher, self.out / VALIDATION_FOLDER, self.world
        settings = {name: value for name, value in hasher.settings().items() if name != "device"}
        name = fingerprint(settings, training)
        scores = world.compute_once(lambda: _read_scores(folder / "scores.json", name))
        if scores is not None:
            return scores
        try:
            split = split_validation(training, hasher.seed)
        except DataError as error:
            return {"skipped": str(error)}

        def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
            return self.track(items, f"validation, {description}", total, start)

        try:
            fitted = replace(hasher).fit(split.rest, folder=folder, track=track, world=world)
        except DataError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return {"skipped": f"Training without the held-out part failed. {error}"}
        scores = score_validation(split, fitted, track)
        if world.rank == 0:
            write_json(folder / "scores.json", {"name": name, **scores})
            (folder / "metrics.jsonl").unlink(missing_ok=True)
        return scores

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the run folder; if the fit fails, remove folders that it created and left empty."""
        created = [folder for folder in (self.out, *self.out.parents) if not folder.exists()]
        lock = WriterLock(self.out, "wait for it") if self.world.rank == 0 else None
        try:
            if lock:
                for draft in self.out.glob(".*.draft"):  # of a fit that was killed
                    draft.unlink(missing_ok=True)
            yield
        finally:
            if lock:
                with suppress(OSError):
                    (self.out / "writer.lock").unlink()  # before another process can take it
                lock.release()
                with suppress(OSError):
                    for folder in created:
                        folder.rmdir()

    def _extract_features(self, data: FitData) -> None:
        auxiliary, texts = data.auxiliary, None
        if auxiliary.texts.features is None:  # first: a missing model is reported at once
            name = self.text_features or default_text_features()
            with phase("loading text features"):
                texts = text_features(name, self.device) if isinstance(name, str) else name
        self.text_features = texts
        if auxiliary.images.features is not None:
            self.image_features = None  # the model takes precomputed features
        self.problems = list(data.problems)
        rng = np.random.default_rng(self.hasher.seed)
        x, images = self._extract_images(auxiliary.images)
        relation = auxiliary.relation
        if len(images) != len(auxiliary.images):
            rows = np.flatnonzero(np.isin(auxiliary.images.ids, images.ids))
            relation = relation.subset(rows, np.arange(len(auxiliary.texts)))
        target_x = target_y = target_images = target_texts = None
        if data.images is not None:
            target_x, target_images = self._extract_images(_sample(data.images, rng))
        if data.texts is not None:
            target_texts = _sample(data.texts, rng)
        if texts is not None:
            corpora = [auxiliary.texts.items]
            if target_texts is not None:
                self.captions, self.target_texts = auxiliary.texts.items, target_texts.items
                corpora += [target_texts.items] if self.hasher.uses_target else []
            texts.fit(*corpora, track=self.track)
        y = _transform_texts(texts, auxiliary.texts, self.track)
        if target_texts is not None:
            target_y = _transform_texts(texts, target_texts, self.track)
        self.training = TrainingSet(x, y, relation, target_x, target_y)
        self.images = TrainingImages(images, target_images)

    def _extract_images(self, images: Images) -> tuple[Features, Images]:
        features, readable, problems = self.world.local_main_process_first(
            lambda: extract_readable(self.image_features, images, self.track)
        )
        self.problems += problems
        return features, readable

    def _run(self) -> Self:
        frozen = self.training
        if self.fine_tuning is not None:
            with limit_threads(cpu_count()):
                self._fine_tune(self.fine_tuning)
        with limit_threads(cpu_count() if frozen.images.ndim > 2 else 1):
            return self._fit_and_save(frozen)

    def _fit_and_save(self, frozen: TrainingSet) -> Self:
        trials: list[Trial] = []
        start = time.perf_counter()
        if self.trials:
            self.hasher, trials = tune(
                self.hasher, self.training, self.held_out, trials=self.trials, track=self.track
            )
        seconds = time.perf_counter() - start
        retrieval = None
        if self.validate and self.held_out is None:  # first, so that a killed fit resumes after it
            # On frozen features: a fine-tuned backbone has seen the held-out captions.
            retrieval = self.validation_scores(drop_votes(frozen))
        try:
            if not self.trials:
                start = time.perf_counter()
                self.hasher.fit(self.training, folder=self.out, track=self.track, world=self.world)
                seconds = time.perf_counter() - start
        except DataError:
            shutil.rmtree(self.out / VALIDATION_FOLDER, ignore_errors=True)
            raise
        assert not isinstance(self.text_features, str)
        self.encoder = Encoder(
            self.hasher, self.image_features, self.text_features, self.method, self.votes
        )
        with phase("report"):
            self.report = build_report(self.encoder, self.training, seconds, self.problems, trials)
        if self.validate:
            if self.held_out is not None and self.held_out.relation.positives:
                split = ValidationSplit.from_parts(self.training, self.held_out)
                retrieval = score_validation(split, self.hasher, self.track)
            self.report["validation"] = self._validation_report(retrieval)
        if self.world.rank == 0:
            write_json(self.out / "report.json", self.report)
            with phase("saving"):
                write_json(self.out / "diagnostics.json", alignment_map(self.hasher, self.training))
                self.encoder.save(self.out)  # last: a folder with a model is a complete run
            shutil.rmtree(self.out / VALIDATION_FOLDER, ignore_errors=True)
            delete_backbone(self.out)
        return self

    def _fine_tune(self, request: FineTuningRequest) -> None:
        """Replace all image features by those of the fine-tuned backbone."""
        images, track, world = self.images, self.track, self.world
        assert images is not None
        features = fine_tune_backbone(
            request, self.training, images, self.image_features, self.out / FINE_TUNING_FOLDER,
            track=track, world=world,
        )  # fmt: skip

        def extract(part: Images) -> Features:
            return extract_images(features, part, track, world)

        target = images.target_images
        target_x = None if target is None else extract(target)
        self.training = replace(
            self.training, images=extract(images.images), target_images=target_x
        )
        if self.held_out is not None:
            assert images.held_out is not None
            self.held_out = replace(self.held_out, images=extract(images.held_out))
        self.image_features = features

    def _validation_report(self, retrieval: dict[str, Any] | None) -> dict[str, Any]:
        """Return scores, coverage, their summary in sentences, and warnings."""
        training = drop_votes(self.training)
        captions = None if self.captions is None else self.captions[: len(training.texts)]
        coverage = measure_coverage(training, captions, self.target_texts)
        summary, warnings = coverage_summary(coverage)
        if retrieval is not None:
            has_target = training.target_images is not None and training.target_texts is not None
            transfers = self.hasher.uses_target and has_target
            advice = baseline_advice(retrieval, coverage, self.method, transfers)
            first = [validation_summary(retrieval, self.method), *([advice] if advice else [])]
            summary = [*first, *summary]
        return {
            "retrieval": retrieval, "coverage": coverage, "summary": summary, "warnings": warnings,
        }  # fmt: skip


def _read_scores(path: Path, name: str) -> dict[str, Any] | None:
    """Return the validation scores of a killed fit, if it was the same fit."""
    if not path.exists():
        return None
    try:
        scores = read_json(path)
    except DataError:
        return None
    return scores if isinstance(scores, dict) and scores.pop("name", None) == name else None


def _sample(collection: Collection[Any], rng: np.random.Generator) -> Collection[Any]:
    """Return at most MAX_TARGET_ITEMS random items: more cost time and align no better."""
    if len(collection) <= MAX_TARGET_ITEMS:
        return collection
    return collection.take(np.sort(rng.permutation(len(collection))[:MAX_TARGET_ITEMS]))


def _transform_texts(features: TextFeatures | None, texts: Texts, track: Track) -> Features:
    if texts.features is not None:
        return texts.features
    if features is None:
        raise DataError(
            "Auxiliary texts are features, but target texts are not. Pass both in the same form."
        )
    return features.transform(texts.items, track)


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
    validate: bool = False,
    fine_tune: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> SearchEngine:
    """Train on `pairs`, index `images` and `texts`, and return the engine that searches them.

    `pairs` is the auxiliary set: a file, a data frame or data set with columns image and text (and
    optionally labels), or a list of (image, text). `images` and `texts` are the target items, which
    are not paired: folders, files, lists, data frames, data sets or feature matrices. Images in
    memory may be bytes, PIL images or arrays. `votes` on results are further auxiliary items: a
    file written by `transhash feedback`, or a list of (image, text, 0 or 1).

    Without `out` the run folder is temporary and deleted when the engine is closed. `validate` adds
    retrieval of held-out pairs to report.json and takes as long as the training. `fine_tune` is a
    dictionary of fine-tuning settings, {} for the defaults. `progress` shows bars, or lines every
    ten seconds where standard error is not a terminal; by default only in a terminal or notebook.
    """
    if images is None and texts is None:
        raise DataError("Nothing to search. Pass images, texts or both.")
    check_image_features(features)
    name = find_method(method).name
    bits = default_bits(name) if bits is None else bits
    hasher = make_hasher(name, **{"bits": bits, "seed": seed, **(settings or {})})
    request = None if fine_tune is None else FineTuningRequest.from_hasher(hasher, name, fine_tune)
    with show_progress("fit", progress) as track:
        data = read_fit_data(pairs, images, texts, votes=votes)
        temporary = TemporaryDirectory(prefix="transhash-") if out is None else None
        folder = Path(temporary.name if temporary else out or "")
        Fit(
            hasher, name, folder, image_features(features, device), text_features,
            device=device, validate=validate, fine_tuning=request, track=track,
        ).run_files(data)  # fmt: skip
        engine = SearchEngine.open(folder, writable=True)
        engine.temporary = temporary
        if data.images is not None:
            engine.writer.add_images(data.images, track)
        if data.texts is not None:
            engine.writer.add_texts(data.texts, track)
        return engine
