"""What a fit can tell without target labels: held-out retrieval and coverage.

Retrieval: the same method is fitted a second time without a part of the auxiliary set, and that
part is searched. This shows whether the training worked. It does not predict which method or which
text features are best on the target, so no baselines stand next to it. Text features are those of
the run, fitted on all texts: with text features of the rest alone THN finds as many.

Coverage: if the nearest auxiliary images of a target image show the same things, their captions
agree with each other and differ from those of the next image. If they are near for no reason, the
mean captions vary little. So

    coverage = (V(target) - V(random)) / (V(auxiliary) - V(random))

V is the variance of the mean partner of the k nearest auxiliary items: for target items, for k
random items, and for the auxiliary items themselves, each without itself. The distance between the
two sets does not matter: drawings are far from all posters and still found well. Measured with 600
pairs or more: .58 to 1.2 for matching sets, .25 for texts without class names, below .1 for
unrelated sets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from transhash.data.relation import Rows, SparseRelation
from transhash.data.training_set import AuxiliarySet, Features, TrainingSet
from transhash.errors import DataError
from transhash.features.words import Spelling, stop_words, tokenize
from transhash.hashers import Hasher
from transhash.hashers.baselines import NearestNeighbors, normalize_centered
from transhash.progress import phase
from transhash.training.calibration import fit_calibration

MIN_PAIRS = 30  # images and texts: fewer are not representative
METHOD_KEY = "method"  # next to "chance"

# Below these the coverage is low. With few items the ten nearest are not near: posters then cover
# drawings by -.2, noise by -3.
_LOW_COVERAGE, _LOW_COVERAGE_OF_FEW, _FEW_ITEMS = 0.1, -0.5, 300
_MAX_SAMPLE = 2000  # auxiliary items compared with the others
_MAX_MISSING_WORDS, _FREQUENT_WORDS = 5, 100  # listed, and selected from
_MIN_SPELLING = 0.65  # similarity: "dogs" and "dog" .7, "network" and "work" .6
_CHUNK_ROWS = 512

_MAX_HELD_OUT = 500  # the hit rate is then known to two points
_MIN_HELD_OUT = 50  # unless that is more than a third
_TOP_K = 10

_Matrix = npt.NDArray[np.float32]
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ValidationSplit:
    """The held-out part of an auxiliary set, and the rest to train on."""

    rest: TrainingSet
    held_out: AuxiliarySet
    has_classes: bool  # related by label: many results are correct, otherwise one image
    has_clicks: bool  # only some pairs are known

    @classmethod
    def from_parts(cls, rest: TrainingSet, held_out: AuxiliarySet) -> ValidationSplit:
        relation = rest.relation
        if isinstance(relation, SparseRelation):
            return cls(rest, held_out, False, relation.mask is not None)
        return cls(rest, held_out, True, False)


@phase("holding out pairs")
def split_validation(training: TrainingSet, seed: int) -> ValidationSplit:
    """Hold out a tenth of the images, with all copies, and as many texts; or raise DataError.

    At least 50 unless that is more than a third, at most 500. Texts of these images come first.
    """
    copies = _group_equal_rows(training.images)
    contents, texts = int(copies.max()) + 1, len(training.texts)
    if min(contents, texts) < MIN_PAIRS:
        raise DataError(
            f"The auxiliary set has fewer than {MIN_PAIRS} images or texts. Add more of them."
        )
    rng = np.random.default_rng([seed, 0x5EE])
    is_held_out = np.isin(copies, rng.permutation(contents)[: _held_out_size(contents)])
    images = np.flatnonzero(is_held_out)
    order = rng.permutation(texts)
    if isinstance(training.relation, SparseRelation):
        is_partner = training.relation.transposed_times(is_held_out[:, None] * 1.0)[:, 0] > 0
        order = order[np.argsort(~is_partner[order], kind="stable")]
    columns = np.sort(order[: _held_out_size(texts)])
    other_images = np.setdiff1d(np.arange(len(copies)), images)
    other_texts = np.setdiff1d(np.arange(texts), columns)
    try:
        rest = replace(training, **_subset(training, other_images, other_texts))
    except DataError as error:  # no relation or no items remain
        raise DataError(f"Too little remains without the held-out part. {error}") from None
    held_out = AuxiliarySet(**_subset(training, images, columns))
    if not held_out.relation.positives:
        raise DataError("No held-out image and text are related. Add more related pairs.")
    return ValidationSplit.from_parts(rest, held_out)


def score_validation(split: ValidationSplit, fitted: Hasher) -> dict[str, Any]:
    """Score a model fitted without the held-out part, and chance, on that part."""
    images, texts, related = _distinct(split.held_out)
    k = _TOP_K
    if not split.has_classes:  # one in twenty by chance, also with few held-out items
        k = min(_TOP_K, max(1, len(images) // 20))
    x, y = fitted.project_auxiliary(images, texts)
    differing = (x.shape[1] - _signs(x) @ _signs(y).T) / 2
    scores: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    # Real values of the query against stored bits, as the search page ranks.
    scores = {METHOD_KEY: (np.tanh(x) @ _signs(y).T, np.tanh(y) @ _signs(x).T)}
    scores["chance"] = (np.zeros(related.shape), np.zeros(related.T.shape))
    values = {
        name: [
            score_at_k(np.round(table.astype(np.float64), 9), truth, k, split.has_classes)
            for table, truth in zip(tables, (related, related.T))
        ]
        for name, tables in scores.items()
    }
    means = {name: [round(float(v.mean()), 4) for v in both] for name, both in values.items()}
    return {
        "texts": int(related.any(axis=0).sum()),
        "images": len(images),
        "k": min(k, len(images)),
        "metric": "precision" if split.has_classes else "hit_rate",
        "clicks": split.has_clicks,
        "image_to_text": {name: forward for name, (forward, _) in means.items()},
        "text_to_image": {name: backward for name, (_, backward) in means.items()},
        "calibration": fit_calibration(
            differing, related, x.shape[1], rate_known=split.has_classes
        ),
    }


def score_at_k(
    scores: npt.NDArray[Any], related: npt.NDArray[np.bool_], k: int, has_classes: bool
) -> _Numbers:
    """Return precision at k, or without classes the hit rate, of each query with a related item.

    Equal scores count in expectation over their orders.
    """
    has_answer = related.any(axis=1)
    scores, related = scores[has_answer], related[has_answer]
    k = min(k, scores.shape[1])
    edge = -np.partition(-scores, k - 1, axis=1)[:, k - 1, None]
    above, tied = scores > edge, scores == edge
    hits_above = (above & related).sum(axis=1)
    tied_count, tied_hits = tied.sum(axis=1), (tied & related).sum(axis=1)
    slots = k - above.sum(axis=1)  # ranks shared by the tied items, 1 or more
    if has_classes:
        return np.asarray((hits_above + slots * tied_hits / tied_count) / k)
    misses = tied_count - tied_hits
    no_hit = np.exp(_log_binomial(misses, slots) - _log_binomial(tied_count, slots))
    return np.where(hits_above > 0, 1.0, 1.0 - np.where(misses >= slots, no_hit, 0.0))


def validation_summary(scores: dict[str, Any], items: str = "captions") -> str:
    """Return the scores as a sentence; `items` names the texts that were held out."""
    if "skipped" in scores:
        return f"Training check skipped: {scores['skipped']}"
    values, k = scores["text_to_image"], scores["k"]
    result, chance = f"{values[METHOD_KEY]:.0%}", f"(chance {values['chance']:.0%})"
    count = f"{scores['texts']:,} held-out {items}"
    if scores["metric"] == "precision":
        return f"Training check: precision@{k} of {count} is {result} {chance}."
    image = "a clicked image" if scores["clicks"] else "their image"
    return (
        f"Training check: {result} of {count} find {image} in the top {k} of "
        f"{scores['images']:,} {chance}."
    )


@phase("coverage")
def measure_coverage(
    training: TrainingSet, captions: Sequence[str] | None, texts: Sequence[str] | None
) -> dict[str, Any]:
    """Return the coverage of target images, texts and words, as far as it can be measured."""
    coverage: dict[str, Any] = {}
    if training.images.ndim == 2:
        knn = NearestNeighbors().fit(training)
        for name, target, mean, auxiliary, partners in (
            ("images", training.target_images, knn.mean_x_, knn.images_, knn.texts_of_image_),
            ("texts", training.target_texts, knn.mean_y_, knn.texts_, knn.images_of_text_),
        ):
            if target is not None and len(auxiliary) >= MIN_PAIRS:
                queries = normalize_centered(target, mean)
                coverage[name] = _coverage(queries, auxiliary, partners, knn.n_neighbors)
    if captions and texts:
        coverage["words"] = _word_coverage(captions, texts)
    return coverage


def covers_better(captions: TrainingSet, concepts: AuxiliarySet) -> bool:
    """Return whether captions cover the target images and texts better than concepts do.

    Then concepts add nothing: on auxiliary sets that are searched by captions of the same sort,
    captions alone are as good (docs/auxiliary-set.md).
    """
    alone = TrainingSet(
        concepts.images, concepts.texts, concepts.relation,
        captions.target_images, captions.target_texts,
    )  # fmt: skip
    ours, theirs = (
        {name: values["coverage"] for name, values in measure_coverage(part, None, None).items()}
        for part in (captions, alone)
    )
    names = [name for name, value in theirs.items() if value is not None]
    return bool(names) and all((ours.get(name) or 0.0) > theirs[name] for name in names)


def coverage_summary(coverage: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the coverage as sentences, and warnings."""
    summary, warnings = [], []
    parts = [
        f"{name} {min(1, max(0, coverage[name]['coverage'])):.0%}"
        for name in ("images", "texts")
        if coverage.get(name, {}).get("coverage") is not None
    ]
    if parts:
        summary.append(f"Coverage of your files by the auxiliary set: {', '.join(parts)}.")
    if words := coverage.get("words"):
        summary.append(
            f"Vocabulary of your texts found in the captions: {words['weighted']:.0%} (weighted by "
            "rarity)."
        )
    for name in ("images", "texts"):
        if coverage.get(name, {}).get("is_low"):
            warnings.append(
                f"The auxiliary set does not cover your {name}: expect near-random results. "
                "Use an auxiliary set with similar content."
            )
    return summary, warnings


def _coverage(target: _Matrix, auxiliary: _Matrix, partners: _Matrix, k: int) -> dict[str, Any]:
    step = max(1, len(auxiliary) // _MAX_SAMPLE)
    sample_means = _mean_partners(auxiliary[::step], auxiliary, partners, k, skip_step=step)
    target_means = _mean_partners(target, auxiliary, partners, k)
    n = len(auxiliary)
    random = _variance(partners) / k * (n - k) / (n - 1)  # of k drawn without replacement
    gain, auxiliary_gain = _variance(target_means) - random, _variance(sample_means) - random
    value = None
    if auxiliary_gain > 0.05 * random:  # else auxiliary neighbors have nothing in common either
        value = round(gain / auxiliary_gain, 3)
    threshold = _LOW_COVERAGE if n >= _FEW_ITEMS else _LOW_COVERAGE_OF_FEW
    return {"coverage": value, "is_low": value is not None and value < threshold}


def _mean_partners(
    queries: _Matrix, items: _Matrix, partners: _Matrix, k: int, skip_step: int = 0
) -> _Matrix:
    """Return the mean partner of the k nearest items.

    With `skip_step` query i is item i · skip_step and is not its own neighbor.
    """
    means = np.zeros((len(queries), partners.shape[1]), np.float32)
    for start in range(0, len(queries), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        cosines = queries[rows] @ items.T
        if skip_step:
            numbers = np.arange(len(cosines))
            cosines[numbers, (start + numbers) * skip_step] = -np.inf
        for column in np.argpartition(-cosines, k - 1, axis=1)[:, :k].T:
            means[rows] += partners[column] / k
    return means


def _variance(rows: _Matrix) -> float:
    return float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())


def _word_coverage(captions: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Return which share of the target words occurs in the captions, inflections included.

    A word weighs the number of texts it occurs in, times the log of its rarity. Stop words are
    ignored.
    """
    caption_words = {word for text in captions for word in tokenize(text)}
    word_sets = [set(tokenize(text)) for text in texts]
    counts = Counter(word for words in word_sets for word in words)
    for word in (*stop_words(texts), *stop_words(captions)):
        counts.pop(word, None)
    if not caption_words or not counts:
        return {"weighted": 0.0, "missing_words": []}
    unknown = sorted(word for word in counts if word not in caption_words)
    similar = zip(unknown, Spelling(sorted(caption_words)).substitutes(unknown))
    missing = [word for word, (_, similarity) in similar if sum(similarity) < _MIN_SPELLING]
    weights = {word: n * math.log(1 + len(texts) / n) for word, n in counts.items()}
    missing_weight = sum(weights[word] for word in missing)
    return {
        "weighted": round(1 - missing_weight / sum(weights.values()), 3),
        "missing_words": _characteristic_words(missing, counts, word_sets)[:_MAX_MISSING_WORDS],
    }


def _characteristic_words(
    words: Sequence[str], counts: Counter[str], word_sets: Sequence[set[str]]
) -> list[str]:
    """Return frequent words that occur with words of their own: "sheep" before "which".

    They are ranked by the root of their count times the nats between the words around them and all
    words.
    """
    frequent = sorted(words, key=lambda word: (-counts[word], word))[:_FREQUENT_WORDS]
    total = sum(counts.values())
    ranks = {}
    for word in frequent:
        context = Counter(
            other for words in word_sets if word in words for other in words & counts.keys()
        )
        del context[word]
        size = sum(context.values())
        if not size:
            continue
        nats = sum(n / size * math.log(n / size * total / counts[w]) for w, n in context.items())
        by_chance = sum(1 - math.exp(-size * n / total) for n in counts.values()) / (2 * size)
        ranks[word] = (nats - by_chance) * math.sqrt(counts[word])
    return sorted(ranks, key=lambda word: (-ranks[word], word))


def _distinct(held_out: AuxiliarySet) -> tuple[Features, Features, npt.NDArray[np.bool_]]:
    """Return distinct images, distinct texts and which of them are related."""
    image_groups = _group_equal_rows(held_out.images)
    text_groups = _group_equal_rows(held_out.texts)
    n, m = held_out.relation.shape
    rows, columns = np.nonzero(held_out.relation.block(np.arange(n), np.arange(m))[0] > 0)
    related = np.zeros((image_groups.max() + 1, text_groups.max() + 1), np.bool_)
    related[image_groups[rows], text_groups[columns]] = True
    x, y = (np.unique(groups, return_index=True)[1] for groups in (image_groups, text_groups))
    return held_out.images[x], held_out.texts[y], related


def _group_equal_rows(features: Features) -> Rows:
    """Return a group number for each row, in the order of the first row of each group."""
    numbers: dict[bytes, int] = {}
    content = np.ascontiguousarray(features)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in content], np.int64)


def _held_out_size(total: int) -> int:
    return min(_MAX_HELD_OUT, max(total // 10, min(_MIN_HELD_OUT, total // 3)))


def _subset(training: AuxiliarySet, rows: Rows, columns: Rows) -> dict[str, Any]:
    relation = training.relation.subset(rows, columns)
    return {"images": training.images[rows], "texts": training.texts[columns], "relation": relation}


def _signs(projections: npt.NDArray[Any]) -> _Matrix:
    return np.where(projections > 0, 1, -1).astype(np.float32)


def _log_binomial(n: npt.NDArray[Any], k: npt.NDArray[Any]) -> _Numbers:
    """Return log(n over k); any number where k > n."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1))
