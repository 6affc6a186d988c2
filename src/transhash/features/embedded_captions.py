"""Captions inside image files as auxiliary pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from transhash.data.collection import AuxiliaryCollection, Collection, Images
from transhash.data.relation import SparseRelation
from transhash.errors import DataError
from transhash.features.decode import ImageTask
from transhash.features.decode_processes import DecoderPool
from transhash.progress import Track, no_progress

_MAX_SHARE = 5  # images with one text: more share it because a program or a photographer added it
_TASK = ImageTask(32, pixels=False, describe=True)


def embedded_captions(images: Images, track: Track = no_progress) -> list[tuple[int, str]]:
    """Return the rows of images with a title, caption or keywords in their file, and these texts.

    A text that more than five images share says nothing about one of them and is left out.
    """
    if images.features is not None:
        return []
    pairs = []
    with DecoderPool() as decoders:
        for row in track(range(len(images)), "reading captions in images", len(images)):
            source = images.items[row]
            try:
                content = source.read_bytes() if isinstance(source, Path) else source
            except OSError:
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
