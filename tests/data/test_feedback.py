"""Votes added to labels, pairs and clicks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transhash.data.collection import AuxiliaryCollection, Collection
from transhash.data.feedback import (
    FeedbackRelation,
    Vote,
    add_votes,
    drop_votes,
    is_feedback_file,
    read_votes,
)
from transhash.data.relation import GradedRelation, LabelRelation, Relation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.errors import DataError

LABELS = LabelRelation.from_classes(["a", "b", "b", "c"], ["a", "b", "c"])
PAIRS = SparseRelation.from_pairs(["1", "2", "3", "4"], ["1", "2", "3"])
CLICKS = SparseRelation.from_triples([(0, 0), (1, 1), (3, 0)], [1, 1, 0], (4, 3))
BASES = {
    "labels": LABELS,
    "pairs": PAIRS,
    "both": GradedRelation(LABELS, PAIRS),
    "clicks": CLICKS,
}
VOTES = {(0, 0): 1, (1, 0): 0, (1, 1): 1}  # on two more images and texts
ROWS, COLUMNS = np.arange(6), np.arange(5)


def with_votes(base: Relation) -> FeedbackRelation:
    return FeedbackRelation.extend(base, VOTES, 2, 2)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_only_the_votes_are_known_about_voted_items(base: Relation) -> None:
    s, known = with_votes(base).block(ROWS, COLUMNS)
    own, mask = base.block(np.arange(4), np.arange(3))
    assert known is not None
    assert np.array_equal(s[:4, :3], own)
    assert np.array_equal(known[:4, :3], np.ones((4, 3)) if mask is None else mask)
    assert s[4:, 3:].tolist() == [[1, 0], [0, 1]]
    assert known[4:, 3:].tolist() == [[1, 0], [1, 1]]
    for part in (s, known):
        assert not part[:4, 3:].any()
        assert not part[4:, :3].any()
    assert with_votes(base).positives == s.sum()
    assert with_votes(base).known == known.sum()


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_subset_equals_the_block_of_its_rows(base: Relation) -> None:
    rows, columns = np.array([5, 0, 3, 4]), np.array([4, 1, 3])
    part = with_votes(base).subset(rows, columns)
    expected = with_votes(base).block(rows, columns)
    for block, other in zip(part.block(np.arange(4), np.arange(3)), expected):
        assert np.array_equal(block, other)
    assert part.voted_images.tolist() == [True, False, False, True]


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_products_weight_voted_items_like_others_on_average(base: Relation) -> None:
    relation = with_votes(base)
    of_image = relation.times(np.ones((5, 1)))[:, 0]
    of_text = relation.transposed_times(np.ones((6, 1)))[:, 0]
    s = relation.block(ROWS, COLUMNS)[0]
    assert np.array_equal(of_image > 0, s.any(axis=1))
    assert np.array_equal(of_text > 0, s.any(axis=0))
    assert np.array_equal(of_image[:4], s.sum(axis=1)[:4])
    images, texts = (
        of_image[4:].mean() / of_image[:4].mean(),
        of_text[3:].mean() / of_text[:3].mean(),
    )
    assert np.isclose((images / 4 + texts / 3) / (1 / 4 + 1 / 3), 1, atol=0.15)
    assert of_image.sum() == pytest.approx(of_text.sum())


def test_partners_of_voted_images_are_voted_texts() -> None:
    sample = with_votes(LABELS).sample_partners(np.array([4, 5, 0]), np.random.default_rng(0))
    assert sample.tolist() == [3, 4, 0]


def test_dropping_votes_restores_the_training_set() -> None:
    x, y = (
        np.random.default_rng(0).normal(size=(6, 3)),
        np.random.default_rng(1).normal(size=(5, 2)),
    )
    before = drop_votes(TrainingSet(x, y, with_votes(LABELS)))
    assert np.array_equal(before.images, x[:4])
    assert np.array_equal(before.texts, y[:3])
    assert isinstance(before.relation, LabelRelation)
    assert before.relation.positives == LABELS.positives


def auxiliary() -> AuxiliaryCollection:
    ids = ["1", "2", "3"]
    images, texts = Collection(ids, [b"one", b"two", b"three"]), Collection(ids, ["a", "b", "c"])
    return AuxiliaryCollection.from_collections(images, texts)


def test_voted_items_are_appended_once_and_the_last_vote_counts() -> None:
    votes = [Vote(b"x", "a", 1), Vote(b"x", "d", 1), Vote(b"x", "a", 0)]
    both = add_votes(auxiliary(), votes)
    assert list(both.images.items) == [b"one", b"two", b"three", b"x"]
    assert list(both.texts.items) == ["a", "b", "c", "a", "d"]
    s, known = both.relation.block(np.array([3]), np.arange(5))
    assert s.tolist() == [[0, 0, 0, 0, 1]]
    assert known is not None
    assert known.tolist() == [[0, 0, 0, 1, 1]]
    assert len(set(both.images.ids)) == 4


def test_votes_cannot_be_added_to_features() -> None:
    features = Collection(["1"], [b""], features=np.ones((1, 2)))
    part = AuxiliaryCollection(
        features, Collection(["1"], ["a"]), SparseRelation.from_pairs(["1"], ["1"])
    )
    with pytest.raises(DataError, match="set of features"):
        add_votes(part, [Vote(b"x", "a", 1)])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v.csv", 'image,text,vote\np.png,"a, b",1\np.png,c,0\np.png,c,2\nq.png,c,1\n,c,1\n'),
        (
            "v.tsv",
            "Text\tImage\tVote\na, b\tp.png\t1\nc\tp.png\t0\nc\tp.png\t\nc\tq.png\t1\nc\t\t1\n",
        ),
        (
            "v.jsonl",
            '{"image": "p.png", "text": "a, b", "vote": 1}\n'
            '{"image": "p.png", "text": "c", "vote": 0}\n'
            '{"image": "p.png", "text": "c", "vote": true}\n'
            '{"image": "q.png", "text": "c", "vote": 1}\nno json\n',
        ),
    ],
)
def test_votes_are_read_from_files_and_bad_rows_are_skipped(
    tmp_path: Path, name: str, content: str
) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    file = tmp_path / name
    file.write_text(content, "utf-8")
    assert is_feedback_file(file)
    votes, problems = read_votes(file)
    assert votes == [Vote(tmp_path / "p.png", text, v) for text, v in (("a, b", 1), ("c", 0))]
    assert len(problems) == 3
    file.write_text(content.split("\n")[0] if name[-1] == "v" else "{}")
    with pytest.raises(DataError, match="no votes"):
        read_votes(file)


def test_a_relation_of_ids_is_not_a_feedback_file(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    for content in ("image,text,value\na,b,1\n", "a,b,1\n", ""):
        file.write_text(content)
        assert not is_feedback_file(file)
    assert not is_feedback_file(tmp_path / "nothing.csv")
