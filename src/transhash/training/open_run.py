"""A run folder for a user's folders and tables: fitted on a sample, and again when that is needed.

The model learns from a few hundred items, which are indexed first, so that they can be searched
while the others are indexed. What the fit saw is recorded in open.json of the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transhash.codes import default_bits
from transhash.data.collection import MODALITIES, Collection, Images, Modality, Texts, text_keys
from transhash.data.inputs import to_auxiliary
from transhash.data.manifest import read_both
from transhash.errors import DataError, EmptySourceError
from transhash.features import LITE0
from transhash.features.embedders import MINILM, default_text_features
from transhash.features.images import image_features
from transhash.features.stream import extract_readable
from transhash.hashers import make_hasher
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine
from transhash.search.feedback import VOTES_FILE
from transhash.search.sync import SyncPlan, find_losses, plan_sync
from transhash.search.writer import IndexWriter
from transhash.storage import content_digest, read_json, read_regular, replace_folder, write_json
from transhash.training.fit import Fit
from transhash.training.fit_data import FitData

_log = logging.getLogger("transhash")
_RECORD = "open.json"
# What a fit does not write, but a run that it has replaced has, also if only half of it is deleted.
_RUN_FILES = ("config.json", "catalog.sqlite*", "index", f"{VOTES_FILE}*")
# Items that the model learns from and that are indexed first. Texts cost less.
SAMPLE_SIZES: dict[Modality, int] = {"images": 300, "texts": 1000}
# With fewer, nothing is learned from them: their mean and spread say little about later ones.
# The sample has this number of each source, because a single item may be unreadable.
_MIN_ITEMS = 20
_GROWTH = 4  # times as many items as at the fit: fit again


@dataclass(frozen=True)
class OpenOptions:
    """What the user chose to learn from and with; None is what the run has, or the default."""

    auxiliary: Path | None = None
    features: str | None = None
    text_features: str | None = None

    def with_defaults(self, before: Mapping[str, Any]) -> OpenOptions:
        """Return the options of the next fit: as chosen now, or as before, or the defaults."""
        file = before.get("auxiliary_file")
        return OpenOptions(
            self.auxiliary or (None if file is None else Path(file)),
            self.features or before.get("features") or LITE0,
            self.text_features or before.get("chosen_text_features") or default_text_features(),
        )

    def describe(self, run: Path) -> str:
        """Return which features the next fit of the run uses, and a better way if there is one."""
        resolved = self.with_defaults(_read_record(run))
        text = f"Features: images {resolved.features}, texts {resolved.text_features}"
        if resolved.text_features == self.text_features or default_text_features() == MINILM:
            return text
        return f"{text}. For similar words as well: pip install 'transhash[minilm]'"


@dataclass(frozen=True)
class OpenSource:
    """A folder or table, and the items of each modality in it."""

    path: Path
    images: Images | None
    texts: Texts | None

    @classmethod
    def read(cls, path: Path) -> OpenSource:
        if path.suffix.lower() == ".npy":
            raise DataError(
                f"{path} contains features, which the search page cannot show. Pass a folder of "
                "files or a table, or use `transhash fit`."
            )
        return cls(Path(os.path.abspath(path)), *read_both(path))

    def items(self, modality: Modality) -> Collection[Any] | None:
        return self.images if modality == "images" else self.texts


def default_run_folder(path: Path) -> Path:
    """Return the run folder of a source, in the folder for the data of the user's programs."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    resolved = path.resolve()
    digest = hashlib.blake2b(os.fsencode(resolved), digest_size=4).hexdigest()
    name = re.sub(r"[^\w.-]+", "-", resolved.name).strip("-.")[:40] or "files"
    return base / "transhash" / "runs" / f"{name}-{digest}"


def read_open_sources(run: Path, paths: Sequence[Path]) -> list[OpenSource]:
    """Read the sources given, and those that the run has from before as far as they exist."""
    sources = {}
    for path in paths:
        sources[path.resolve()] = OpenSource.read(path)
    for name in _indexed_sources(run):
        if name and Path(name).resolve() not in sources and Path(name).suffix.lower() != ".npy":
            with suppress(EmptySourceError):
                sources[Path(name).resolve()] = OpenSource.read(Path(name))
    return list(sources.values())


def reason_to_fit(
    run: Path, sources: Sequence[OpenSource], options: OpenOptions
) -> tuple[str, bool]:
    """Return why the run must be fitted, "" if not, and whether it would be useful only."""
    record = _read_record(run)
    options, chosen = options.with_defaults(record), options
    if not (run / "config.json").exists():
        if run.exists() and (not run.is_dir() or any(run.iterdir())):
            raise DataError(f"{run} contains other files. Choose an empty --run folder.")
        parts = [
            f"{len(sample):,} of {count:,} {modality}"
            for modality, count in _counts(sources).items()
            if (sample := _if_enough(_join(take_samples(sources, modality)))) is not None
        ]
        pairs = [] if options.auxiliary is None else [str(options.auxiliary)]
        return f"Learning from {', '.join([*parts, *pairs, 'built-in concepts'])}, once.", False
    if not record:
        if chosen != OpenOptions():
            raise DataError(
                f"{run} was written by `transhash fit`. Omit --auxiliary, --features and "
                "--text-features, or choose another --run."
            )
        return "", False
    if chosen.auxiliary is not None and record["auxiliary"] != _digest(chosen.auxiliary):
        return f"{chosen.auxiliary} is new or has changed: fitting the model again.", False
    for name, before, now in (
        ("Image", record["features"], options.features),
        ("Text", record["text_features"], options.text_features),
    ):
        if now != before:
            is_default = name == "Text" and chosen.text_features is None
            return f"{name} features are {now} now, {before} before: fitting again.", is_default
    for modality, count in _counts(sources).items():
        before = record["items"][modality]
        if count and not before:
            return f"There were no {modality} before: fitting the model again.", True
        if before and count > _GROWTH * before:
            return f"There are {count:,} {modality} now, {before:,} before: fitting again.", True
    return "", False


def loss_by_refit(run: Path, sources: Sequence[OpenSource], options: OpenOptions) -> str:
    """Return a phrase about what a new fit of the run would lack, "" if nothing."""
    file = options.with_defaults(_read_record(run)).auxiliary
    if options.auxiliary is None and file is not None and not file.exists():
        return f"{file} is missing"
    if not (run / "catalog.sqlite").exists():
        return ""
    present = {str(source.path.resolve()) for source in sources}
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        counts = catalog.sources.counts()
        for name, modality, count in counts:
            if name not in present:
                where = f"from {name}, which is missing" if name else "added by hand"
                return f"{count:,} {modality} were {where}"
        indexed = {name for name, _, _ in counts}
        plans: list[SyncPlan] = []
        for source in sources:
            if str(source.path.resolve()) in indexed:
                plans += plan_sync(catalog, source.path)
            else:  # plan_sync would not know which modalities; files may have moved there
                plans += _plan_new(source)
        return next(iter(find_losses(catalog, plans).values()), "")


def fit_sample(
    run: Path,
    sources: Sequence[OpenSource],
    options: OpenOptions,
    track: Track = no_progress,
) -> None:
    """Fit on a sample of the sources and give the result the name of the run in one step.

    A fit that was interrupted is resumed. Votes are kept; the index is empty then.
    """
    draft = run.with_name(f".{run.name}.next")
    if any(any(draft.glob(name)) for name in _RUN_FILES):  # the run that an earlier fit replaced
        shutil.rmtree(draft)
    previous = _read_record(run)
    resolved = options.with_defaults(previous)
    path, text_features = resolved.auxiliary, resolved.text_features
    pairs = None if path is None else to_auxiliary(path)
    features = image_features(resolved.features or LITE0)
    samples = {modality: _join(take_samples(sources, modality)) for modality in MODALITIES}
    images, texts = samples["images"], samples["texts"]
    if images is not None:
        try:
            images = extract_readable(features, images, track)[1]
        except DataError:  # none is readable
            if texts is None:
                raise
            images = None
    data = FitData(pairs, _if_enough(images), _if_enough(texts))
    hasher = make_hasher("THN", bits=default_bits("THN"))
    Fit(
        hasher, "THN", draft, features, text_features, validate=False, use_concepts=True,
        track=track,
    ).run_files(data)  # fmt: skip
    record = {
        "auxiliary": None if path is None else _digest(path),
        "auxiliary_file": None if path is None else os.path.abspath(path),
        "features": resolved.features,
        "text_features": text_features,
        "chosen_text_features": options.text_features or previous.get("chosen_text_features"),
        "items": _counts(sources),
    }
    write_json(draft / _RECORD, record)
    for file in run.glob(f"{VOTES_FILE}*"):
        shutil.copy2(file, draft)
    replace_folder(draft, run)


def index_samples(run: Path, sources: Sequence[OpenSource], track: Track = no_progress) -> None:
    """Index the sample of each source and modality that the run has no items of.

    Then a sync knows which modalities to read, also if it is killed.
    """
    with SearchEngine.open(run, writable=True) as engine:
        for modality in ("texts", "images"):
            collections = _collections(sources, modality)
            for items, sample in zip(collections, take_samples(sources, modality), strict=True):
                if modality in engine.catalog.sources.modalities(items.source):
                    continue
                if modality == "texts":
                    engine.writer.add_texts(sample, track)
                else:
                    _index_images(engine.writer, items, sample, track)


def take_samples(sources: Sequence[OpenSource], modality: Modality) -> list[Collection[Any]]:
    """Return the same random items of each source every time.

    Their number is in proportion to its size, but there are 20 at least if it has as many.
    """
    collections = _collections(sources, modality)
    total = sum(map(len, collections))
    share = min(1.0, SAMPLE_SIZES[modality] / max(total, 1))
    return [_take(items, max(_MIN_ITEMS, round(share * len(items)))) for items in collections]


def sync_paths(run: Path, sources: Sequence[OpenSource]) -> list[Path]:
    """Return the sources that the run must match.

    One with images and texts of which none is indexed cannot be synced: a sync reads what the run
    has of a source.
    """
    indexed = set(_indexed_sources(run))
    return [
        source.path
        for source in sources
        if source.images is None or source.texts is None or str(source.path.resolve()) in indexed
    ]


def _index_images(writer: IndexWriter, items: Images, sample: Images, track: Track) -> None:
    """Index a sample, or a larger one if none of it is readable."""
    try:
        writer.add_images(sample, track)
    except DataError:
        try:
            writer.add_images(_take(items, SAMPLE_SIZES["images"]), track)
        except DataError as error:
            _log.warning("%s: %s Then start this command again.", items.source, error)


def _plan_new(source: OpenSource) -> list[SyncPlan]:
    """Return plans that add all items of a source that the run does not have."""
    plans = []
    for modality in MODALITIES:
        if (items := source.items(modality)) is not None:
            keys = items.ids if modality == "images" else text_keys(items)
            plans.append(SyncPlan(modality, str(source.path.resolve()), items, [], list(keys), 0))
    return plans


def _collections(sources: Sequence[OpenSource], modality: Modality) -> list[Collection[Any]]:
    return [items for source in sources if (items := source.items(modality)) is not None]


def _take(items: Collection[Any], size: int) -> Collection[Any]:
    rows = np.random.default_rng(0).permutation(len(items))[:size]
    return items if size >= len(items) else items.take(np.sort(rows))


def _if_enough(items: Collection[Any] | None) -> Collection[Any] | None:
    return None if items is None or len(items) < _MIN_ITEMS else items


def _join(samples: Sequence[Collection[Any]]) -> Collection[Any] | None:
    """Return the items of several collections as one, or None if there are none."""
    if len(samples) < 2:
        return samples[0].without_labels() if samples else None
    items = [item for sample in samples for item in sample.items]
    names = [sample.describe(row) for sample in samples for row in range(len(sample))]
    return replace(Collection(names, items), ids_are_row_numbers=False)


def _read_record(run: Path) -> dict[str, Any]:
    return read_json(run / _RECORD) if (run / _RECORD).exists() else {}


def _indexed_sources(run: Path) -> list[str]:
    if not (run / "catalog.sqlite").exists():
        return []
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        return list(dict.fromkeys(name for name, _, _ in catalog.sources.counts()))


def _counts(sources: Sequence[OpenSource]) -> dict[Modality, int]:
    return {
        modality: sum(len(source.items(modality) or ()) for source in sources)
        for modality in MODALITIES
    }


def _digest(path: Path) -> str:
    try:
        return content_digest(read_regular(path)).hex()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}). Pass a file with columns image and text."
        ) from None
