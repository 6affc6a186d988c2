"""A demo over what an earlier one wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_run import copy_small_run
from transhash.cli.demo import _forget_older_index
from transhash.model.files import model_digest
from transhash.search.catalog import Catalog


@pytest.mark.parametrize(
    ("by_a_demo", "by_this_model", "kept"),
    [(True, False, False), (True, True, True), (False, False, True)],
)
def test_only_an_earlier_demos_index_of_another_model_is_made_anew(
    tmp_path: Path, by_a_demo: bool, by_this_model: bool, kept: bool
) -> None:
    run = copy_small_run(tmp_path)
    if by_a_demo:
        (run / "results.json").write_text("[]")
    catalog = Catalog(run / "catalog.sqlite")
    catalog.get_or_set("model", model_digest(run) if by_this_model else "another")
    catalog.close()
    _forget_older_index(run)
    assert (run / "index").exists() == kept
    assert (run / "catalog.sqlite").exists() == kept
    assert (run / "hasher.safetensors").exists()
