"""Parts of `transhash open`: what it samples, indexes first and syncs, and when it fits again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transhash.data.collection import Collection
from transhash.search.catalog import Catalog
from transhash.search.engine import SearchEngine
from transhash.search.sync import plan_sync, sync
from transhash.training import open_run
from transhash.training.open_run import OpenOptions, OpenSource


def write_images(folder: Path, count: int, broken: tuple[int, ...] = ()) -> OpenSource:
    folder.mkdir(exist_ok=True)
    for n in range(count):
        Image.new("RGB", (8, 8), (n * 5, len(folder.name), 0)).save(folder / f"{n:02}.png")
        if n in broken:
            (folder / f"{n:02}.png").write_bytes(b"broken")
    return OpenSource.read(folder)


def counts(run: Path) -> dict[tuple[str, str], int]:
    """Return the number of items by the name of their folder and modality."""
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        return {(Path(name).name, kind): count for name, kind, count in catalog.sources.counts()}


@pytest.mark.parametrize(("count", "expected"), [(50, 20), (7, 7)])
def test_the_sample_has_several_items_of_a_small_folder_next_to_a_large_one(
    count: int, expected: int
) -> None:
    names = [[str(n) for n in range(size)] for size in (30_000, count)]
    sources = [OpenSource(Path(), Collection(ids, [Path(i) for i in ids]), None) for ids in names]
    large, small = open_run.take_samples(sources, "images")
    assert (len(large), len(small)) == (300, expected)


def test_if_no_image_of_a_sample_is_readable_a_larger_one_is_indexed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(open_run.SAMPLE_SIZES, "images", 30)
    first = np.random.default_rng(0).permutation(30)[:20]
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "note.txt").write_text("a red boat")
    large = write_images(tmp_path / "big", 50)
    small = write_images(tmp_path / "small", 30, tuple(first.tolist()))
    open_run.index_samples(run, [large, small])
    assert counts(run)["small", "images"] == 10


def test_a_folder_without_a_readable_image_is_named_and_synced_when_it_has_one(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_images(tmp_path / "images", 3, (0, 1, 2))
    open_run.index_samples(run, [source])
    assert f"{source.path}: None of the 3 images can be read" in caplog.text
    assert open_run.sync_paths(run, [source]) == [source.path]
    write_images(source.path, 2)
    with SearchEngine.open(run, writable=True) as engine:
        sync(engine.writer, plan_sync(engine.catalog, source.path))
    assert counts(run) == {("images", "images"): 2}


def test_a_new_table_of_images_and_texts_does_not_prevent_a_fit(run: Path, tmp_path: Path) -> None:
    """Also if files have moved to where it lists them."""
    source = write_images(tmp_path / "images", 4)
    open_run.index_samples(run, [source])
    rows = ["image,text"]
    for name in ("00.png", "01.png"):
        (source.path / name).rename(tmp_path / name)
        rows.append(f"{name},a boat")
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n")
    sources = [source, OpenSource.read(tmp_path / "captions.csv")]
    assert open_run.loss_by_refit(run, sources, OpenOptions()) == ""
    assert "lost 2 of 4 images" in open_run.loss_by_refit(run, [source], OpenOptions())


@pytest.mark.parametrize("left", ["catalog.sqlite", "catalog.sqlite-wal", "index", "votes.sqlite"])
def test_a_fit_uses_nothing_of_a_run_that_was_deleted_in_part(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FitWithoutLearning:
        def __init__(self, hasher: Any, method: str, out: Path, *_: Any, **__: Any) -> None:
            self.out = out

        def run_files(self, data: Any) -> None:
            self.out.mkdir(exist_ok=True)
            (self.out / "config.json").write_text("{}")

    monkeypatch.setattr(open_run, "Fit", FitWithoutLearning)
    draft = tmp_path / ".run.next"
    (draft / "index" if left == "index" else draft).mkdir(parents=True)
    if left != "index":
        (draft / left).write_text("of another model")
    (tmp_path / "note.txt").write_text("a boat")
    open_run.fit_sample(tmp_path / "run", [OpenSource.read(tmp_path)], OpenOptions())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "open.json",
    ]


def test_a_fit_that_was_interrupted_is_resumed_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    class InterruptedFit:
        def __init__(self, hasher: Any, method: str, out: Path, *_: Any, **__: Any) -> None:
            found.extend(path.name for path in out.iterdir())

        def run_files(self, data: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(open_run, "Fit", InterruptedFit)
    (tmp_path / ".run.next").mkdir()
    (tmp_path / ".run.next" / "checkpoint.safetensors").write_text("")
    (tmp_path / "note.txt").write_text("a boat")
    with pytest.raises(KeyboardInterrupt):
        open_run.fit_sample(tmp_path / "run", [OpenSource.read(tmp_path)], OpenOptions())
    assert found == ["checkpoint.safetensors"]
