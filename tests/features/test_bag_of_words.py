import numpy as np
import pytest

from transhash.errors import DataError, NotFittedError
from transhash.features.words import BagOfWords

TEXTS = ["A dog runs on the beach", "the dog sleeps", "a cat on the beach", "the cat sleeps"] * 3


def test_similar_texts_are_nearer_than_others() -> None:
    words = BagOfWords().fit(TEXTS)
    a, b, c = words.transform(["dog on a beach", "the DOG runs, beach!", "cat sleeps"])
    assert a @ b > a @ c


def test_unknown_words_give_a_zero_row_and_are_said_to_be_unknown() -> None:
    words = BagOfWords().fit(TEXTS)
    assert not words.transform(["xylophone quartz"]).any()
    assert words.known_words("the xylophone dog") == ["the", "dog"]
    assert words.unknown_words("the xylophone dog") == ["xylophone"]


def test_a_saved_vocabulary_gives_the_same_rows() -> None:
    words = BagOfWords().fit(TEXTS)
    again = BagOfWords().restore(words.vocabulary_, words.state())
    assert np.array_equal(again.transform(TEXTS), words.transform(TEXTS))


def test_the_reduction_never_asks_for_more_than_there_is() -> None:
    assert BagOfWords(dimensions=1000).fit(TEXTS).transform(TEXTS).shape[1] < 12


def test_texts_without_a_common_word_are_explained() -> None:
    with pytest.raises(DataError, match="no word occurs in two"):
        BagOfWords().fit(["alpha", "beta", "gamma"])


def test_an_unfitted_bag_of_words_says_so() -> None:
    with pytest.raises(NotFittedError):
        BagOfWords().transform(["x"])


def test_a_word_said_three_times_counts_twice_as_much_as_one_said_once() -> None:
    words = BagOfWords().fit(TEXTS)
    thrice, asked = words.transform(["dog dog dog cat", "dog cat"])
    dog, cat = words.components_.T[[words.vocabulary_.index(word) for word in ("dog", "cat")]]
    assert np.allclose(thrice, (2 * dog + cat) / np.sqrt(5), atol=1e-6)
    assert np.allclose(asked, (dog + cat) / np.sqrt(2), atol=1e-6)
