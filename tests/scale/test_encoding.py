"""Encoding to shards: the codes of Encoder, resumable, skipped items listed."""

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
def images_folder(data: Path, tmp_path: Path) -> Path:
    """A folder of 36 images, one file that is not an image and one that is truncated."""
    folder = tmp_path / "images"
    folder.mkdir()
    for path in read_images(data / "images.tsv").items:
        shutil.copy(path, folder / path.name)
    readable = sorted(folder.iterdir())
    (folder / "broken.jpg").write_bytes(b"not an image")
    (folder / "truncated.png").write_bytes(readable[0].read_bytes()[:200])
    return folder


def codes_of(folder: Path) -> tuple[list[str], Codes]:
    parts = list(read_shards(folder))
    return [name for part in parts for name in part.ids], Codes.concatenate(p.codes for p in parts)


def test_shards_have_the_codes_of_the_encoder_and_list_skipped_items(
    run: Path, images_folder: Path, tmp_path: Path
) -> None:
    images = read_images(images_folder)
    result = encode_shards(run, images, "images", tmp_path / "codes", shard_size=10)
    expected, readable, problems = Encoder.load(run).encode_images(images)
    ids, codes = codes_of(tmp_path / "codes")
    assert ids == list(readable.ids)
    assert codes == expected
    assert (result.codes, result.shards, result.already_done) == (36, 4, 0)
    assert result.problems == problems
    assert {Path(problem.source).name for problem in problems} == {"broken.jpg", "truncated.png"}


def test_an_interrupted_job_resumes_and_encodes_nothing_twice(
    run: Path, data: Path, tmp_path: Path
) -> None:
    texts, folder = read_texts(data / "texts.tsv"), tmp_path / "codes"
    calls: list[tuple[int, int | None]] = []

    def interrupt(items: Any, description: str, total: Any = None, start: int = 0) -> Any:
        calls.append((start, total))
        for number, item in enumerate(items):
            yield item
            if number == 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_shards(run, texts, "texts", folder, shard_size=8, track=interrupt)
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert len(times) == 2
    result = encode_shards(run, texts, "texts", folder, shard_size=8)
    assert (result.already_done, result.shards, result.codes) == (2, 5, len(texts))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    ids, codes = codes_of(folder)
    assert ids == list(texts.ids)
    assert codes == Encoder.load(run).encode_texts(texts)
    assert calls == [(0, len(texts))]


def test_a_leftover_draft_of_the_job_file_is_ignored(run: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "codes"
    folder.mkdir()
    (folder / ".job.json.0123456789ab.draft").write_text('{"modal')
    result = encode_shards(run, read_texts(data / "texts.tsv"), "texts", folder)
    assert result.codes
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "part-000000.parquet"]


def test_a_shard_may_have_only_unreadable_items(run: Path, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    images: Collection[Path] = Collection(["a", "b"], [tmp_path / "a.jpg", tmp_path / "b.jpg"])
    result = encode_shards(run, images, "images", tmp_path / "codes")
    assert (result.codes, len(result.problems)) == (0, 2)


def test_a_folder_of_another_job_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    texts, folder = read_texts(data / "texts.tsv"), tmp_path / "codes"
    encode_shards(run, texts, "texts", folder, shard_size=20)
    with pytest.raises(DataError, match="shard_size"):
        encode_shards(run, texts, "texts", folder, shard_size=10)
    fewer: Collection[str] = Collection(texts.ids[:5], texts.items[:5])
    with pytest.raises(DataError, match="items"):
        encode_shards(run, fewer, "texts", folder, shard_size=20)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear reader")
    with pytest.raises(DataError, match="other files"):
        encode_shards(run, texts, "texts", tmp_path / "full")
    shard_path(folder, 1).unlink()
    with pytest.raises(DataError, match="encode"):
        list(read_shards(folder))


def test_the_command_writes_shards_or_one_file(run: Path, data: Path, tmp_path: Path) -> None:
    table = tmp_path / "notes.csv"
    table.write_text("id,text\na,a red boat\nb,\nc,the old cat\n")
    command = CliRunner()

    def call(*arguments: Any) -> str:
        result = command.invoke(load_commands(), ["encode", str(run), *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.output

    printed = call("--texts", table, "--out", tmp_path / "shards", "--shard-size", 1)
    assert "2 codes in 2 shards" in " ".join(printed.split())
    call("--texts", table, "--out", tmp_path / "codes.parquet")
    call("--texts", table, "--out", tmp_path / "codes.npy")
    ids, codes = codes_of(tmp_path / "shards")
    one = pq.read_table(tmp_path / "codes.parquet")
    assert ids == one["id"].to_pylist() == ["a", "c"]
    assert b"".join(one["code"].to_pylist()) == codes.packed.tobytes()
    assert np.array_equal(np.load(tmp_path / "codes.npy"), codes.packed)
    result = command.invoke(load_commands(), ["encode", str(run), "--out", str(tmp_path / "x")])
    assert isinstance(result.exception, DataError)


def start_ray() -> None:
    """Start Ray on this machine; its server may need longer than Ray waits if others are busy."""
    import ray

    for attempt in range(3):
        try:
            ray.init(
                num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
                object_store_memory=200_000_000,
                _temp_dir=tempfile.mkdtemp(),  # the one of pytest is too long for a socket
            )  # fmt: skip
            return
        except RuntimeError:
            ray.shutdown()
            if attempt == 2:
                raise


@pytest.mark.slow
def test_ray_writes_the_same_codes_and_resumes(
    run: Path, images_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs the ray extra: pip install 'transhash[ray]'")
    import ray

    images = read_images(images_folder)
    local = encode_shards(run, images, "images", tmp_path / "local", shard_size=10)
    start_ray()
    try:
        on_ray = encode_shards(
            run, images, "images", tmp_path / "ray", shard_size=10, executor="ray", workers=2
        )
        assert on_ray == local
        assert codes_of(tmp_path / "ray")[0] == codes_of(tmp_path / "local")[0]
        assert codes_of(tmp_path / "ray")[1] == codes_of(tmp_path / "local")[1]
        shard_path(tmp_path / "ray", 2).unlink()
        again = encode_shards(
            run, images, "images", tmp_path / "ray", shard_size=10, executor="ray", workers=1
        )
        assert (again.already_done, again.codes) == (3, 36)
        # Both executors write the same job file, so either can resume the other.
        assert json.loads((tmp_path / "ray" / "job.json").read_text()) == json.loads(
            (tmp_path / "local" / "job.json").read_text()
        )
    finally:
        ray.shutdown()
