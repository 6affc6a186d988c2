"""From files or Python objects to a run folder: read, extract features, fit, validate and save."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes, default_bits
from transhash.data.collection import (
    AuxiliaryCollection,
    Collection,
    Images,
    Modality,
    Problem,
    Texts,
)
from transhash.data.feedback import FeedbackRelation, append_auxiliary, drop_votes
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError, check_type
from transhash.features import check_image_features
from transhash.features.concepts import (
    Concepts,
    ImageStatistics,
    class_weights,
    load_concepts,
    require_class_weights,
)
from transhash.features.embedders import default_text_features
from transhash.features.images import ImageFeatures, ImageSample, image_features
from transhash.features.stream import extract_readable
from transhash.features.texts import TextFeatures, text_features
from transhash.hashers import Hasher, find_method, make_hasher
from transhash.hashers.thn.transfer import MAX_TARGET_ITEMS
from transhash.hashers.training_loop import fingerprint
from transhash.hashers.transductive import with_concept_settings
from transhash.hashers.tuning import Trial, tune
from transhash.hashers.world import SINGLE_PROCESS, World
from transhash.model.encoder import Encoder
from transhash.model.files import TrainedVotes, check_votes_allowed, model_digest
from transhash.progress import Track, no_progress, phase, report_to, show_progress
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine, check_not_served
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
from transhash.training.fit_data import FitData, read_fit_data
from transhash.training.report import alignment_map, build_report
from transhash.training.split_data import SplitData
from transhash.training.validation import (
    ValidationSplit,
    coverage_summary,
    covers_better,
    measure_coverage,
    score_validation,
    split_validation,
    validation_summary,
)

_MAX_FINE_TUNING_ITEMS = 10_000  # with --fine-tune, which decodes them: 150 kB each
_MAX_NAMED = 10  # skipped items
_log = logging.getLogger("transhash")
VALIDATION_FOLDER = "validation"  # in the run folder, while validation is not finished


@dataclass
class Fit:
    """One fit: options, inputs and, after `run_files` or `run_split`, the results.

    `text_features` is a name as for `--text-features`; by default words, with all-MiniLM-L6-v2
    where it is installed. `validate` adds held-out retrieval, which fits a second model, and
    coverage to the report. `fine_tuning` trains the backbone of the image features first.
    `use_concepts` adds the built-in concepts to captions, where the image features have a
    classifier, unless captions cover the target better; without an auxiliary set they are needed.
    `user_settings` names the settings of the method that the user chose: no rule changes them.
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
    use_concepts: bool = False
    user_settings: Container[str] = ()
    track: Track = no_progress
    world: World = SINGLE_PROCESS

    # Inputs
    concepts: AuxiliarySet | None = field(init=False, default=None)  # at the end of `training`
    captioned: TrainingSet | None = field(init=False, default=None)  # `training` without concepts
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
        if data.auxiliary is not None:
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

        Captions are held out; concepts next to them are all trained on. The scores stay in the
        validation folder until the run is saved, so that a killed fit resumes there. The key
        `skipped` gives the reason if there are no scores.
        """
        if training.images.ndim > 2:
            return {"skipped": "Training on pixels a second time would take too long."}
        hasher, folder, world = self.hasher, self.out / VALIDATION_FOLDER, self.world
        settings = {name: value for name, value in hasher.settings().items() if name != "device"}
        appended = self.captioned is not None and self.concepts is not None
        name = fingerprint({**settings, "concepts": appended}, training)
        scores = world.compute_once(lambda: _read_scores(folder / "scores.json", name))
        if scores is not None:
            return scores
        try:
            split = split_validation(training, hasher.seed)
        except DataError as error:
            return {"skipped": str(error)}
        rest = split.rest
        if self.captioned is not None and self.concepts is not None:
            rest = append_auxiliary(rest, self.concepts)

        def track(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
            return self.track(items, f"validation, {description}", total, start)

        try:
            fitted = replace(hasher).fit(rest, folder=folder, track=track, world=world)
        except DataError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return {"skipped": f"Training without the held-out part failed. {error}"}
        scores = score_validation(split, fitted)
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
        auxiliary = data.auxiliary
        texts: TextFeatures | None = None
        if auxiliary is None or auxiliary.texts.features is None:
            # First, so that a missing model is reported at once.
            name = self.text_features or default_text_features()
            with phase("loading text features"):
                texts = text_features(name, self.device) if isinstance(name, str) else name
        self.text_features = texts
        own_images = data.images if auxiliary is None else auxiliary.images
        if own_images is not None and own_images.features is not None:
            self.image_features = None  # the model takes precomputed features
        concepts, weights = self._choose_concepts(auxiliary, texts)
        self.problems = list(data.problems)
        rng = np.random.default_rng(self.hasher.seed)
        x = target_x = target_images = target_texts = images = None
        if auxiliary is not None:
            x, images = self._extract_images(auxiliary.images)
        if data.images is not None:
            target_x, target_images = self._extract_images(self._sample(data.images, rng))
        if data.texts is not None:
            target_texts = self._sample(data.texts, rng)
        captions = list(auxiliary.texts.items) if auxiliary and texts is not None else []
        concept_texts = concepts.texts if concepts else []
        if target_texts is not None and texts is not None:
            self.captions, self.target_texts = captions + concept_texts, target_texts.items

        def fit_texts(concept_texts: Sequence[str]) -> Features | None:
            """Fit text features on these texts and all others; return those of the target."""
            if texts is not None:
                corpora: list[Sequence[str]] = [captions, concept_texts]
                if target_texts is not None and self.hasher.uses_target:
                    corpora.append(target_texts.items)
                texts.fit(*[corpus for corpus in corpora if corpus], track=self.track)
            if target_texts is None:
                return None
            return _transform_texts(texts, target_texts, self.track)

        target_y = fit_texts(concept_texts)
        if concepts is not None and weights is not None and texts is not None:
            own = target_x if target_x is not None else x
            statistics = None if own is None else ImageStatistics.from_features(own)
            if statistics is None or not statistics.distance > 0:  # one image, or copies of it
                statistics = ImageStatistics.from_photographs(self.image_features)
            concept_y = texts.transform(concept_texts, self.track)
            self.concepts = concepts.pairs(weights, statistics, concept_y)
        if auxiliary is None or x is None or images is None:
            assert self.concepts is not None  # or it was refused
            self.hasher = with_concept_settings(self.hasher, self.user_settings)
            self.training = TrainingSet(
                self.concepts.images, self.concepts.texts, self.concepts.relation,
                target_x, target_y,
            )  # fmt: skip
            return
        y = _transform_texts(texts, auxiliary.texts, self.track)
        relation = auxiliary.relation
        if len(images) != len(auxiliary.images):
            rows = np.flatnonzero(np.isin(auxiliary.images.ids, images.ids))
            relation = relation.subset(rows, np.arange(len(auxiliary.texts)))
        self.captioned = TrainingSet(x, y, relation, target_x, target_y)
        if self.concepts is not None and covers_better(self.captioned, self.concepts):
            self.concepts = None
            target_y = fit_texts([])  # so that nothing of the concepts is left in the features
            y = _transform_texts(texts, auxiliary.texts, self.track)
            self.captioned = TrainingSet(x, y, relation, target_x, target_y)
        self.training = self.captioned
        if self.concepts is not None:
            self.hasher = with_concept_settings(self.hasher, self.user_settings)
            self.training = append_auxiliary(self.training, self.concepts)
        self.images = TrainingImages(images, target_images)

    def _choose_concepts(
        self, auxiliary: AuxiliaryCollection | None, texts: TextFeatures | None
    ) -> tuple[Concepts | None, npt.NDArray[np.float32] | None]:
        """Return the built-in concepts and their class weights, if this fit learns from them."""
        if auxiliary is None:
            if not self.use_concepts:
                raise DataError(
                    "Without an auxiliary set and without concepts there is nothing to learn from. "
                    "Pass --auxiliary FILE with columns image and text."
                )
            if self.fine_tuning is not None:
                raise DataError(
                    "Fine-tuning needs images, and the built-in concepts have none. "
                    "Pass --auxiliary FILE, or omit --fine-tune."
                )
            concepts = load_concepts()
            return concepts, require_class_weights(self.image_features, concepts)
        has_labels = auxiliary.images.labels is not None and auxiliary.texts.labels is not None
        if not self.use_concepts or texts is None or has_labels or self.fine_tuning is not None:
            return None, None
        concepts = load_concepts()
        weights = class_weights(self.image_features, concepts)
        return (None, None) if weights is None else (concepts, weights)

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
            own = frozen if self.captioned is None else self.captioned
            retrieval = self.validation_scores(drop_votes(own))
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
            self.hasher, self.image_features, self.text_features, self.method, self.votes,
            trial_queries=draw_trial_queries(self.hasher, self.training),
            image_sample=self._draw_image_sample(),
        )  # fmt: skip
        concepts = 0 if self.concepts is None else len(self.concepts.texts)
        with phase("report"):
            self.report = build_report(
                self.encoder, self.training, seconds, self.problems, trials, concepts
            )
        if self.validate:
            if self.held_out is not None and self.held_out.relation.positives:
                split = ValidationSplit.from_parts(self.training, self.held_out)
                retrieval = score_validation(split, self.hasher)
            self.report["validation"] = self._validation_report(retrieval)
        if self.world.rank == 0:
            self._check_index()
            write_json(self.out / "report.json", self.report)
            with phase("saving"):
                write_json(self.out / "diagnostics.json", alignment_map(self.hasher, self.training))
                self.encoder.save(self.out)  # last: a folder with a model is a complete run
            shutil.rmtree(self.out / VALIDATION_FOLDER, ignore_errors=True)
            delete_backbone(self.out)
        return self

    def _check_index(self) -> None:
        """Refuse to replace the model of an index by another one, which could not search it."""
        path = self.out / "catalog.sqlite"
        if not path.exists():
            return
        with TemporaryDirectory(prefix="transhash-") as folder:
            self.encoder.save(folder)
            digest = model_digest(Path(folder))
        with Catalog(path, read_only=True) as catalog:
            if catalog.get_or_set("model", digest) != digest:
                raise DataError(
                    f"{self.out} has an index of another model. It was left as it is: choose a new "
                    "folder, or pass what that model was trained on."
                )

    def _sample(self, target: Collection[Any], rng: np.random.Generator) -> Collection[Any]:
        """Return random target items, at most as many as training can take."""
        count = MAX_TARGET_ITEMS if self.fine_tuning is None else _MAX_FINE_TUNING_ITEMS
        if len(target) <= count:
            return target
        return target.take(np.sort(rng.permutation(len(target))[:count]))

    def _draw_image_sample(self) -> ImageSample | None:
        if self.image_features is None:
            return None
        images: Features | None = self.training.images
        if self.concepts is not None:  # which are not images
            images = None if self.captioned is None else self.captioned.images
        return ImageSample.draw(images, self.training.target_images, seed=self.hasher.seed)

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
        captions, relation = self.captions, self.training.relation
        if captions is not None:
            if isinstance(relation, FeedbackRelation):  # texts of votes precede those of concepts
                captions = list(compress(captions, ~relation.voted_texts))
            captions = captions[: len(training.texts)]
        coverage = measure_coverage(training, captions, self.target_texts)
        summary, warnings = coverage_summary(coverage)
        if retrieval is not None:
            items = "concepts" if self.captioned is None and self.concepts else "captions"
            summary = [validation_summary(retrieval, items), *summary]
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


def _transform_texts(features: TextFeatures | None, texts: Texts, track: Track) -> Features:
    if texts.features is not None:
        return texts.features
    if features is None:
        raise DataError(
            "Auxiliary texts are features, but target texts are not. Pass both in the same form."
        )
    return features.transform(texts.items, track)


def fit(
    pairs: Any = None,
    images: Any = None,
    texts: Any = None,
    *,
    concepts: bool = True,
    embedded_captions: bool = False,
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
    """Train a model, index `images` and `texts`, and return the engine that searches them.

    `pairs` is the auxiliary set: a file, a data frame or data set with columns image and text (and
    optionally labels), or a list of (image, text). `concepts` adds what the network that reads the
    images knows: 1,387 names and definitions; without `pairs` they are all that is learned from.
    `embedded_captions` adds the images that have a title, caption or keywords in their file, as
    pairs with these. `images` and `texts` are the target items, which are not paired: folders,
    files, lists, data frames, data sets or feature matrices. Images in memory may be bytes, PIL
    images or arrays. `votes` on results are further auxiliary items: a file written by `transhash
    feedback`, or a list of (image, text, 0 or 1).

    Without `out` the run folder is temporary and deleted when the engine is closed. `validate` adds
    retrieval of held-out pairs to report.json and takes as long as the training. `fine_tune` is a
    dictionary of fine-tuning settings, {} for the defaults. `progress` shows bars, or lines every
    ten seconds where standard error is not a terminal; by default only in a terminal or notebook.
    """
    if images is None and texts is None:
        raise DataError("Nothing to search. Pass images, texts or both.")
    names = "a name such as all-MiniLM-L6-v2, or None"
    check_type(text_features, (str, type(None)), "The name of the text features", names)
    check_type(device, str, "The device", "cpu or cuda")
    check_type(settings, (Mapping, type(None)), "settings", "a dictionary")
    check_type(fine_tune, (Mapping, type(None)), "fine_tune", "a dictionary, {} for the defaults")
    check_type(out, (str, os.PathLike, type(None)), "out", "the path of a folder")
    check_image_features(features)
    name = find_method(method).name
    bits = default_bits(name) if bits is None else bits
    hasher = make_hasher(name, **{"bits": bits, "seed": seed, **(settings or {})})
    request = None if fine_tune is None else FineTuningRequest.from_hasher(hasher, name, fine_tune)
    with show_progress("fit", progress) as track:
        data = read_fit_data(
            pairs, images, texts, votes=votes, embedded_captions=embedded_captions, track=track
        )
        temporary = TemporaryDirectory(prefix="transhash-") if out is None else None
        folder = Path(temporary.name if temporary else out or "")
        check_not_served(folder)
        Fit(
            hasher, name, folder, image_features(features, device), text_features,
            device=device, validate=validate, fine_tuning=request, use_concepts=concepts,
            user_settings=settings or (), track=track,
        ).run_files(data)  # fmt: skip
        engine = SearchEngine.open(folder, writable=True)
        engine.temporary = temporary
        problems = list(data.problems)
        if data.images is not None:
            problems += engine.writer.add_images(data.images, track).problems
        if data.texts is not None:
            problems += engine.writer.add_texts(data.texts, track).problems
    for source, location, reason in dict.fromkeys(problems[:_MAX_NAMED]):
        _log.warning("Skipped %s: %s", location or source, reason)
    if len(problems) > _MAX_NAMED:
        _log.warning("Skipped %d more items.", len(problems) - _MAX_NAMED)
    return engine


def draw_trial_queries(hasher: Hasher, training: TrainingSet) -> dict[Modality, Codes]:
    """Return 64 codes of each modality, which the index of the other one tries as queries."""
    images = training.images if training.target_images is None else training.target_images
    texts = training.texts if training.target_texts is None else training.target_texts

    def choose(items: Features) -> Features:
        return items[np.linspace(0, len(items) - 1, min(64, len(items))).astype(np.int64)]

    return {
        "images": hasher.encode_images(choose(images)),
        "texts": hasher.encode_texts(choose(texts)),
    }
