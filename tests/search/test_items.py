"""A run is kept in step with folders and files, and tells what it holds."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest

from scale.command import Command
from transhash.data.manifest import read_images
from transhash.search.engine import SearchEngine
from transhash.search.sync import plan_sync, sync
from transhash.search.verify import verify_run

from .conftest import LONG_AGO, old_photo, photo
from .test_catalog import opened, shown
from .test_consistency import killed


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def held(run: Path, tmp_path: Path, command: Command) -> Path:
    """A run with mine/ (a, b, sub/c), yours/ (a) and notes.txt."""
    for name, colour in (("a", "red"), ("b", "blue"), ("sub/c", "green")):
        old_photo(tmp_path / "mine" / f"{name}.png", colour)
    old_photo(tmp_path / "yours" / "a.png", "yellow")
    (tmp_path / "notes.txt").write_text("a boat with sails\nthe cat sleeps\n")
    command("index", "run", "--images", "mine", "--texts", "notes.txt")
    command("index", "run", "--images", "yours")
    return run


def said(command: Command, *arguments: object) -> str:
    return " ".join(command(*arguments).out.split())


def change_files(folder: Path) -> None:
    old_photo(folder / "mine" / "a.png", "#123456", LONG_AGO + 9)
    (folder / "mine" / "b.png").unlink()
    old_photo(folder / "mine" / "d.png", "black")
    (folder / "notes.txt").write_text("a boat with sails\na red car\n")


def test_sync_adds_updates_and_forgets_what_vanished_and_leaves_other_origins(
    held: Path, tmp_path: Path, command: Command
) -> None:
    change_files(tmp_path)
    told = said(command, "sync", "run", "mine", "notes.txt")
    assert "added 2, updated 1, unchanged 2, removed 2, skipped 0" in told
    assert shown(held, "images").keys() == {"a.png", "d.png", "sub/c.png", "yours/a.png"}
    assert sorted(filter(None, shown(held, "texts").values())) == ["a boat with sails", "a red car"]
    assert verify_run(held) == []
    told = said(command, "sync", "run", "mine", "notes.txt")
    assert "added 0, updated 0, unchanged 5, removed 0" in told


def test_a_folder_of_notes_is_kept_in_step_though_pictures_come_to_lie_in_it(
    run: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "diary"
    folder.mkdir()
    for name, text in (("a.md", "a boat with sails"), ("b.txt", "the cat sleeps")):
        (folder / name).write_text(text)
    command("sync", "run", "diary")
    assert shown(run, "texts") == {"a.md": "a boat with sails", "b.txt": "the cat sleeps"}
    (folder / "a.md").write_text("a boat without sails")
    (folder / "b.txt").rename(folder / "c.txt")
    old_photo(folder / "sketch.png", "red")
    told = said(command, "sync", "run", "diary")
    assert "added 1, updated 1, unchanged 0, removed 1, skipped 1" in told
    assert shown(run, "texts") == {"a.md": "a boat without sails", "c.txt": "the cat sleeps"}


def test_a_dry_run_says_what_sync_does_and_changes_nothing(
    held: Path, tmp_path: Path, command: Command
) -> None:
    change_files(tmp_path)
    before = shown(held, "images"), shown(held, "texts")
    told = said(command, "sync", "run", "mine", "notes.txt", "--dry-run")
    assert "would remove image b.png" in told
    assert "mine, images: would add 1, update 1, remove 1, keep 1" in told
    assert "notes.txt, texts: would add 1, update 0, remove 1, keep 1" in told
    assert (shown(held, "images"), shown(held, "texts")) == before


def test_a_dry_run_promises_no_picture_that_cannot_be_read(
    held: Path, tmp_path: Path, command: Command
) -> None:
    whole = (tmp_path / "mine" / "a.png").read_bytes()
    (tmp_path / "mine" / "cut.png").write_bytes(whole[: len(whole) // 2])
    done = command("sync", "run", "mine", "--dry-run")
    assert "would add 0, update 0, remove 0, keep 3" in done.out
    assert "mine/cut.png: corrupt image" in done.err


def test_a_folder_that_was_moved_without_a_word_is_noticed_and_the_words_are_said(
    held: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "mine").rename(tmp_path / "moved")
    done = command("sync", "run", "moved")
    assert "added 0, updated 0, unchanged 3" in done.out
    assert f"3 items were indexed from {tmp_path / 'mine'}" in done.err
    advice = shlex.split(done.err.splitlines()[-1].split("run: transhash ")[1])
    assert "Moved 3 items" in said(command, *advice)
    assert "warning" not in command("sync", "run", "moved").err


def test_lists_in_a_pipe_keep_a_name_on_one_line(
    held: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    long = tmp_path / "mine" / ("a name as long as people give them " * 4 + ".png")
    old_photo(long, "red")
    command("sync", "run", "mine")
    assert str(long) in command("list", "run").out


def test_a_source_that_is_gone_or_empty_forgets_nothing_unless_that_is_meant(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine")
    assert "--allow-empty" in command.refused("sync", "run", "mine")
    (tmp_path / "mine").mkdir()
    assert "--allow-empty" in command.refused("sync", "run", "mine")
    (tmp_path / "notes.txt").write_text("")
    assert "--allow-empty" in command.refused("sync", "run", "notes.txt")
    assert len(shown(held, "images")) == 4
    assert "removed 3" in said(command, "sync", "run", "mine", "--allow-empty")
    assert shown(held, "images").keys() == {"yours/a.png"}
    assert verify_run(held) == []


def test_files_in_a_folder_that_cannot_be_entered_are_not_forgotten(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine" / "sub")
    (tmp_path / "mine" / "sub").symlink_to("sub")  # leads to itself
    (tmp_path / "mine" / "b.png").write_bytes(b"")  # being copied, perhaps
    assert "removed 0" in said(command, "sync", "run", "mine")
    assert {"b.png", "sub/c.png"} <= shown(held, "images").keys()


def test_a_new_source_is_of_the_kind_it_holds_and_asked_about_if_it_holds_both(
    held: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "more.csv").write_text("id,text\nx,a red boat\n")
    assert "added 1" in said(command, "sync", "run", "more.csv")
    both = tmp_path / "both.csv"
    both.write_text("image,text\nmine/a.png,a boat\nmine/b.png,a cat\n")
    assert "holds images and texts" in command.refused("sync", "run", "both.csv")
    command("index", "run", "--texts", "both.csv")
    both.write_text("image,text\nmine/a.png,a boat\n")
    assert "added 0, updated 0, unchanged 1, removed 1" in said(command, "sync", "run", "both.csv")


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("step", ["index.remove", "catalog.remove", "index.update"])
def test_a_sync_that_is_killed_leaves_catalog_and_index_in_agreement(
    held: Path, tmp_path: Path, command: Command, step: str
) -> None:
    change_files(tmp_path)

    def work(engine: SearchEngine) -> None:
        (source,) = plan_sync(engine.catalog, tmp_path / "mine")
        sync(engine, source)

    killed(held, work, step, "images")
    SearchEngine.open(held, writable=True).close()
    assert verify_run(held) == []
    command("sync", "run", "mine")
    assert shown(held, "images").keys() == {"a.png", "d.png", "sub/c.png", "yours/a.png"}
    assert verify_run(held) == []


def test_a_moved_folder_is_known_by_its_new_place_and_not_read_again(
    held: Path,
    tmp_path: Path,
    command: Command,
    read: list[str],
) -> None:
    (tmp_path / "disk").mkdir()
    shutil.move(tmp_path / "mine", tmp_path / "disk" / "ours")
    assert "Moved 3 items" in said(command, "move", "run", "mine", "disk/ours")
    read.clear()
    told = said(command, "sync", "run", "disk/ours")
    assert "added 0, updated 0, unchanged 3, removed 0" in told
    assert read == []
    with opened(held, writable=False) as engine:
        item = engine.catalog.find("images", "sub/c.png")
    assert item is not None
    assert item.path == str(tmp_path / "disk" / "ours" / "sub" / "c.png")
    assert verify_run(held) == []
    assert "No item was indexed from" in command.refused("move", "run", "nowhere", "disk/ours")
    assert "does not exist" in command.refused("move", "run", "mine", "gone")


def test_a_moved_folder_that_was_indexed_there_before_loses_nothing(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    old_photo(tmp_path / "copy" / "a.png", "white")
    command("index", "run", "--images", "copy")
    command("move", "run", "mine", "copy")
    assert shown(held, "images").keys() == {
        "a.png", "b.png", "sub/c.png", "yours/a.png", "copy/a.png",
    }  # fmt: skip
    assert verify_run(held) == []


def test_a_moved_run_folder_keeps_working(
    held: Path,
    tmp_path: Path,
    command: Command,
    read: list[str],
) -> None:
    expected = shown(held, "images")
    shutil.move(held, tmp_path / "elsewhere")
    assert shown(tmp_path / "elsewhere", "images") == expected
    read.clear()
    with opened(tmp_path / "elsewhere") as engine:
        assert engine.add_images(read_images(tmp_path / "mine")).unchanged == 3
    assert read == []
    assert verify_run(tmp_path / "elsewhere") == []


def test_remove_forgets_by_id_and_names_what_is_not_there(held: Path, command: Command) -> None:
    done = command("remove", "run", "--images", "b.png", "--images", "zebra", "--texts", "2")
    assert "image 'zebra'" in done.err
    assert "removed 2. The index has 3 images and 1 texts" in " ".join(done.out.split())
    assert shown(held, "images").keys() == {"a.png", "sub/c.png", "yours/a.png"}
    assert "image 'b.png', text '9'" in command.refused(
        "remove", "run", "--images", "b.png", "--texts", "9"
    )
    assert "Nothing to remove" in command.refused("remove", "run")
    assert verify_run(held) == []


def test_list_shows_items_by_origin_and_shortens_texts_that_json_has_whole(
    held: Path, tmp_path: Path, command: Command
) -> None:
    long = "a boat " * 400
    (tmp_path / "long.csv").write_text(f"id,text\nlong,{long}\n")
    command("index", "run", "--texts", "long.csv")
    assert "2 of 7 items" in said(command, "list", "run", "-n", 2)
    mine = command("list", "run", "--source", "mine", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in mine] == ["a.png", "b.png", "sub/c.png"]
    assert json.loads(mine[0])["path"] == str(tmp_path / "mine" / "a.png")
    table = command("list", "run", "--source", "long.csv").out
    assert "..." in table
    assert len(table) < 800
    whole = json.loads(command("list", "run", "--source", "long.csv", "--json").out)
    assert whole["text"] == long.strip()
    found = command("search", "run", "--image", "mine/a.png", "-k", 9).out
    assert len(found) < 4000
    assert "images or texts" in command.refused("list", "run", "--modality", "sounds")


def test_info_tells_what_a_run_is_and_where_its_items_are_from(
    held: Path, tmp_path: Path, command: Command
) -> None:
    facts = json.loads(command("info", "run", "--json").out)
    assert (facts["method"], facts["bits"]) == ("CVH", 16)
    assert (facts["images"], facts["texts"]) == (4, 2)
    assert {(Path(row["source"]).name, row["items"]) for row in facts["sources"]} == {
        ("mine", 3), ("yours", 1), ("notes.txt", 2),
    }  # fmt: skip
    assert facts["bytes"] > 1000
    table = said(command, "info", "run")
    assert "3 images from" in table
    assert facts["model"] in table.replace(" ", "")
    assert "is not a run folder" in command.refused("info", "nowhere")


def test_a_skipped_file_is_named_once(run: Path, tmp_path: Path, command: Command) -> None:
    photo(tmp_path / "mine" / "a.png", "red")
    (tmp_path / "mine" / "bad.png").write_text("no picture")
    (tmp_path / "mine" / "read.me").write_text("no picture")
    told = command("index", "run", "--images", tmp_path / "mine").err
    assert told.count("bad.png") == 1
    assert f"{tmp_path}/mine/read.me: not an image" in told


def test_a_missing_run_is_named_before_a_port_that_is_taken(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "nowhere is not a run folder" in command.refused("serve", "nowhere", "--port", port)
