"""What the bridge has to do with the target: does it say anything about these pictures and texts?

Explained: the neighbours of a picture in the bridge have captions. Where the neighbours show what
it shows, their captions agree, and differ from those of the next picture; where they are near for
no reason, or the same few are near to everything, the mean captions hardly vary. So

    explained = (V(target) - V(random)) / (V(own) - V(random))

V is the variance of the mean partner of the k nearest bridge items: of target items, of k items
drawn at random, and of the bridge's own items, each without itself. 1: as for the bridge itself,
0: as good as drawn. Nothing of it depends on how far the target lies from the bridge as a whole,
which says little: drawings learned through posters are far from all of them and found well.

Measured (benchmarks/verdict.py) with 600 pairs or more: sets that go together .58 to 1.2, texts
that name nothing .25, those that have nothing to do with each other below .1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.data.training import Features, TrainingSet
from transhash.features.words import Spelling, empty_words, tokens
from transhash.hashers.knn import NearestNeighbours, unit_from_mean

# Explained: between what goes together and what does not, see above. Of few items the ten nearest
# are not near, and posters explain drawings by -.2, noise by -3.
_LITTLE, _LITTLE_OF_FEW, _FEW = 0.1, -0.5, 300
FEWEST_PAIRS = 30  # of pictures and texts: less cannot speak for all
_SOME = 2000  # items of the bridge that are looked at
_FAR = 0.95  # of the bridge's pictures are nearer to another one
_MISSING, _FREQUENT = 5, 100  # words that are named, of how many frequent ones
_INFLECTED = 0.65  # likeness of spelling: "dogs" and "dog" .7, "network" and "work" .6
_AT_ONCE = 512
_Rows = npt.NDArray[np.float32]


def coverage(
    training: TrainingSet, captions: Sequence[str] | None, texts: Sequence[str] | None
) -> dict[str, Any]:
    """Numbers for pictures, texts and words; what cannot be told is left out."""
    found: dict[str, Any] = {}
    if training.images.ndim == 2:
        knn = NearestNeighbours().fit(training)
        for name, target, mean, own, partners in (
            ("pictures", training.target_images, knn.mean_x_, knn.images_, knn.texts_of_image_),
            ("texts", training.target_texts, knn.mean_y_, knn.texts_, knn.images_of_text_),
        ):
            if target is not None and len(own) >= FEWEST_PAIRS:
                found[name] = _explained(target, mean, own, partners, knn.neighbours)
    if captions and texts:
        found["words"] = _words(captions, texts)
    return found


def coverage_sentences(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """In words, and what is to be warned of."""
    said, warnings = [], []
    parts = [
        f"your {name} {min(1, max(0, found[name]['explained'])):.0%}"
        for name in ("pictures", "texts")
        if found.get(name, {}).get("explained") is not None
    ]
    if parts:
        said.append(f"The bridge explains {' and '.join(parts)} as well as its own.")
    if "words" in found:
        said.append(
            f"Its captions contain {found['words']['said']:.0%} of what your texts say (words "
            f"weighed by rarity) and {found['words']['distinct']:.0%} of their vocabulary."
        )
    for name, alike in (("pictures", "look alike"), ("texts", "read alike")):
        if found.get(name, {}).get("little"):
            warnings.append(
                f"the bridge has little to do with your {name}: what {alike} in it has nothing in "
                "common otherwise, so expect results near chance; use a bridge that shows and "
                "tells of such things"
            )
    return said, warnings


def _explained(
    target: Features, mean: npt.NDArray[np.float64], own: _Rows, partners: _Rows, k: int
) -> dict[str, Any]:
    step = max(1, len(own) // _SOME)
    of_own, near = _carried(own[::step], own, partners, k, itself=step)
    of_target, near_target = _carried(unit_from_mean(target, mean), own, partners, k)
    n, total = len(own), _variance(partners)
    by_chance = total / k * (n - k) / (n - 1)  # of means of k drawn without putting back
    gained, own_gain = _variance(of_target) - by_chance, _variance(of_own) - by_chance
    explained = None
    if own_gain > 0.05 * by_chance:  # else neighbours in the bridge have nothing in common either
        explained = round(gained / own_gain, 3)
    return {
        "explained": explained,
        "little": explained is not None and explained < (_LITTLE if n >= _FEW else _LITTLE_OF_FEW),
        "far": round(float((near_target < np.quantile(near, 1 - _FAR)).mean()), 3),
    }


def _carried(
    queries: _Rows, own: _Rows, partners: _Rows, k: int, itself: int = 0
) -> tuple[_Rows, _Rows]:
    """The mean partner of the k nearest, and how near (cosine) the nearest is.

    With `itself` query i is item i · itself and no neighbour of its own.
    """
    means, near = np.zeros((len(queries), partners.shape[1]), np.float32), np.zeros(len(queries))
    for start in range(0, len(queries), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        likeness = queries[rows] @ own.T
        if itself:
            places = np.arange(len(likeness))
            likeness[places, (start + places) * itself] = -np.inf
        nearest = np.argpartition(-likeness, k - 1, axis=1)[:, :k]
        near[rows] = likeness.max(axis=1)
        for column in nearest.T:
            means[rows] += partners[column] / k
    return means, near.astype(np.float32)


def _variance(rows: _Rows) -> float:
    return float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())


def _words(captions: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """What share of the target's words the captions have; inflections of theirs count as theirs.

    Words weigh what they tell: texts they occur in x log of rarity. Empty ones are left out.
    """
    have = {word for text in captions for word in tokens(text)}
    split = [set(tokens(text)) for text in texts]
    count = Counter(word for words in split for word in words)
    for word in (*empty_words(texts), *empty_words(captions)):
        count.pop(word, None)
    if not have or not count:
        return {"said": 0.0, "distinct": 0.0, "missing": []}
    unknown = sorted(word for word in count if word not in have)
    alike = zip(unknown, Spelling(sorted(have)).stand_ins(unknown))
    missing = [word for word, (_, likeness) in alike if sum(likeness) < _INFLECTED]
    weight = {word: often * math.log(1 + len(texts) / often) for word, often in count.items()}
    lost = sum(weight[word] for word in missing)
    return {
        "said": round(1 - lost / sum(weight.values()), 3),
        "distinct": round(1 - len(missing) / len(count), 3),
        "missing": _telling(missing, count, split)[:_MISSING],
    }


def _telling(words: Sequence[str], count: Counter[str], split: Sequence[set[str]]) -> list[str]:
    """Those that occur most and keep company of their own, as names of things do: "sheep", not
    "which". Root of occurrences x nats between the words around it and all words."""
    frequent = sorted(words, key=lambda word: (-count[word], word))[:_FREQUENT]
    total = sum(count.values())
    worth = {}
    for word in frequent:
        company = Counter(other for said in split if word in said for other in said & count.keys())
        del company[word]
        size = sum(company.values())
        if not size:
            continue
        apart = sum(n / size * math.log(n / size * total / count[w]) for w, n in company.items())
        by_chance = sum(1 - math.exp(-size * n / total) for n in count.values()) / (2 * size)
        worth[word] = (apart - by_chance) * math.sqrt(count[word])
    return sorted(worth, key=lambda word: (-worth[word], word))
