"""How well a run will serve, told without a label: captions kept aside, and what stands beside.

The run itself learns from everything, so the same method with the same settings learns once more
from all but a part of the bridge, and that part asks. Whoever asks was never seen: a picture that
occurs in several rows is kept aside in all of them.

Text features are those of the run, fitted on all texts. Words that only captions kept aside have
then own a column, but no relation taught anything about it, and the baselines use the same rows.
With words of the rest alone THN finds as many: 57.5% and 56.8%, means of three seeds that scatter
by six points (benchmarks/validation.py).
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from transhash.data.relation import Relation, Rows, SparseRelation
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError
from transhash.features.words import Spelling, stop_words, tokenize
from transhash.hashers import Hasher
from transhash.hashers.baselines import NearestNeighbors, RidgeRegression, normalize_centered
from transhash.hashers.training_loop import fingerprint
from transhash.hashers.world import World
from transhash.progress import Track
from transhash.storage import read_json, write_json
from transhash.training.calibration import fit_calibration

# What the bridge has to do with the target: does it say anything about these pictures and texts?
#
# Explained: the neighbours of a picture in the bridge have captions. Where the neighbours show what
# it shows, their captions agree, and differ from those of the next picture; where they are near for
# no reason, or the same few are near to everything, the mean captions hardly vary. So
#
#     explained = (V(target) - V(random)) / (V(own) - V(random))
#
# V is the variance of the mean partner of the k nearest bridge items: of target items, of k items
# drawn at random, and of the bridge's own items, each without itself. 1: as for the bridge itself,
# 0: as good as drawn. Nothing of it depends on how far the target lies from the bridge as a whole,
# which says little: drawings learned through posters are far from all of them and found well.
#
# Measured (benchmarks/validation.py) with 600 pairs or more: sets that go together .58 to 1.2, texts
# that name nothing .25, those that have nothing to do with each other below .1.

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


def measure_coverage(
    training: TrainingSet, captions: Sequence[str] | None, texts: Sequence[str] | None
) -> dict[str, Any]:
    """Numbers for pictures, texts and words; what cannot be told is left out."""
    score_at_k: dict[str, Any] = {}
    if training.images.ndim == 2:
        knn = NearestNeighbors().fit(training)
        for name, target, mean, own, partners in (
            ("pictures", training.target_images, knn.mean_x_, knn.images_, knn.texts_of_image_),
            ("texts", training.target_texts, knn.mean_y_, knn.texts_, knn.images_of_text_),
        ):
            if target is not None and len(own) >= FEWEST_PAIRS:
                score_at_k[name] = _explained(target, mean, own, partners, knn.n_neighbors)
    if captions and texts:
        score_at_k["words"] = _words(captions, texts)
    return score_at_k


def coverage_summary(score_at_k: dict[str, Any]) -> tuple[list[str], list[str]]:
    """In words, and what is to be warned of."""
    said, warnings = [], []
    parts = [
        f"your {name} {min(1, max(0, score_at_k[name]['explained'])):.0%}"
        for name in ("pictures", "texts")
        if score_at_k.get(name, {}).get("explained") is not None
    ]
    if parts:
        said.append(f"The bridge explains {' and '.join(parts)} as well as its own.")
    if "words" in score_at_k:
        said.append(
            f"Its captions contain {score_at_k['words']['said']:.0%} of what your texts say (words "
            f"weighed by rarity) and {score_at_k['words']['distinct']:.0%} of their vocabulary."
        )
    for name, alike in (("pictures", "look alike"), ("texts", "read alike")):
        if score_at_k.get(name, {}).get("little"):
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
    of_own, near = mean_partner(own[::step], own, partners, k, itself=step)
    of_target, near_target = mean_partner(normalize_centered(target, mean), own, partners, k)
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


def mean_partner(
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
    have = {word for text in captions for word in tokenize(text)}
    split = [set(tokenize(text)) for text in texts]
    count = Counter(word for words in split for word in words)
    for word in (*stop_words(texts), *stop_words(captions)):
        count.pop(word, None)
    if not have or not count:
        return {"said": 0.0, "distinct": 0.0, "missing": []}
    unknown = sorted(word for word in count if word not in have)
    alike = zip(unknown, Spelling(sorted(have)).substitutes(unknown))
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


_Numbers = npt.NDArray[np.float64]

_MOST = 500  # kept aside: the share found is then known to two points
_ENOUGH = 50  # kept aside, if that is not more than a third
_FIRST = 10  # results that a person looks at
_SURE = 2.0  # standard errors by which a baseline has to be ahead
BASELINES = {NearestNeighbors: "nearest neighbours", RidgeRegression: "ridge regression"}
_NAMES = {kind.name: said for kind, said in BASELINES.items()}
_EXPLAINED = 0.4  # between the .25 and the .58 of `baseline_advice`
THE_METHOD = "method"  # beside the baselines' names
VALIDATION_FOLDER = "verdict"  # the folder, inside the run's, of a verdict under way


@dataclass(frozen=True)
class ValidationSplit:
    """What was kept aside, and what counts as an answer."""

    rest: TrainingSet
    held_out: AuxiliarySet
    has_classes: bool  # related by label: many answers are right; else only the own picture is
    has_clicks: bool  # only some pairs are known

    @classmethod
    def of(cls, rest: TrainingSet, held_out: AuxiliarySet) -> ValidationSplit:
        relation = rest.relation
        if isinstance(relation, SparseRelation):
            return cls(rest, held_out, False, relation.mask is not None)
        return cls(rest, held_out, True, False)


def split_validation(training: TrainingSet, seed: int) -> ValidationSplit | str:
    """A part of the bridge that a second fit does not see; or why there can be none.

    A tenth of the pictures, at least 50 unless that is more than a third, at most 500, with all
    copies of a picture; then as many texts, first of all those that belong to these pictures.
    """
    copies = _same_rows(training.images)  # the number of each image's content
    pictures = int(copies.max()) + 1
    texts = len(training.texts)
    if min(pictures, texts) < FEWEST_PAIRS:
        return f"the bridge has fewer than {FEWEST_PAIRS} pictures or texts"
    rng = np.random.default_rng([seed, 0x5EE])
    drawn = rng.permutation(pictures)[: _share(pictures)]
    aside_x = np.flatnonzero(np.isin(copies, drawn))
    asks = training.relation.transposed_times(np.isin(copies, drawn)[:, None] * 1.0)[:, 0] > 0
    order = rng.permutation(texts)
    has_classes = not isinstance(training.relation, SparseRelation)
    if not has_classes:
        order = order[np.argsort(~asks[order], kind="stable")]
    aside_y = np.sort(order[: _share(texts)])
    try:
        rest = replace(
            training,
            **_part(training, _others(aside_x, len(copies)), _others(aside_y, texts)),
        )
    except DataError as error:  # what is left has no relation, or nothing else
        return f"without the part kept aside, {error}"
    held_out = AuxiliarySet(**_part(training, aside_x, aside_y))
    if not held_out.relation.positives:
        return "none of the pictures and texts kept aside are related"
    return ValidationSplit.of(rest, held_out)


def validate(
    hasher: Hasher,
    training: TrainingSet,
    folder: Path,
    learn: Callable[[Hasher, TrainingSet, Path, Track, World], Hasher],
    track: Track,
    world: World,
) -> dict[str, Any]:
    """What a second fit, of all but a part, finds of that part; `unknown` says why it cannot.

    Kept in `folder` until the run is saved, so that a fit that was killed goes on from there.
    """
    if training.images.ndim > 2:
        return {"unknown": "pixels are trained on for too long to do it twice"}
    settings = {name: value for name, value in hasher.settings().items() if name != "device"}
    name = fingerprint(settings, training)
    kept = world.first(lambda: _kept(folder / "scores.json", name))
    if kept is not None:
        return kept
    question = split_validation(training, hasher.seed)
    if isinstance(question, str):
        return {"unknown": question}

    def named(items: Any, description: str, total: int | None = None, start: int = 0) -> Any:
        return track(items, f"verdict, {description}", total, start)

    try:
        tried = learn(replace(hasher), question.rest, folder, named, world)
    except DataError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return {"unknown": f"without the part kept aside, {error}"}
    score_at_k = score_validation(question, tried, named)
    if world.rank == 0:
        write_json(folder / "scores.json", {"name": name, **score_at_k})
        (folder / "metrics.jsonl").unlink(missing_ok=True)
    return score_at_k


def score_validation(question: ValidationSplit, tried: Hasher, track: Track) -> dict[str, Any]:
    """The method, the baselines fitted on the same rest, and chance, on the same captions."""
    images, texts, related = _distinct(question.held_out)
    first = _FIRST
    if not question.has_classes:  # one in twenty by chance, also where little is kept aside
        first = min(_FIRST, max(1, len(images) // 20))
    x, y = tried.project_auxiliary(images, texts)
    # The query's real values against stored bits, as the page ranks.
    differing = (x.shape[1] - _signs(x) @ _signs(y).T) / 2
    scores: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    scores = {THE_METHOD: (np.tanh(x) @ _signs(y).T, np.tanh(y) @ _signs(x).T)}
    for kind in track(list(BASELINES), "baselines"):
        table = kind().fit(question.rest).score(images, texts)
        scores[kind.name] = (table, table.T)
    scores["chance"] = (np.zeros(related.shape), np.zeros(related.T.shape))
    values = {
        name: [
            score_at_k(
                np.round(table.astype(np.float64), 9),
                truth,
                first,
                has_classes=question.has_classes,
            )
            for table, truth in zip(both, (related, related.T))
        ]
        for name, both in scores.items()
    }
    return {
        "texts": int(related.any(axis=0).sum()),
        "pictures": len(images),
        "first": min(first, len(images)),
        "counted": "right kind" if question.has_classes else "found",
        "clicked": question.has_clicks,
        "image_to_text": {name: _mean(way) for name, (way, _) in values.items()},
        "text_to_image": {name: _mean(way) for name, (_, way) in values.items()},
        "better": _better(values),
        "related_by_distance": fit_calibration(
            differing, related, x.shape[1], counted=question.has_classes
        ),
    }


def score_at_k(
    scores: npt.NDArray[Any], related: npt.NDArray[np.bool_], first: int, *, has_classes: bool
) -> _Numbers:
    """Of each query with an answer: the share of the first results that is right, or whether one
    is; in expectation over the orders of equal scores."""
    encode_queries = related.any(axis=1)
    scores, related = scores[encode_queries], related[encode_queries]
    first = min(first, scores.shape[1])
    edge = -np.partition(-scores, first - 1, axis=1)[:, first - 1, None]
    above, at = scores > edge, scores == edge
    sure = (above & related).sum(axis=1)
    tied, right = at.sum(axis=1), (at & related).sum(axis=1)
    left = first - above.sum(axis=1)  # places that the tied ones share, 1 or more
    if has_classes:
        return np.asarray((sure + left * right / tied) / first)
    wrong = tied - right
    nothing = np.where(wrong >= left, np.exp(_choose(wrong, left) - _choose(tied, left)), 0.0)
    return np.where(sure > 0, 1.0, 1.0 - nothing)


def validation_summary(scores: dict[str, Any]) -> str:
    """In words, with chance and the baselines beside."""
    if "unknown" in scores:
        return f"How well captions find their pictures cannot be told: {scores['unknown']}."
    of, first, texts = scores["text_to_image"], scores["first"], scores["texts"]
    if scores["counted"] == "right kind":
        beside = ", ".join(f"{said} {first * of[name]:.1f}" for name, said in _NAMES.items())
        return (
            f"For {texts:,} captions kept aside, {first * of[THE_METHOD]:.1f} of the first {first} "
            f"pictures are of the right kind (chance {first * of['chance']:.1f}, {beside})."
        )
    whose = "a picture clicked for them" if scores["clicked"] else "their picture"
    where = f"among the first {first} of" if first > 1 else "first of"
    beside = ", ".join(f"{said} {of[name]:.0%}" for name, said in _NAMES.items())
    return (
        f"Of {texts:,} captions kept aside, {of[THE_METHOD]:.0%} find {whose} {where} "
        f"{scores['pictures']:,} (chance {of['chance']:.0%}, {beside})."
    )


def baseline_advice(
    scores: dict[str, Any], covered: dict[str, Any], method: str, transfers: bool
) -> str | None:
    """Whether to take a baseline instead, in a sentence; None if none is ahead.

    A baseline that is ahead inside the bridge is not therefore ahead on the target: of single
    pictures real values tell more than bits, but they do not carry over as a method does that
    `transfers`, i.e. learned from target items too. Through COCO pairs ridge regression finds 68%
    and THN 54%, yet on Tiny-ImageNet and questions MAP is .57 against .75, and so wherever the
    bridge explained the target by .58 or more. Where it explained .25, kNN was ahead in P@10.
    """
    ahead = scores.get("better")
    if ahead is None:
        return None
    better = _NAMES[ahead].capitalize()
    explained = [covered[part]["explained"] for part in ("pictures", "texts") if part in covered]
    least = min((value for value in explained if value is not None), default=0.0)
    if transfers and scores["counted"] != "right kind" and least >= _EXPLAINED:
        return (
            f"{better}: ahead inside the bridge, where real values tell single pictures apart; "
            "that seldom carries over to other files (docs/evaluation.md)."
        )
    return f"{better}: better here than {method}; docs/methods.md, Baselines, says how to use it."


def _better(values: dict[str, list[_Numbers]]) -> str | None:
    """The best baseline that is ahead in both directions together by more than chance explains."""
    ahead = {}
    for kind in BASELINES:
        gain = np.concatenate([a - b for a, b in zip(values[kind.name], values[THE_METHOD])])
        error = float(gain.std(ddof=1)) / len(gain) ** 0.5 if len(gain) > 1 else np.inf
        if gain.mean() > _SURE * error:
            ahead[kind.name] = float(gain.mean())
    return max(ahead, key=lambda name: ahead[name]) if ahead else None


def _distinct(held_out: AuxiliarySet) -> tuple[Features, Features, npt.NDArray[np.bool_]]:
    """Images, texts and what answers what; said or shown twice, it is one text or one image."""
    of_image, of_text = _same_rows(held_out.images), _same_rows(held_out.texts)
    n, m = held_out.relation.shape
    rows, columns = np.nonzero(held_out.relation.block(np.arange(n), np.arange(m))[0] > 0)
    related = np.zeros((of_image.max() + 1, of_text.max() + 1), np.bool_)
    related[of_image[rows], of_text[columns]] = True
    first_x, first_y = (np.unique(of, return_index=True)[1] for of in (of_image, of_text))
    return held_out.images[first_x], held_out.texts[first_y], related


def _same_rows(features: Features) -> Rows:
    """A number for each row, the same for equal rows, in the order of their first one."""
    numbers: dict[bytes, int] = {}
    content = np.ascontiguousarray(features)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in content], np.int64)


def _share(total: int) -> int:
    return min(_MOST, max(total // 10, min(_ENOUGH, total // 3)))


def _part(training: AuxiliarySet, rows: Rows, columns: Rows) -> dict[str, Any]:
    relation: Relation = training.relation.subset(rows, columns)
    return {"images": training.images[rows], "texts": training.texts[columns], "relation": relation}


def _others(rows: Rows, total: int) -> Rows:
    return np.setdiff1d(np.arange(total), rows)


def _signs(projections: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.where(projections > 0, 1, -1).astype(np.float32)


def _choose(n: npt.NDArray[Any], k: npt.NDArray[Any]) -> _Numbers:
    """log of n over k; where k > n any number."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1))


def _mean(values: _Numbers) -> float:
    return round(float(values.mean()), 4)


def _kept(path: Path, name: str) -> dict[str, Any] | None:
    """What a fit that was killed had found out, if it was this very one."""
    if not path.exists():
        return None
    try:
        score_at_k = read_json(path)
    except DataError:
        return None
    if not isinstance(score_at_k, dict) or score_at_k.pop("name", None) != name:
        return None
    return score_at_k
