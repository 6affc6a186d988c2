import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from transhash.errors import DataError, NotFittedError
from transhash.features import words as words_module
from transhash.features.words import Spelling, WordFeatures, stop_words, tokenize
from transhash.storage import write_json, write_tensors

CLASSES = ("dog", "train", "pizza", "sailing boat", "umbrella", "cat", "bridge", "banana")
PLACES = ("beach", "street", "kitchen", "river", "garden", "harbour")
CAPTIONS = [f"the {thing} is on the {place}" for thing, place in product(CLASSES, PLACES)]


def cosine(words: WordFeatures, *texts: str) -> float:
    a, b = words.transform(texts)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_stop_words_are_found_without_a_list() -> None:
    assert set(stop_words(CAPTIONS)) == {"the", "is", "on"}
    foreign = [
        text.replace("the", "dze").replace("is", "qi").replace("on", "ut") for text in CAPTIONS
    ]
    assert {"dze", "qi", "ut"} <= set(WordFeatures().fit(foreign).stop_words_)


def test_a_frequent_word_with_a_topic_is_not_a_stop_word() -> None:
    about = ["dog bone leash", "dog leash park", "dog bark bone"] * 20
    others = ["car road wheel", "car wheel motor", "car road motor"] * 20
    assert stop_words(about + others) == []
    assert stop_words(["dog", "cat", "dog", "cat"]) == []  # the only word of its texts


def test_a_stop_word_of_one_collection_is_one_of_all() -> None:
    questions = [f"what was {thing}" for thing in CLASSES] * 6
    words = WordFeatures().fit(CAPTIONS, questions)
    assert {"the", "what", "was"} <= set(words.stop_words_)
    assert words.known_words("what was the dog") == ["dog"]


def test_rare_words_weigh_more_than_frequent_ones() -> None:
    words = WordFeatures().fit(
        [*CAPTIONS, *["the dog and the trombone"] * 2, *["a dog at night"] * 30]
    )
    assert cosine(words, "dog trombone", "trombone") > cosine(words, "dog trombone", "dog")


def test_inflections_and_compounds_count_like_similar_known_words() -> None:
    words = WordFeatures().fit(CAPTIONS)
    for unknown, known in (("dogs", "dog"), ("doggy", "dog"), ("umbrellas", "umbrella")):
        assert cosine(words, unknown, known) > 0.9 > cosine(words, unknown, "pizza")
        assert words.known_words(unknown) == [unknown]
    assert cosine(words, "riverside", "river") > cosine(words, "riverside", "garden")


def test_a_word_without_similar_ones_gives_a_zero_row_and_is_unknown() -> None:
    words = WordFeatures().fit(CAPTIONS)
    assert not words.transform(["xylophq zzz", "the"]).any()
    assert words.known_words("the xylophq on a dog") == ["dog"]
    assert "xylophq" in words.unknown_words("the xylophq on a dog")
    assert "dog" not in words.unknown_words("the xylophq on a dog")


def test_the_row_of_a_text_does_not_depend_on_other_texts() -> None:
    words = WordFeatures().fit(CAPTIONS)
    texts = ["doggy on the riverside", "dog dog dog", "", "pizza"]
    together = words.transform(texts)
    for row, text in zip(together, texts):
        assert np.allclose(
            WordFeatures().restore(words.word_lists(), words.state()).transform([text]), row
        )


def test_transform_changes_no_state() -> None:
    words = WordFeatures().fit(CAPTIONS)
    before = words.state()["components"].copy()
    words.transform(["lighthouse keeper"] * 50)
    assert np.array_equal(words.state()["components"], before)
    assert words.known_words("lighthouse") == []


@pytest.mark.parametrize(
    "texts",
    [["dog"], ["dog", "cat"], ["dog"] * 30, ["red dog", "", "!"], ["a dog"] * 3 + ["Über Café"]],
)
def test_very_few_and_very_short_texts_work(texts: list[str]) -> None:
    rows = WordFeatures().fit(texts).transform(texts)
    assert rows.shape[0] == len(texts)
    assert np.isfinite(rows).all()
    assert rows.any()


def test_texts_without_any_word_are_refused() -> None:
    with pytest.raises(DataError, match="two letters"):
        WordFeatures().fit(["!", "a", ""])


def test_a_large_vocabulary_is_limited_to_frequent_words() -> None:
    words = WordFeatures(vocabulary_limit=5).fit([*CAPTIONS, "accordion"])
    assert len(words.vocabulary_) <= 5
    assert "accordion" not in words.vocabulary_


def test_accents_and_case_are_ignored() -> None:
    assert tokenize("Ein CAFÉ, à Paris") == ["ein", "cafe", "paris"]


def test_unfitted_features_are_refused() -> None:
    with pytest.raises(NotFittedError):
        WordFeatures().transform(["x"])


def test_chance_in_few_texts_does_not_hide_a_stop_word() -> None:
    assert stop_words([f"um word{i}" if i % 5 else f"word{i}" for i in range(50)]) == ["um"]


def test_threads_may_share_word_features_while_their_table_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(words_module, "_MAX_CACHED_WORDS", 3)
    words = WordFeatures().fit(CAPTIONS)
    texts = [f"doggy umbrella{'s' * (i % 7)} unknown{i} dogs{i % 5}" for i in range(1500)]
    expected = [(words.transform([text])[0], words.known_words(text)) for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as executor:
            rows = list(executor.map(lambda text: words.transform([text])[0], texts))
            known = list(executor.map(words.known_words, texts))
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(rows, [row for row, _ in expected])
    assert known == [names for _, names in expected]
    assert len(words._columns) < 100  # the table stays small


def test_unknown_words_need_no_scikit_learn(tmp_path: Path) -> None:
    words = WordFeatures().fit(CAPTIONS)
    write_json(tmp_path / "words.json", words.word_lists())
    write_tensors(tmp_path / "state.safetensors", words.state())
    code = """
import sys
from pathlib import Path
from transhash.features.words import WordFeatures
from transhash.storage import read_json, read_tensors
words = WordFeatures().restore(
    read_json(Path("words.json")), read_tensors(Path("state.safetensors"))
)
print(words.transform(["doggy"]).any(), "sklearn" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout.split() == ["True", "False"], result.stderr


def test_spelling_equals_that_of_scikit_learn() -> None:
    names = sorted({word for text in CAPTIONS for word in tokenize(text)} | {"ab", "abc", "abcdef"})
    runs = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5))
    counts = runs.fit_transform(names).toarray()
    rare = 1 - np.log(counts.sum(axis=0) / len(names))
    unit = counts * rare / np.linalg.norm(counts * rare, axis=1, keepdims=True)
    queries = ["doggy", "umbrellas", "abcd", "ab", "zzz"]
    other = runs.transform(queries).toarray() * rare
    other /= np.maximum(np.linalg.norm(other, axis=1, keepdims=True), 1e-12)
    cosines = Spelling(names)._cosines(queries).toarray()
    np.testing.assert_allclose(cosines, other @ unit.T, atol=1e-6)
