"""`transhash open` as a user runs it: killed, given again, with files that came and went."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from scale.command import Command
from transhash.search.catalog import Catalog
from transhash.search.verify import verify_run

from .server_process import wait_until_ready

# The command with a smaller sample, and word features, which need no embeddings of the concepts.
# It dies at call number N of a function, if there is one.
_COMMAND = """
import os, signal, sys
from importlib import import_module
from transhash.training import fit, open_run
open_run.SAMPLE_SIZES = {"images": 20, "texts": 20}
open_run.default_text_features = lambda: "words"
place, number = sys.argv.pop(1).split(), int(sys.argv.pop(1))
if place:
    owner = import_module(place[0])
    for name in place[1:-1]:
        owner = getattr(owner, name)
    function, calls = getattr(owner, place[-1]), 0
    def call(*arguments, **keywords):
        global calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    setattr(owner, place[-1], call)
from transhash.cli import main
main()
"""
_KILLED_AT = [
    ("transhash.features.cache FeatureCache put", 1),  # while features are computed
    ("transhash.model.encoder Encoder save", 1),  # after the training
    ("transhash.training.open_run replace_folder", 1),  # the run is complete but has another name
    ("transhash.search.catalog Catalog mark_done", 1),  # texts are in the catalog and the index
    ("transhash.index.grouped.grouped GroupedIndex update", 2),  # images are in the catalog only
    ("transhash.service.sync_job SyncJob _sync_sources", 1),  # the page is open
    ("transhash.search.catalog Catalog mark_done", 1),  # the page is open, others are added
]


def write_images(folder: Path, names: list[str], seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(path)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "Meine Fotos ü"
    write_images(folder, [f"{year}/{n} a.png" for year in (2023, 2024) for n in range(15)])
    for n in range(25):
        thing = ("dog", "boat", "lemon", "bus", "church")[n % 5]
        (folder / f"note {n}.txt").write_text(f"number {n}: the {thing} of a friend")
    return folder


def start(arguments: list[str], point: str = "", number: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, point, str(number), "open", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def opened(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address and the lines printed until the first sync has ended."""
    process = start(arguments)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            output = "".join(lines)
            if "error" in line or ("Up to date" in output and "Search page" in output):
                break
        address = re.search(r"http://[\d.:]+/", "".join(lines))
        assert address, "".join(lines)
        yield address[0], lines
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def items_of(run: Path) -> list[tuple[str, str]]:
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        return sorted((item.modality, item.key) for item in catalog.sources.list_items())


def files_of(folder: Path) -> list[tuple[str, str]]:
    files = (path for path in folder.rglob("*") if path.suffix in (".png", ".txt"))
    return sorted(
        ("images" if path.suffix == ".png" else "texts", path.relative_to(folder).as_posix())
        for path in files
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_killed_at_any_point_and_given_again_it_loses_and_repeats_nothing(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "broken.jpg").write_text("")
    for n in range(8):  # printed after the image
        (photos / f"{n}.mp4").write_text("a film")
    run = tmp_path / "data" / "run"
    arguments = [str(photos), "--run", str(run), "--port", "0", "--no-browser"]
    for point, number in _KILLED_AT:
        process = start(arguments, point, number)
        output = process.communicate(timeout=300)[0]
        assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
    with opened(arguments) as (address, lines):
        assert not any("Learning" in line for line in lines)
        skipped = lines.index("Skipped 9 rows or files:\n")
        assert lines[skipped + 1] == f"  {photos / 'broken.jpg'}: is an empty file\n"
        assert lines[skipped + 9].startswith("  and 1 more")
        about = httpx.get(f"{address}api/about", timeout=60).json()
        assert (about["images"], about["texts"]) == (30, 25)
        wait_until_ready(address)
        reply = httpx.get(f"{address}api/search/text", params={"q": "a boat", "k": 50}, timeout=60)
        assert len(reply.json()["hits"]) == 30, reply.text
    assert items_of(run) == files_of(photos)
    assert verify_run(run) == []
    assert [path.name for path in run.parent.iterdir()] == ["run"]

    (photos / "2023" / "0 a.png").unlink()
    write_images(photos, ["2025/new.png", "2024/1 a.png"], seed=1)
    (photos / "note 0.txt").write_text("a house")
    os.utime(photos / "2024" / "1 a.png", (time.time() - 60,) * 2)
    with opened(arguments) as (address, lines):
        assert "added 1, updated 2, removed 1" in "".join(lines)
        again = start([str(photos), "--run", str(run), "--no-browser"])
        output = again.communicate(timeout=60)[0]
        assert again.returncode == 0
        assert f"open already at {address}" in output
    assert items_of(run) == files_of(photos)


@pytest.mark.slow
def test_texts_alone_can_be_opened_and_pairs_given_later_replace_the_model(
    photos: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for n in range(25):
        (photos / f"note {n}.txt").rename(notes / f"note {n}.txt")
    run = tmp_path / "run"
    arguments = [str(notes), "--run", str(run), "--port", "0", "--no-browser"]
    with opened(arguments) as (address, lines):
        assert any("Learning from 20 of 25 texts, built-in concepts" in line for line in lines)
        image = (photos / "2023" / "0 a.png").read_bytes()
        wait_until_ready(address)
        reply = httpx.post(f"{address}api/search/image", files={"image": image}, timeout=60)
        assert len(reply.json()["hits"]) == 24, reply.text
    model = (run / "config.json").read_text()
    rows = [f"{photos}/2024/{n} a.png,a boat number {n}" for n in range(15)]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(["image,text", *rows]))
    with opened([*arguments, "--auxiliary", str(pairs)]) as (_, lines):
        assert any("fitting the model again" in line for line in lines)
    assert (run / "config.json").read_text() != model
    with opened(arguments) as (_, lines):
        assert not any("fitting" in line for line in lines)
    with opened([str(notes), str(photos), *arguments[1:]]) as (_, lines):
        assert any("There were no images before" in line for line in lines)
    with opened([*arguments, "--text-features", "bag-of-words"]) as (_, lines):
        assert any("bag-of-words now, words before: fitting again" in line for line in lines)
        assert any(line.endswith("texts bag-of-words\n") for line in lines)
    with opened(arguments) as (_, lines):  # what was chosen stays
        assert not any("fitting" in line for line in lines)
    assert '"text_features": "bag-of-words"' in (run / "config.json").read_text()
    assert items_of(run) == sorted(files_of(notes) + files_of(photos))
    assert verify_run(run) == []


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [("", "", ""), ("drawing.svg", "<svg/>", "has no pixels"), ("photo.jpg", "", "an empty file")],
)
def test_a_folder_without_usable_files_is_refused(
    name: str, text: str, reason: str, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    if name:
        (folder / name).write_text(text)
    message = command.refused("open", folder, "--run", tmp_path / "run")
    assert "contain no image and no text" in message
    assert reason in message
    assert not (tmp_path / "run").exists()


def test_missing_sources_and_foreign_run_folders_are_refused(
    tmp_path: Path, command: Command, photos: Path
) -> None:
    assert "does not exist" in command.refused("open", tmp_path / "missing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.doc").write_text("mine")
    refused = command.refused("open", photos, "--run", tmp_path / "other", "--no-browser")
    assert "contains other files" in refused
    refused = command.refused("open", photos, "--features", "resnet", "--no-browser")
    assert "Unknown image features 'resnet'" in refused
    np.save(tmp_path / "features.npy", np.ones((3, 4), np.float32))
    assert "contains features" in command.refused("open", tmp_path / "features.npy")
