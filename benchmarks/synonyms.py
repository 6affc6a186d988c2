"""Everyday words that no caption taught, typed into THN: how many of the first ten are right.

    python benchmarks/synonyms.py FOLDER
    python benchmarks/synonyms.py FOLDER --text-features all-MiniLM-L6-v2/ --bits 32
    python benchmarks/synonyms.py FOLDER --draw WORDNET     writes synonyms.csv anew

FOLDER is the three-part folder of 16 kinds. THN is fitted as `transhash fit` does, on all auxiliary
rows with their labels and the target without; all target images are the database. Printed for each
word: right ones of the first ten, ties in expectation, mean over seeds; `--ranking all` is how the
page ranks.

The words lie in synonyms.csv, drawn by one rule for all kinds. Candidates are the words of the
kind's sense in WordNet 3.0 and of all narrower senses: single ones in small letters that do not
contain the kind's own word, that are no adjectives, and of which this is the first sense. Of those
that at most two captions contain (singular or plural), the six most frequent of each kind are
taken that are met at least twice: frequency is WordNet's tag count of the sense plus the number of
definitions, of anything, that use the word. WORDNET is the folder with data.noun, as in Debian's
wordnet-base (`dpkg-deb -x`).
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
from third_party_sources import WordNet

from transhash.codes import Codes
from transhash.data.collection import label_matrix
from transhash.data.manifest import read_images
from transhash.evaluation import DistanceHistogram
from transhash.evaluation.scores import weighted_tie_groups
from transhash.features.images import ImageFeatures, image_features
from transhash.hashers.thn import THN
from transhash.index.weighted import RankingMode, query_weights
from transhash.model.encoder import extract_readable
from transhash.progress import progress_bar
from transhash.training.fit import InputPaths, fit_files, read_fit_data

LIST = Path(__file__).with_name("synonyms.csv")
SENSES = {  # the first sense of the kind's word, and of banana the fruit
    kind: f"{kind}.1"
    for kind in (
        "dog", "cat", "bird", "elephant", "cow", "sheep", "car", "bus", "train", "truck", "boat",
        "umbrella", "pizza", "beach", "bridge",
    )
} | {"banana": "banana.2"}  # fmt: skip
MOST, FEWEST, CAPTIONS = 6, 2, 2


def draw(folder: Path, wordnet: WordNet) -> list[tuple[str, str]]:
    """(word, kind) of every kind, the most frequent first."""
    with (folder / "auxiliary.tsv").open(encoding="utf-8", newline="") as rows:
        captions = [row["text"].lower() for row in csv.DictReader(rows, delimiter="\t")]
    told = Counter(word for text in captions for word in set(re.findall("[a-z]+", text)))
    used: Counter[str] = Counter()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (wordnet.folder / f"data.{part}").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                used.update(set(re.findall(r"\b[a-z]+\b", line.partition(" | ")[2])))
    listed = (wordnet.folder / "index.adj").read_text("utf-8").splitlines()
    adjectives = {line.split()[0] for line in listed if not line.startswith("  ")}
    found = []
    for kind, name in SENSES.items():
        frequency = {}
        for sense in wordnet.below(wordnet.sense(name)):
            for word in wordnet.words(sense):
                if not re.fullmatch("[a-z]+", word) or kind in word or word in adjectives:
                    continue
                # The index holds Ewe, a people, and ewe as one word.
                own = [one for one in wordnet.senses[word] if word in wordnet.words(one)]
                if own[0] == sense and told[word] + told[f"{word}s"] <= CAPTIONS:
                    tags = wordnet.tag_count(sense, word)
                    frequency[word] = used[word] + used[f"{word}s"] + tags
        frequent = sorted((-often, word) for word, often in frequency.items() if often >= FEWEST)
        found += [(word, kind) for _, word in frequent[:MOST]]
    return found


def right_of_ten(
    folder: Path,
    words: list[tuple[str, str]],
    bits: int,
    features: ImageFeatures,
    texts: str | None,
    ranking: RankingMode,
    seed: int,
) -> list[float]:
    sources = InputPaths(
        auxiliary=folder / "auxiliary.tsv",
        images=folder / "images.tsv",
        texts=folder / "texts.tsv",
    )
    with tempfile.TemporaryDirectory() as run:
        encoder, _ = fit_files(
            THN(bits=bits, seed=seed), "THN", read_fit_data(sources), Path(run), features,
            texts=texts, track=progress_bar,
        )  # fmt: skip
        projections = encoder.project_texts([word for word, _ in words])
    images = read_images(folder / "images.tsv", labelled=True)
    rows, kept, _ = extract_readable(features, images, progress_bar)
    kinds = sorted(SENSES)
    right = (
        Codes.from_projections(projections),
        encoder.hasher.encode_images(rows),
        label_matrix([{kind} for _, kind in words], kinds),
        label_matrix(kept.labels or (), kinds),
    )
    weights = query_weights(projections, ranking)
    if weights is None:
        blocks = [DistanceHistogram.of(*right)]
    else:
        blocks = list(weighted_tie_groups(right[0], right[1], weights, *right[2:]))
    shares = np.concatenate([block.precision_at(10) for block in blocks])
    return [float(10 * share) for share in shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draw", type=Path, metavar="WORDNET")
    parser.add_argument("--text-features")
    parser.add_argument("--image-features", default="efficientnet-lite0", help="as --features")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--ranking", choices=get_args(RankingMode), default="hamming")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="where every seed's counts go")
    arguments = parser.parse_args()
    if arguments.draw:
        with LIST.open("w", encoding="utf-8", newline="") as out:
            rows = draw(arguments.folder, WordNet(arguments.draw))
            csv.writer(out, lineterminator="\n").writerows([("word", "kind"), *rows])
        return
    with LIST.open(encoding="utf-8", newline="") as listed:
        words = [(row["word"], row["kind"]) for row in csv.DictReader(listed)]
    features, texts = image_features(arguments.image_features), arguments.text_features
    found = [
        right_of_ten(
            arguments.folder, words, arguments.bits, features, texts, arguments.ranking, seed
        )
        for seed in arguments.seeds
    ]
    print(
        f"{texts or 'words'}, {features.name}, {arguments.bits} bits, ranked by {arguments.ranking}"
    )
    for (word, kind), right in zip(words, np.mean(found, axis=0)):
        print(f"{word:<12} {kind:<8} {right:4.1f}")
    enough = [sum(right >= 5 for right in one) for one in found]
    print(
        f"5 or more right: {np.mean(enough):.1f} of {len(words)} words "
        f"({', '.join(map(str, enough))} by seed)"
    )
    if arguments.json:
        counts = [dict(zip((word for word, _ in words), one)) for one in found]
        arguments.json.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
