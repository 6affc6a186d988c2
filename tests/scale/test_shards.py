"""Evaluation in shards: counts add up to the scores of the whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transhash.cli.scale import evaluate_shards
from transhash.codes import Codes
from transhash.errors import DataError
from transhash.evaluation import evaluate_both


def small_task() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    parts = {"query_image": 20, "query_text": 15, "database_image": 101, "database_text": 83}
    codes, labels = {}, {}
    for name, count in parts.items():
        packed = generator.integers(0, 4, (count, 2), dtype=np.uint8)
        codes[name + "s"] = Codes(packed, 16)
        labels[name + "_labels"] = generator.random((count, 5)) < 0.3
    return SimpleNamespace(**codes), SimpleNamespace(**labels)


def test_shards_added_up_give_the_scores_of_the_whole(tmp_path: Path) -> None:
    codes, task = small_task()
    folders = [tmp_path / f"shard-{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(folders, 1):
        assert evaluate_shards(codes, task, f"{number}/3", folder, []) is None
    for definition, at in (("all", None), ("found", 50)):
        whole = evaluate_both(
            codes.query_images, codes.query_texts, codes.database_images, codes.database_texts,
            image_query_labels=task.query_image_labels, text_query_labels=task.query_text_labels,
            image_database_labels=task.database_image_labels,
            text_database_labels=task.database_text_labels, definition=definition, at=at,
        )  # fmt: skip
        assert evaluate_shards(codes, task, None, None, folders[::-1], definition, at) == whole


def test_a_missing_or_doubled_shard_is_refused(tmp_path: Path) -> None:
    codes, task = small_task()
    folders = [tmp_path / f"shard-{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(folders, 1):
        evaluate_shards(codes, task, f"{number}/3", folder, [])
    with pytest.raises(DataError, match="shard 2 is missing"):
        evaluate_shards(codes, task, None, None, [folders[0], folders[2]])
    with pytest.raises(DataError, match="are both shard 1"):
        evaluate_shards(codes, task, None, None, [folders[0], folders[0]])
    evaluate_shards(codes, task, "2/2", tmp_path / "other", [])
    with pytest.raises(DataError, match="shards of 2 and 3 parts"):
        evaluate_shards(codes, task, None, None, [folders[0], tmp_path / "other"])
    with pytest.raises(DataError, match="no finished shard"):
        evaluate_shards(codes, task, None, None, [tmp_path])


@pytest.mark.parametrize("shard", ["0/3", "4/3", "2", "a/b", ""])
def test_a_wrong_shard_is_refused(shard: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="takes i/n"):
        evaluate_shards(*small_task(), shard, tmp_path, [])
