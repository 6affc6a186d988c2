"""Running the demo again in the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_run import copy_small_run
from transhash.cli.demo import delete_outdated_index
from transhash.search.catalog import Catalog


@pytest.mark.parametrize(
    ("is_demo", "same_model", "survives"),
    [(True, False, False), (True, True, True), (False, False, True)],
)
def test_only_a_demos_index_of_another_model_is_deleted(
    tmp_path: Path, is_demo: bool, same_model: bool, survives: bool
) -> None:
    run = copy_small_run(tmp_path)
    if is_demo:
        (run / "results.json").write_text("[]")
    if not same_model:
        (run / "catalog.sqlite").unlink()
        with Catalog(run / "catalog.sqlite") as catalog:
            catalog.get_or_set("model", "another")
    delete_outdated_index(run)
    assert (run / "index").exists() == survives
    assert (run / "catalog.sqlite").exists() == survives
    assert (run / "hasher.safetensors").exists()
