"""A run is kept in step with folders and files, and tells what it holds."""

from __future__ import annotations

import json
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
    told = said(command, "index", "run", "--sync", "mine", "--sync", "notes.txt")
    assert "2 added, 1 updated, 2 unchanged, 2 forgotten, 0 skipped" in told
    assert shown(held, "images").keys() == {"a.png", "d.png", "sub/c.png", "yours/a.png"}
    assert sorted(filter(None, shown(held, "texts").values())) == ["a boat with sails", "a red car"]
    assert verify_run(held) == []
    told = said(command, "index", "run", "--sync", "mine", "--sync", "notes.txt")
    assert "0 added, 0 updated, 5 unchanged, 0 forgotten" in told


def test_a_folder_of_notes_is_kept_in_step_though_pictures_come_to_lie_in_it(
    run: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "diary"
    folder.mkdir()
    for name, text in (("a.md", "a boat with sails"), ("b.txt", "the cat sleeps")):
        (folder / name).write_text(text)
    command("index", "run", "--sync", "diary")
    assert shown(run, "texts") == {"a.md": "a boat with sails", "b.txt": "the cat sleeps"}
    (folder / "a.md").write_text("a boat without sails")
    (folder / "b.txt").rename(folder / "c.txt")
    old_photo(folder / "sketch.png", "red")
    told = said(command, "index", "run", "--sync", "diary")
    assert "1 added, 1 updated, 0 unchanged, 1 forgotten, 1 skipped" in told
    assert shown(run, "texts") == {"a.md": "a boat without sails", "c.txt": "the cat sleeps"}


def test_a_dry_run_says_what_sync_does_and_changes_nothing(
    held: Path, tmp_path: Path, command: Command
) -> None:
    change_files(tmp_path)
    before = shown(held, "images"), shown(held, "texts")
    told = said(command, "index", "run", "--sync", "mine", "--sync", "notes.txt", "--dry-run")
    assert "would forget image b.png" in told
    assert "mine: images: would add 1, update 1, forget 1; 1 are unchanged" in told
    assert "notes.txt: texts: would add 1, update 0, forget 1; 1 are unchanged" in told
    assert (shown(held, "images"), shown(held, "texts")) == before


def test_a_dry_run_promises_no_picture_that_cannot_be_read(
    held: Path, tmp_path: Path, command: Command
) -> None:
    whole = (tmp_path / "mine" / "a.png").read_bytes()
    (tmp_path / "mine" / "cut.png").write_bytes(whole[: len(whole) // 2])
    done = command("index", "run", "--sync", "mine", "--dry-run")
    assert "would add 0, update 0, forget 0; 3 are unchanged" in done.out
    assert "mine/cut.png: damaged image" in done.err


def test_a_folder_that_was_moved_without_a_word_is_noticed_and_the_words_are_said(
    held: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "mine").rename(tmp_path / "moved")
    done = command("index", "run", "--sync", "moved")
    assert "0 added, 0 updated, 3 unchanged" in done.out
    assert f"3 of these are known from {tmp_path / 'mine'}, which is not there" in done.err
    pair = done.err.split("--root '")[1].split("'")[0]
    assert "3 items of" in said(command, "index", "run", "--root", pair)
    assert "warning" not in command("index", "run", "--sync", "moved").err


def test_lists_in_a_pipe_keep_a_name_on_one_line(
    held: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    long = tmp_path / "mine" / ("a name as long as people give them " * 4 + ".png")
    old_photo(long, "red")
    command("index", "run", "--sync", "mine")
    assert str(long) in command("list", "run").out


def test_a_source_that_is_gone_or_empty_forgets_nothing_unless_that_is_meant(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine")
    sentence = "its 3 images in this run were not forgotten: if they are to go, add --forget-all"
    assert sentence in command.refused("index", "run", "--sync", "mine")
    (tmp_path / "mine").mkdir()
    assert sentence in command.refused("index", "run", "--sync", "mine")
    (tmp_path / "notes.txt").write_text("")
    assert "its 2 texts" in command.refused("index", "run", "--sync", "notes.txt")
    assert len(shown(held, "images")) == 4
    assert "3 forgotten" in said(command, "index", "run", "--sync", "mine", "--forget-all")
    assert shown(held, "images").keys() == {"yours/a.png"}
    assert verify_run(held) == []


def test_files_in_a_folder_that_cannot_be_entered_are_not_forgotten(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine" / "sub")
    (tmp_path / "mine" / "sub").symlink_to("sub")  # leads to itself
    (tmp_path / "mine" / "b.png").write_bytes(b"")  # being copied, perhaps
    assert "0 forgotten" in said(command, "index", "run", "--sync", "mine")
    assert {"b.png", "sub/c.png"} <= shown(held, "images").keys()


def test_a_new_source_is_of_the_kind_it_holds_and_asked_about_if_it_holds_both(
    held: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "more.csv").write_text("id,text\nx,a red boat\n")
    assert "1 added" in said(command, "index", "run", "--sync", "more.csv")
    both = tmp_path / "both.csv"
    both.write_text("image,text\nmine/a.png,a boat\nmine/b.png,a cat\n")
    assert "holds images and texts" in command.refused("index", "run", "--sync", "both.csv")
    command("index", "run", "--texts", "both.csv")
    both.write_text("image,text\nmine/a.png,a boat\n")
    assert "0 added, 0 updated, 1 unchanged, 1 forgotten" in said(
        command, "index", "run", "--sync", "both.csv"
    )


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
    command("index", "run", "--sync", "mine")
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
    assert "3 items of" in said(command, "index", "run", "--root", "mine=disk/ours")
    read.clear()
    told = said(command, "index", "run", "--sync", "disk/ours")
    assert "0 added, 0 updated, 3 unchanged, 0 forgotten" in told
    assert read == []
    with opened(held, writable=False) as engine:
        item = engine.catalog.find("images", "sub/c.png")
    assert item is not None
    assert item.source == str(tmp_path / "disk" / "ours" / "sub" / "c.png")
    assert verify_run(held) == []
    assert "no item of this run is from" in command.refused(
        "index", "run", "--root", "nowhere=disk/ours"
    )
    assert "does not exist" in command.refused("index", "run", "--root", "mine=gone")


def test_a_moved_folder_that_was_indexed_there_before_loses_nothing(
    held: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    old_photo(tmp_path / "copy" / "a.png", "white")
    command("index", "run", "--images", "copy")
    command("index", "run", "--root", "mine=copy")
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
    assert "there is no image 'zebra'" in done.err
    assert "2 forgotten; 3 images and 1 texts are searchable" in " ".join(done.out.split())
    assert shown(held, "images").keys() == {"a.png", "sub/c.png", "yours/a.png"}
    assert "no image 'b.png', no text '9'" in command.refused(
        "remove", "run", "--images", "b.png", "--texts", "9"
    )
    assert "nothing to remove" in command.refused("remove", "run")
    assert verify_run(held) == []


def test_list_shows_items_by_origin_and_shortens_texts_that_json_has_whole(
    held: Path, tmp_path: Path, command: Command
) -> None:
    long = "a boat " * 400
    (tmp_path / "long.csv").write_text(f"id,text\nlong,{long}\n")
    command("index", "run", "--texts", "long.csv")
    assert "2 of 7 items" in said(command, "list", "run", "-n", 2)
    mine = command("list", "run", "--origin", "mine", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in mine] == ["a.png", "b.png", "sub/c.png"]
    assert json.loads(mine[0])["source"] == str(tmp_path / "mine" / "a.png")
    table = command("list", "run", "--origin", "long.csv").out
    assert "..." in table
    assert len(table) < 800
    whole = json.loads(command("list", "run", "--origin", "long.csv", "--json").out)
    assert whole["text"] == long.strip()
    found = command("search", "run", "--image", "mine/a.png", "-k", 9).out
    assert len(found) < 4000
    assert "images or texts" in command.refused("list", "run", "--among", "sounds")


def test_info_tells_what_a_run_is_and_where_its_items_are_from(
    held: Path, tmp_path: Path, command: Command
) -> None:
    facts = json.loads(command("info", "run", "--json").out)
    assert (facts["method"], facts["bits"]) == ("CVH", 16)
    assert (facts["images"], facts["texts"]) == (4, 2)
    assert {(Path(row["origin"]).name, row["items"]) for row in facts["origins"]} == {
        ("mine", 3), ("yours", 1), ("notes.txt", 2),
    }  # fmt: skip
    assert facts["bytes"] > 1000
    table = said(command, "info", "run")
    assert "3 images from" in table
    assert facts["model"] in table.replace(" ", "")
    assert "is not a folder" in command.refused("info", "nowhere")


def test_list_and_info_read_the_first_format(indexed_run: Path, command: Command) -> None:
    assert "5 of 5 items" in said(command, "list", "run")
    facts = json.loads(command("info", "run", "--json").out)
    assert sum(row["items"] for row in facts["origins"]) == 5
    assert "older format" in command.refused("index", "run", "--sync", "photos", "--dry-run")


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
        assert "nowhere is not a folder" in command.refused("serve", "nowhere", "--port", port)
