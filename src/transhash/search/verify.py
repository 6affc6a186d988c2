"""Check that model, catalog and index of a run are intact and consistent, and repair the index."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from transhash.data.collection import MODALITIES, Modality
from transhash.errors import IndexNotFoundError, TranshashError
from transhash.index.grouped.grouped import GroupedIndex
from transhash.model.encoder import Encoder
from transhash.model.files import read_config
from transhash.progress import Track, no_progress, phase
from transhash.search.catalog import Catalog
from transhash.search.consistency import check_catalog, compare, repair_index
from transhash.search.feedback import FeedbackStore


@dataclass
class Finding:
    """One problem of a run."""

    part: str  # model, catalog, votes, image index or text index
    problem: str
    repaired: bool = False


def verify_run(run: Path, *, repair: bool = False, track: Track = no_progress) -> list[Finding]:
    """Return all problems of a run folder, after reading every byte of index and catalog.

    With `repair`, the index is repaired or rebuilt from the catalog. Model, catalog and votes can
    only be restored from a backup.
    """
    findings = []
    try:
        with phase("checking the model"):
            Encoder.load(run)
    except TranshashError as error:
        findings.append(Finding("model", str(error)))
    votes = FeedbackStore(run)
    findings += [Finding("votes", f"{votes.path}: {text}") for text in votes.find_corruption()]
    path = run / "catalog.sqlite"
    if not path.exists():
        if (run / "index").exists():
            findings.append(Finding("catalog", f"{path} is missing, but there is an index"))
        return findings
    try:
        check_catalog(run)
        catalog = Catalog(path, read_only=not repair)
    except TranshashError as error:
        return [*findings, Finding("catalog", str(error))]
    with catalog:
        problems = catalog.find_corruption(track)
        findings += [Finding("catalog", f"{path}: {problem}") for problem in problems]
        if not problems:
            findings += _check_indexes(run, catalog, repair)
    return findings


def _check_indexes(run: Path, catalog: Catalog, repair: bool) -> list[Finding]:
    findings = []
    try:
        config = read_config(run)
        if catalog.get_or_set("model", config["digest"]) != config["digest"]:
            findings.append(Finding("model", f"{catalog.path} was built with a different model"))
        pending = catalog.pending("")
        for modality in MODALITIES:
            bits = config["settings"]["bits"]
            findings += _check_index(run, catalog, modality, bits, bool(pending), repair)
        if repair and pending:
            catalog.mark_done("", list(pending))
    except TranshashError as error:
        findings.append(Finding("index", str(error)))
    return findings


def _check_index(
    run: Path, catalog: Catalog, modality: Modality, bits: int, pending: bool, repair: bool
) -> list[Finding]:
    folder = run / "index" / modality
    part = f"{modality[:-1]} index"
    # If codes were written to other indexes as well, the run's own need not have all of them.
    needs_all = catalog.index_urls() in ([], [""])
    if not (folder.exists() or (needs_all and catalog.count(modality))):
        return []
    try:
        with closing(GroupedIndex.open(folder, bits, read_only=True)) as index:
            with phase(f"checking the {part}"):
                index.verify()
            difference = compare(catalog, modality, index)
    except TranshashError as error:
        missing_index = isinstance(error, IndexNotFoundError)
        finding = Finding(part, f"{folder} is missing" if missing_index else str(error))
        if repair:
            _rebuild_index(folder, catalog, modality, bits)
            finding.repaired = True
        return [finding]
    missing = len(difference.missing) if needs_all or pending else 0
    if not (missing or len(difference.mismatched) or len(difference.orphaned)):
        return []
    finding = Finding(
        part,
        f"{missing:,} items without a code, {len(difference.mismatched):,} with a wrong code, "
        f"{len(difference.orphaned):,} codes without an item",
    )
    if repair:
        with closing(GroupedIndex.open(folder, bits)) as index:
            repair_index(catalog, modality, index, difference)
        finding.repaired = True
    return [finding]


def _rebuild_index(folder: Path, catalog: Catalog, modality: Modality, bits: int) -> None:
    """Build a new index from the catalog's codes; a corrupt index is renamed, not deleted."""
    if folder.exists():
        number = 1
        while (backup := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
            number += 1
        folder.rename(backup)
    with closing(GroupedIndex.open(folder, bits)) as index:
        repair_index(catalog, modality, index, compare(catalog, modality, index))
        index.verify()
