"""The inputs of a fit: auxiliary set and unlabeled target items, from files or Python objects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from transhash.data.collection import AuxiliaryCollection, Collection, Images, Problem, Texts
from transhash.data.feedback import add_votes, is_feedback_file, read_votes
from transhash.data.inputs import to_auxiliary, to_images, to_texts, to_votes
from transhash.data.manifest import read_images, read_texts, read_triples
from transhash.data.relation import SparseRelation
from transhash.errors import DataError
from transhash.features.decode import ImageTask, read_content
from transhash.features.decode_processes import DecoderPool
from transhash.progress import Track, no_progress

_MAX_SHARE = 5  # images with one text: more share it because a program or a photographer added it
_TASK = ImageTask(32, pixels=False, describe=True)


@dataclass
class FitData:
    """Auxiliary set, unlabeled target items and skipped rows, as they were read."""

    auxiliary: AuxiliaryCollection | None  # None: learn from the built-in concepts alone
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
    embedded_captions: bool = False,
    track: Track = no_progress,
) -> FitData:
    """Read the inputs of a fit from files or Python objects; labels of target items are dropped.

    `relation` is a file of triples (image id, text id, 0 or 1), or of votes. With
    `embedded_captions`, target images with a caption in their file are auxiliary pairs as well.
    """
    triples, pairs = None, None
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
    elif auxiliary_images is not None or auxiliary_texts is not None or triples is not None:
        raise DataError(
            "The auxiliary set is incomplete. Pass both --auxiliary-images and --auxiliary-texts, "
            "or --auxiliary."
        )
    if pairs is None and images is None and texts is None:
        raise DataError("No images, texts or auxiliary set given. Pass --images, --texts or both.")
    target_images = None if images is None else to_images(images)
    target_texts = None if texts is None else to_texts(texts)
    own = () if pairs is None else (pairs.images, pairs.texts)
    for part in (*own, target_images, target_texts):
        problems += part.problems if part is not None else ()
    if embedded_captions:
        pairs = add_embedded_captions(pairs, target_images, track)
    if trained_votes is not None:
        if pairs is None:
            raise DataError("Votes need an auxiliary set. Pass --auxiliary FILE as well.")
        pairs = add_votes(pairs, trained_votes)
    return FitData(
        pairs,
        None if target_images is None else target_images.without_labels(),
        None if target_texts is None else target_texts.without_labels(),
        list(dict.fromkeys(problems)),
    )


def embedded_captions(images: Images, track: Track = no_progress) -> list[tuple[int, str]]:
    """Return the rows of images with a title, caption or keywords in their file, and these texts.

    A text that more than five images share says nothing about one of them and is left out.
    """
    if images.features is not None:
        return []
    pairs = []
    with DecoderPool() as decoders:
        for row in track(range(len(images)), "reading captions in images", len(images)):
            content = read_content(images.items[row])
            if isinstance(content, str):
                continue  # reported where its features are computed
            result = decoders.render(content, _TASK)
            if not isinstance(result, str) and result.metadata and result.metadata.text:
                pairs.append((row, result.metadata.text))
    shares = Counter(text for _, text in pairs)
    return [(row, text) for row, text in pairs if shares[text] <= _MAX_SHARE]


def add_embedded_captions(
    pairs: AuxiliaryCollection | None, images: Images | None, track: Track = no_progress
) -> AuxiliaryCollection:
    """Return the auxiliary pairs, and as further rows the images with a caption in their file."""
    captions = [] if images is None else embedded_captions(images, track)
    if images is None or not captions:
        if pairs is not None:
            return pairs
        count = 0 if images is None else len(images)
        raise DataError(
            f"None of {count:,} images has a title, caption or keywords in its file. "
            "Remove --embedded-captions, or pass --auxiliary FILE."
        )
    rows = [row for row, _ in captions]
    ids = [f"embedded:{images.ids[row]}" for row in rows]
    items = [images.items[row] for row in rows]
    texts = [text for _, text in captions]
    first_images: Images = Collection([], []) if pairs is None else pairs.images
    first_texts = Collection[str]([], []) if pairs is None else pairs.texts
    if first_images.features is not None or first_texts.features is not None:
        raise DataError(
            "Embedded captions cannot be added to precomputed features. Remove "
            "--embedded-captions, or pass image files."
        )
    similar = sp.eye_array(len(rows), dtype=np.float32)
    if pairs is not None:
        relation = pairs.relation
        if not isinstance(relation, SparseRelation) or relation.mask is not None:
            raise DataError(
                "Embedded captions are pairs, but the auxiliary set has labels or clicks. Remove "
                "its column labels or --relation, or --embedded-captions."
            )
        similar = sp.block_diag([relation.similar, similar])
    return AuxiliaryCollection(
        Collection([*first_images.ids, *ids], [*first_images.items, *items]),
        Collection([*first_texts.ids, *ids], [*first_texts.items, *texts]),
        SparseRelation(sp.csr_array(similar)),
    )
