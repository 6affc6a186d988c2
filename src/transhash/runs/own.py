"""fit: from what a person holds in Python to an engine that can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transhash.codes import usual_bits
from transhash.data.votes import with_votes
from transhash.errors import DataError
from transhash.features.image import image_features
from transhash.hashers import find_method, make_hasher
from transhash.progress import Track, silent
from transhash.runs.fine_tune import tuning_request
from transhash.runs.fit import Material, fit_files
from transhash.runs.inputs import as_auxiliary, as_images, as_texts, as_votes
from transhash.runs.search import SearchEngine


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
    track: Track = silent,
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
    bits = usual_bits(name) if bits is None else bits
    hasher = make_hasher(name, **{"bits": bits, "seed": seed, **(settings or {})})
    pictures = None if images is None else as_images(images)
    words = None if texts is None else as_texts(texts)
    auxiliary = as_auxiliary(pairs)
    if votes is not None:
        auxiliary = with_votes(auxiliary, as_votes(votes))
    parts = [part for part in (auxiliary.images, auxiliary.texts, pictures, words) if part]
    material = Material(
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
