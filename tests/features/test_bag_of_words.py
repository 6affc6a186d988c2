import numpy as np
import pytest

from transhash.errors import DataError, NotFittedError
from transhash.features.words import BagOfWords, WordFeatures

TEXTS = ["A dog runs on the beach", "the dog sleeps", "a cat on the beach", "the cat sleeps"] * 3


def test_similar_texts_are_nearer_than_others() -> None:
    words = BagOfWords().fit(TEXTS)
    a, b, c = words.transform(["dog on a beach", "the DOG runs, beach!", "cat sleeps"])
    assert a @ b > a @ c


def test_unknown_words_give_a_zero_row_and_are_listed() -> None:
    words = BagOfWords().fit(TEXTS)
    assert not words.transform(["xylophone quartz"]).any()
    assert words.known_words("the xylophone dog") == ["the", "dog"]
    assert words.unknown_words("the xylophone dog") == ["xylophone"]


def test_restored_features_give_the_same_rows() -> None:
    words = BagOfWords().fit(TEXTS)
    again = BagOfWords().restore(words.word_lists(), words.state())
    assert np.array_equal(again.transform(TEXTS), words.transform(TEXTS))


@pytest.mark.parametrize("features", [BagOfWords, WordFeatures])
def test_a_second_fit_leaves_nothing_of_the_first(
    features: type[BagOfWords] | type[WordFeatures],
) -> None:
    again = features().fit([*TEXTS, "a zebra and a lion", "the zebra or a lion"])
    again.transform(["a zebra"])
    again.fit(TEXTS)
    once = features().fit(TEXTS)
    assert again.word_lists() == once.word_lists()
    for name, array in once.state().items():
        np.testing.assert_array_equal(again.state()[name], array)
    np.testing.assert_array_equal(again.transform(TEXTS), once.transform(TEXTS))


def test_dimensions_are_limited_by_the_vocabulary() -> None:
    assert BagOfWords(dimensions=1000).fit(TEXTS).transform(TEXTS).shape[1] < 12


def test_texts_without_a_common_word_are_refused() -> None:
    with pytest.raises(DataError, match="two training texts"):
        BagOfWords().fit(["alpha", "beta", "gamma"])


def test_unfitted_features_are_refused() -> None:
    with pytest.raises(NotFittedError):
        BagOfWords().transform(["x"])


def test_a_word_that_occurs_three_times_counts_twice_as_much() -> None:
    words = BagOfWords().fit(TEXTS)
    thrice, once = words.transform(["dog dog dog cat", "dog cat"])
    dog, cat = words.components_[[words.vocabulary_.index(word) for word in ("dog", "cat")]]
    assert np.allclose(thrice, (2 * dog + cat) / np.sqrt(5), atol=1e-6)
    assert np.allclose(once, (dog + cat) / np.sqrt(2), atol=1e-6)
