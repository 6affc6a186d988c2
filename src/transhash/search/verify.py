"""Whether model, catalog and index of a run are whole and belong together; and their repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transhash.data.collection import MODALITIES, Modality
from transhash.errors import IndexNotFoundError, TranshashError
from transhash.index.grouped.grouped import GroupedIndex
from transhash.model.encoder import Encoder
from transhash.model.files import model_digest, read_bits
from transhash.search.catalog import Catalog
from transhash.search.consistency import check_catalog, compare, repair_index
from transhash.search.feedback import FeedbackStore


@dataclass
class Finding:
    """Something that is not as it was written."""

    part: str  # model, catalog, votes, or index of one kind
    problem: str
    repaired: bool = False


def verify_run(run: Path, *, repair: bool = False) -> list[Finding]:
    """Everything that is wrong with a run folder; every byte of index and catalog is read.

    `repair` makes the index anew, or in part, from the catalog's codes. Model and catalog are
    what everything else is made from, and votes are nowhere else: they can only be restored.
    """
    findings = []
    try:
        Encoder.load(run)
    except TranshashError as error:
        findings.append(Finding("model", str(error)))
    votes = FeedbackStore(run)
    findings += [Finding("votes", f"{votes.path}: {what}") for what in votes.damage()]
    path = run / "catalog.sqlite"
    if not path.exists():
        if (run / "index").exists():
            findings.append(Finding("catalog", f"{path} is missing, and the index needs it"))
        return findings
    try:
        check_catalog(run)
        catalog = Catalog(path, read_only=not repair)
    except TranshashError as error:
        return [*findings, Finding("catalog", str(error))]
    try:
        damage = catalog.damage()
        findings += [Finding("catalog", f"{path}: {what}") for what in damage]
        if not damage:
            findings += _beside_catalog(run, catalog, repair)
    finally:
        catalog.close()
    return findings


def _beside_catalog(run: Path, catalog: Catalog, repair: bool) -> list[Finding]:
    findings = []
    try:
        model, bits = model_digest(run), read_bits(run)
        if catalog.get_or_set("model", model) != model:
            findings.append(Finding("model", f"{catalog.path} was filled by another model"))
        pending = catalog.pending("")
        for modality in MODALITIES:
            findings += _index(run, catalog, modality, bits, bool(pending), repair)
        if repair and pending:
            catalog.mark_done("", list(pending))
    except TranshashError as error:
        findings.append(Finding("index", str(error)))
    return findings


def _index(
    run: Path, catalog: Catalog, modality: Modality, bits: int, pending: bool, repair: bool
) -> list[Finding]:
    """What is wrong with one index; mended after it was told."""
    folder = run / "index" / modality
    part = f"index of {modality}"
    # Where codes were written to other engines, too, the run's own need not hold them all.
    whole = catalog.engines() in ([], [""])
    if not (folder.exists() or (whole and catalog.count(modality))):
        return []
    try:
        index = GroupedIndex.open(folder, bits, read_only=True)
        try:
            index.verify()
            found = compare(catalog, modality, index)
        finally:
            index.close()
    except IndexNotFoundError:
        finding = Finding(part, f"{folder} is missing")
    except TranshashError as error:
        finding = Finding(part, str(error))
    else:
        missing = len(found.missing) if whole or pending else 0
        if not (missing or len(found.mismatched) or len(found.orphaned)):
            return []
        finding = Finding(
            part,
            f"{missing:,} items of {catalog.path} have no code in {folder}, "
            f"{len(found.mismatched):,} another one, and {len(found.orphaned):,} codes no item",
        )
        if repair:
            writer = GroupedIndex.open(folder, bits)
            try:
                repair_index(catalog, modality, writer, found)
            finally:
                writer.close()
            finding.repaired = True
        return [finding]
    if repair:
        _rebuild(folder, catalog, modality, bits)
        finding.repaired = True
    return [finding]


def _rebuild(folder: Path, catalog: Catalog, modality: Modality, bits: int) -> None:
    """A new index from the catalog's codes; the damaged one is set aside, not deleted."""
    if folder.exists():
        number = 1
        while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
            number += 1
        folder.rename(aside)
    index = GroupedIndex.open(folder, bits)
    try:
        repair_index(catalog, modality, index, compare(catalog, modality, index))
        index.verify()
    finally:
        index.close()
