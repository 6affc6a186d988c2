"""Shards of codes: the bits of the plain path, restartable, bad items listed."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from transhash.cli import load_commands
from transhash.codes import Codes
from transhash.data.collection import Collection
from transhash.data.manifest import read_images, read_texts
from transhash.errors import DataError
from transhash.model.encode_job import encode_shards
from transhash.model.encoder import Encoder
from transhash.model.shards import read_shards, shard_path


@pytest.fixture
def pictures(data: Path, tmp_path: Path) -> Path:
    """A folder of 36 pictures, one more that is none and one that is cut short."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for path in read_images(data / "images.tsv").items:
        shutil.copy(path, folder / path.name)
    good = sorted(folder.iterdir())
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "cut.png").write_bytes(good[0].read_bytes()[:200])
    return folder


def codes_of(folder: Path) -> tuple[list[str], Codes]:
    parts = list(read_shards(folder))
    return [name for part in parts for name in part.ids], Codes.concatenate(p.codes for p in parts)


def test_shards_hold_the_bits_of_the_plain_path_and_list_what_was_skipped(
    run: Path, pictures: Path, tmp_path: Path
) -> None:
    images = read_images(pictures)
    outcome = encode_shards(run, images, "images", tmp_path / "codes", shard_size=10)
    expected, kept, problems = Encoder.load(run).encode_images(images)
    ids, codes = codes_of(tmp_path / "codes")
    assert ids == list(kept.ids)
    assert codes == expected
    assert (outcome.codes, outcome.shards, outcome.already_done) == (36, 4, 0)
    assert outcome.problems == problems
    assert {Path(problem.source).name for problem in problems} == {"broken.jpg", "cut.png"}


def test_an_interrupted_job_goes_on_and_encodes_nothing_twice(
    run: Path, data: Path, tmp_path: Path
) -> None:
    texts, folder = read_texts(data / "texts.tsv"), tmp_path / "codes"
    shown: list[tuple[int, int | None]] = []

    def cut_in_the_second(items: Any, description: str, total: Any = None, start: int = 0) -> Any:
        shown.append((start, total))
        for number, item in enumerate(items):
            yield item
            if number == 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_shards(run, texts, "texts", folder, shard_size=8, track=cut_in_the_second)
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert len(written) == 2
    outcome = encode_shards(run, texts, "texts", folder, shard_size=8)
    assert (outcome.already_done, outcome.shards, outcome.codes) == (2, 5, len(texts))
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    ids, codes = codes_of(folder)
    assert ids == list(texts.ids)
    assert codes == Encoder.load(run).encode_texts(texts)
    assert shown == [(0, len(texts))]


def test_a_kill_while_the_job_was_noted_is_no_reason_to_refuse(
    run: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "codes"
    folder.mkdir()
    (folder / ".job.json.0123456789ab.draft").write_text('{"modal')
    outcome = encode_shards(run, read_texts(data / "texts.tsv"), "texts", folder)
    assert outcome.codes
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "part-000000.parquet"]


def test_a_shard_of_bad_items_only_is_no_reason_to_stop(run: Path, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    images: Collection[Path] = Collection(["a", "b"], [tmp_path / "a.jpg", tmp_path / "b.jpg"])
    outcome = encode_shards(run, images, "images", tmp_path / "codes")
    assert (outcome.codes, len(outcome.problems)) == (0, 2)


def test_a_folder_of_another_job_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    texts, folder = read_texts(data / "texts.tsv"), tmp_path / "codes"
    encode_shards(run, texts, "texts", folder, shard_size=20)
    with pytest.raises(DataError, match="another job \\(its shard_size differ\\)"):
        encode_shards(run, texts, "texts", folder, shard_size=10)
    fewer: Collection[str] = Collection(texts.ids[:5], texts.items[:5])
    with pytest.raises(DataError, match="its items, input differ"):
        encode_shards(run, fewer, "texts", folder, shard_size=20)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear reader")
    with pytest.raises(DataError, match="holds other files"):
        encode_shards(run, texts, "texts", tmp_path / "full")
    shard_path(folder, 1).unlink()
    with pytest.raises(DataError, match="give the encode command again"):
        list(read_shards(folder))


def test_the_command_writes_shards_or_one_file(run: Path, data: Path, tmp_path: Path) -> None:
    table = tmp_path / "notes.csv"
    table.write_text("id,text\na,a red boat\nb,\nc,the old cat\n")
    command = CliRunner()

    def call(*arguments: Any) -> str:
        result = command.invoke(load_commands(), ["encode", str(run), *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.output

    said = call("--texts", table, "--out", tmp_path / "shards", "--shard-size", 1)
    assert "2 codes in 2 shards" in " ".join(said.split())
    call("--texts", table, "--out", tmp_path / "codes.parquet")
    call("--texts", table, "--out", tmp_path / "codes.npy")
    ids, codes = codes_of(tmp_path / "shards")
    one = pq.read_table(tmp_path / "codes.parquet")
    assert ids == one["id"].to_pylist() == ["a", "c"]
    assert b"".join(one["code"].to_pylist()) == codes.packed.tobytes()
    assert np.array_equal(np.load(tmp_path / "codes.npy"), codes.packed)
    refused = command.invoke(load_commands(), ["encode", str(run), "--out", str(tmp_path / "x")])
    assert isinstance(refused.exception, DataError)


@pytest.mark.slow
def test_ray_writes_the_same_bits_and_goes_on_where_it_stopped(
    run: Path, pictures: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs the ray extra: pip install 'transhash[ray]'")
    import ray

    images = read_images(pictures)
    here = encode_shards(run, images, "images", tmp_path / "here", shard_size=10)
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        object_store_memory=200_000_000,
        _temp_dir=tempfile.mkdtemp(),  # pytest's is too long for a socket
    )  # fmt: skip
    try:
        there = encode_shards(
            run, images, "images", tmp_path / "there", shard_size=10, executor="ray", workers=2
        )
        assert there == here
        assert codes_of(tmp_path / "there")[0] == codes_of(tmp_path / "here")[0]
        assert codes_of(tmp_path / "there")[1] == codes_of(tmp_path / "here")[1]
        shard_path(tmp_path / "there", 2).unlink()
        again = encode_shards(
            run, images, "images", tmp_path / "there", shard_size=10, executor="ray", workers=1
        )
        assert (again.already_done, again.codes) == (3, 36)
        # A job begun here is finished there: one folder, either engine.
        assert json.loads((tmp_path / "there" / "job.json").read_text()) == json.loads(
            (tmp_path / "here" / "job.json").read_text()
        )
    finally:
        ray.shutdown()
