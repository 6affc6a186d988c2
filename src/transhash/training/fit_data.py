"""The inputs of a fit: auxiliary set and unlabeled target items, from files or Python objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transhash.data.collection import AuxiliaryCollection, Images, Problem, Texts
from transhash.data.feedback import add_votes, is_feedback_file, read_votes
from transhash.data.inputs import to_auxiliary, to_images, to_texts, to_votes
from transhash.data.manifest import read_images, read_texts, read_triples
from transhash.errors import DataError
from transhash.features.embedded_captions import add_embedded_captions
from transhash.progress import Track, no_progress


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
