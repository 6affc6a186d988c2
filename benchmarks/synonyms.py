"""Search with everyday words that occur in almost no caption, and count correct results.

    python benchmarks/synonyms.py FOLDER
    python benchmarks/synonyms.py FOLDER --text-features all-MiniLM-L6-v2/ --bits 32
    python benchmarks/synonyms.py FOLDER --write-words WORDNET     # creates synonyms.csv

FOLDER is the benchmark folder of 16 classes. THN is fitted like `transhash fit` on all auxiliary
rows with their labels and on the unlabeled target; all target images are the database. Prints the
number of correct results in the top 10 for each word, ties in expectation, mean over seeds.

One rule selects the words in synonyms.csv. Candidates are the words of the class's sense in WordNet
3.0 and of all narrower senses: single lower-case words that do not contain the class name, are not
adjectives, and have this as their first sense. Of those in at most two captions (singular or
plural), the six most frequent per class that occur at least twice are used, where the frequency is
WordNet's tag count of the sense plus the number of definitions with the word. WORDNET is the folder
with data.noun, as in Debian's wordnet-base (`dpkg-deb -x`).
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
from transhash.features.stream import extract_readable
from transhash.hashers.thn import THN
from transhash.index.weighted import RankingMode, query_weights
from transhash.progress import progress_bar
from transhash.training.fit import Fit
from transhash.training.fit_data import read_fit_data

WORD_LIST = Path(__file__).with_name("synonyms.csv")
SENSES = {  # the first sense of the class name, and of banana the fruit
    label: f"{label}.1"
    for label in (
        "dog", "cat", "bird", "elephant", "cow", "sheep", "car", "bus", "train", "truck", "boat",
        "umbrella", "pizza", "beach", "bridge",
    )
} | {"banana": "banana.2"}  # fmt: skip
MAX_WORDS, MIN_FREQUENCY, MAX_CAPTIONS = 6, 2, 2


def select_words(folder: Path, wordnet: WordNet) -> list[tuple[str, str]]:
    """Return pairs of word and class, the most frequent words of a class first."""
    with (folder / "auxiliary.tsv").open(encoding="utf-8", newline="") as rows:
        captions = [row["text"].lower() for row in csv.DictReader(rows, delimiter="\t")]
    in_captions = Counter(word for text in captions for word in set(re.findall("[a-z]+", text)))
    in_definitions: Counter[str] = Counter()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (wordnet.folder / f"data.{part}").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                in_definitions.update(set(re.findall(r"\b[a-z]+\b", line.partition(" | ")[2])))
    lines = (wordnet.folder / "index.adj").read_text("utf-8").splitlines()
    adjectives = {line.split()[0] for line in lines if not line.startswith("  ")}
    result = []
    for label, name in SENSES.items():
        frequency = {}
        for sense in wordnet.below(wordnet.sense(name)):
            for word in wordnet.words(sense):
                if not re.fullmatch("[a-z]+", word) or label in word or word in adjectives:
                    continue
                # The index lists Ewe, a people, and ewe as one word.
                senses = [s for s in wordnet.senses[word] if word in wordnet.words(s)]
                forms = (word, f"{word}s")
                if senses[0] == sense and sum(in_captions[f] for f in forms) <= MAX_CAPTIONS:
                    tags = wordnet.tag_count(sense, word)
                    frequency[word] = sum(in_definitions[f] for f in forms) + tags
        frequent = sorted((-n, word) for word, n in frequency.items() if n >= MIN_FREQUENCY)
        result += [(word, label) for _, word in frequent[:MAX_WORDS]]
    return result


def count_correct(
    folder: Path,
    words: list[tuple[str, str]],
    bits: int,
    features: ImageFeatures,
    texts: str | None,
    ranking: RankingMode,
    seed: int,
) -> list[float]:
    """Return the number of correct results in the top 10 for each word."""
    data = read_fit_data(folder / "auxiliary.tsv", folder / "images.tsv", folder / "texts.tsv")
    with tempfile.TemporaryDirectory() as run:
        hasher = THN(bits=bits, seed=seed)
        fit = Fit(hasher, "THN", Path(run), features, texts, validate=False, track=progress_bar)
        encoder = fit.run_files(data).encoder
    projections = encoder.project_texts([word for word, _ in words])
    images = read_images(folder / "images.tsv", labeled=True)
    vectors, readable, _ = extract_readable(features, images, progress_bar)
    codes = Codes.from_projections(projections), encoder.hasher.encode_images(vectors)
    labels = (
        label_matrix([{label} for _, label in words], sorted(SENSES)),
        label_matrix(readable.labels or (), sorted(SENSES)),
    )
    weights = query_weights(projections, ranking)
    if weights is None:
        blocks = [DistanceHistogram.from_codes(*codes, *labels)]
    else:
        blocks = list(weighted_tie_groups(*codes, weights, *labels))
    precision = np.concatenate([block.precision_at(10) for block in blocks])
    return [float(10 * value) for value in precision]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write-words", type=Path, metavar="WORDNET", help="create synonyms.csv")
    parser.add_argument("--text-features")
    parser.add_argument("--image-features", default="efficientnet-lite0")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--ranking", choices=get_args(RankingMode), default="hamming")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="output file for the counts of every seed")
    options = parser.parse_args()
    if options.write_words:
        with WORD_LIST.open("w", encoding="utf-8", newline="") as out:
            rows = select_words(options.folder, WordNet(options.write_words))
            csv.writer(out, lineterminator="\n").writerows([("word", "label"), *rows])
        return
    with WORD_LIST.open(encoding="utf-8", newline="") as file:
        words = [(row["word"], row["label"]) for row in csv.DictReader(file)]
    features, texts = image_features(options.image_features), options.text_features
    results = [
        count_correct(options.folder, words, options.bits, features, texts, options.ranking, seed)
        for seed in options.seeds
    ]
    print(f"{texts or 'words'}, {features.name}, {options.bits} bits, {options.ranking} ranking")
    for (word, label), count in zip(words, np.mean(results, axis=0)):
        print(f"{word:<12} {label:<8} {count:4.1f}")
    enough = [sum(count >= 5 for count in counts) for counts in results]
    print(
        f"5 or more correct: {np.mean(enough):.1f} of {len(words)} words "
        f"({', '.join(map(str, enough))} by seed)"
    )
    if options.json:
        names = [word for word, _ in words]
        by_word = [dict(zip(names, counts)) for counts in results]
        options.json.write_text(json.dumps(by_word, indent=1))


if __name__ == "__main__":
    main()
