"""The benchmark data of an experiment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from transhash.errors import DataError
from transhash.experiments import read_plan
from transhash.experiments.runner import open_benchmark

LINES = 'methods = ["QCH"]\nbits = [8]\nseeds = [0]\n'


def opened(tmp_path: Path, lines: str, root: Path | None) -> tuple[object, str]:
    (tmp_path / "plan.toml").write_text(lines + LINES)
    return open_benchmark(read_plan(tmp_path / "plan.toml"), root)


def test_missing_sizes_shrink_to_what_the_data_allow(folder: Path, tmp_path: Path) -> None:
    benchmark, _ = opened(tmp_path, 'benchmark = "folder"\ntarget = 7\n', folder)
    assert (benchmark.sizes.queries, benchmark.sizes.target) == (24, 7)
    assert benchmark.sizes.auxiliary < 72


def test_other_data_have_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    _, first = opened(tmp_path, 'benchmark = "folder"\n', folder)
    changed = tmp_path / "tiny"
    shutil.copytree(folder, changed)
    lines = (changed / "texts.tsv").read_text().splitlines(keepends=True)
    (changed / "texts.tsv").write_text("".join(lines[:-1]))
    assert opened(tmp_path, 'benchmark = "folder"\n', changed)[1] != first


def test_synthetic_data_are_created_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "cache"))
    benchmark, _ = opened(tmp_path, 'benchmark = "synthetic"\nper_class = 4\n', None)
    assert benchmark.name == "synthetic"
    assert len(benchmark.images) == 48
    assert (tmp_path / "cache" / "synthetic-0-4" / "auxiliary.tsv").exists()


def test_a_folder_of_the_other_protocol_is_rejected(folder: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "tiny"
    shutil.copytree(folder, prepared)
    (prepared / "benchmark.json").write_text(json.dumps({"protocol": "imagenet-yahooqa"}))
    assert opened(tmp_path, 'benchmark = "imagenet-yahooqa"\n', prepared)[0]
    with pytest.raises(DataError, match="prepared for imagenet-yahooqa"):
        opened(tmp_path, 'benchmark = "nus-wide"\n', prepared)


@pytest.mark.parametrize(
    ("benchmark", "has_root", "phrase"),
    [
        ("folder", False, "--root"),
        ("nus-wide", False, "--root"),
        ("nus-wide", True, "no benchmark.json"),
        ("synthetic", True, "Remove --root"),
    ],
)
def test_a_missing_or_needless_root_is_an_error(
    folder: Path, tmp_path: Path, benchmark: str, has_root: bool, phrase: str
) -> None:
    with pytest.raises(DataError, match=phrase):
        opened(tmp_path, f'benchmark = "{benchmark}"\n', folder if has_root else None)
