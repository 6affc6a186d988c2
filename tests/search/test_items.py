"""Sync, move, remove, list and info: keep a run up to date and show its items."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

from scale.command import Command
from transhash.data.manifest import read_images
from transhash.index.grouped.grouped import GroupedIndex
from transhash.search.engine import SearchEngine
from transhash.search.sync import plan_sync, sync
from transhash.search.verify import verify_run

from .conftest import LONG_AGO, old_photo, photo
from .test_catalog import searchable
from .test_consistency import kill_at


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def filled(run: Path, tmp_path: Path, command: Command) -> Path:
    """A run with mine/ (a, b, sub/c), yours/ (a) and notes.txt."""
    for name, color in (("a", "red"), ("b", "blue"), ("sub/c", "green")):
        old_photo(tmp_path / "mine" / f"{name}.png", color)
    old_photo(tmp_path / "yours" / "a.png", "yellow")
    (tmp_path / "notes.txt").write_text("a boat with sails\nthe cat sleeps\n")
    command("index", "run", "--images", "mine", "--texts", "notes.txt")
    command("index", "run", "--images", "yours")
    return run


def output(command: Command, *arguments: object) -> str:
    return " ".join(command(*arguments).out.split())


def change_files(folder: Path) -> None:
    old_photo(folder / "mine" / "a.png", "#123456", LONG_AGO + 9)
    (folder / "mine" / "b.png").unlink()
    old_photo(folder / "mine" / "d.png", "black")
    (folder / "notes.txt").write_text("a boat with sails\na red car\n")


def test_sync_adds_updates_and_removes_items_of_its_source_only(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    change_files(tmp_path)
    summary = output(command, "sync", "run", "mine", "notes.txt")
    assert "added 2, updated 1, unchanged 2, removed 2, skipped 0" in summary
    assert searchable(filled, "images").keys() == {"a.png", "d.png", "sub/c.png", "yours/a.png"}
    assert sorted(filter(None, searchable(filled, "texts").values())) == [
        "a boat with sails",
        "a red car",
    ]
    assert verify_run(filled) == []
    summary = output(command, "sync", "run", "mine", "notes.txt")
    assert "added 0, updated 0, unchanged 5, removed 0" in summary


def test_sync_of_a_folder_of_texts_skips_images_added_to_it(
    run: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "diary"
    folder.mkdir()
    for name, text in (("a.md", "a boat with sails"), ("b.txt", "the cat sleeps")):
        (folder / name).write_text(text)
    command("sync", "run", "diary")
    assert searchable(run, "texts") == {"a.md": "a boat with sails", "b.txt": "the cat sleeps"}
    (folder / "a.md").write_text("a boat without sails")
    (folder / "b.txt").rename(folder / "c.txt")
    old_photo(folder / "sketch.png", "red")
    summary = output(command, "sync", "run", "diary")
    assert "added 1, updated 1, unchanged 0, removed 1, skipped 1" in summary
    assert searchable(run, "texts") == {"a.md": "a boat without sails", "c.txt": "the cat sleeps"}


def test_a_dry_run_shows_what_sync_would_do_and_changes_nothing(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    change_files(tmp_path)
    before = searchable(filled, "images"), searchable(filled, "texts")
    summary = output(command, "sync", "run", "mine", "notes.txt", "--dry-run")
    assert "would remove image b.png" in summary
    assert "mine, images: would add 1, update 1, remove 1, keep 1" in summary
    assert "notes.txt, texts: would add 1, update 0, remove 1, keep 1" in summary
    assert (searchable(filled, "images"), searchable(filled, "texts")) == before


def test_a_dry_run_skips_an_unreadable_image(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    content = (tmp_path / "mine" / "a.png").read_bytes()
    (tmp_path / "mine" / "cut.png").write_bytes(content[: len(content) // 2])
    result = command("sync", "run", "mine", "--dry-run")
    assert "would add 0, update 0, remove 0, keep 3" in result.out
    assert "mine/cut.png: corrupt image" in result.err


def test_items_of_a_moved_folder_belong_to_the_new_folder(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert "added 0, updated 0, unchanged 3" in command("sync", "run", "moved").out
    assert "3 of 3 items" in command("list", "run", "--source", "moved").out
    (tmp_path / "moved" / "b.png").unlink()
    assert "removed 1" in command("sync", "run", "moved").out


def test_list_in_a_pipe_does_not_wrap_names(
    filled: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    long = tmp_path / "mine" / ("a rather long file name " * 6 + ".png")
    old_photo(long, "red")
    command("sync", "run", "mine")
    assert str(long) in command("list", "run").out


def test_items_of_a_missing_or_empty_source_are_removed_only_with_allow_shrink(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine")
    assert "--allow-shrink" in command.refused("sync", "run", "mine")
    (tmp_path / "mine").mkdir()
    assert "--allow-shrink" in command.refused("sync", "run", "mine")
    (tmp_path / "notes.txt").write_text("")
    assert "--allow-shrink" in command.refused("sync", "run", "notes.txt")
    assert len(searchable(filled, "images")) == 4
    assert "removed 3" in output(command, "sync", "run", "mine", "--allow-shrink")
    assert searchable(filled, "images").keys() == {"yours/a.png"}
    assert verify_run(filled) == []


def test_files_in_a_folder_that_cannot_be_entered_are_not_removed(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    shutil.rmtree(tmp_path / "mine" / "sub")
    (tmp_path / "mine" / "sub").symlink_to("sub")  # leads to itself
    (tmp_path / "mine" / "b.png").write_bytes(b"")  # may be being copied
    assert "removed 0" in output(command, "sync", "run", "mine")
    assert {"b.png", "sub/c.png"} <= searchable(filled, "images").keys()


def test_sync_of_a_new_source_with_images_and_texts_is_refused(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "more.csv").write_text("id,text\nx,a red boat\n")
    assert "added 1" in output(command, "sync", "run", "more.csv")
    both = tmp_path / "both.csv"
    both.write_text("image,text\nmine/a.png,a boat\nmine/b.png,a cat\n")
    assert "images and texts" in command.refused("sync", "run", "both.csv")
    command("index", "run", "--texts", "both.csv")
    both.write_text("image,text\nmine/a.png,a boat\n")
    assert "added 0, updated 0, unchanged 1, removed 1" in output(
        command, "sync", "run", "both.csv"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("step", ["index.remove", "catalog.remove", "index.update"])
def test_catalog_and_index_are_consistent_after_a_killed_sync(
    filled: Path, tmp_path: Path, command: Command, step: str
) -> None:
    change_files(tmp_path)

    def work(engine: SearchEngine) -> None:
        (plan,) = plan_sync(engine.catalog, tmp_path / "mine")
        sync(engine.writer, [plan])

    kill_at(step, filled, work, "images")
    SearchEngine.open(filled, writable=True).close()
    assert verify_run(filled) == []
    command("sync", "run", "mine")
    assert searchable(filled, "images").keys() == {"a.png", "d.png", "sub/c.png", "yours/a.png"}
    assert verify_run(filled) == []


def test_a_moved_folder_is_not_read_again(
    filled: Path,
    tmp_path: Path,
    command: Command,
    read_files: list[str],
) -> None:
    (tmp_path / "disk").mkdir()
    shutil.move(tmp_path / "mine", tmp_path / "disk" / "ours")
    assert "Moved 3 items" in output(command, "move", "run", "mine", "disk/ours")
    read_files.clear()
    summary = output(command, "sync", "run", "disk/ours")
    assert "added 0, updated 0, unchanged 3, removed 0" in summary
    assert read_files == []
    with SearchEngine.open(filled) as engine:
        item = engine.catalog.find("images", "sub/c.png")
    assert item is not None
    assert item.path == str(tmp_path / "disk" / "ours" / "sub" / "c.png")
    assert verify_run(filled) == []
    assert "No item was indexed from" in command.refused("move", "run", "nowhere", "disk/ours")
    assert "does not exist" in command.refused("move", "run", "mine", "gone")


def test_moving_to_a_source_that_is_indexed_loses_no_item(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    old_photo(tmp_path / "copy" / "a.png", "white")
    command("index", "run", "--images", "copy")
    command("move", "run", "mine", "copy")
    assert searchable(filled, "images").keys() == {
        "a.png", "b.png", "sub/c.png", "yours/a.png", "copy/a.png",
    }  # fmt: skip
    assert verify_run(filled) == []


def test_a_moved_run_folder_keeps_working(
    filled: Path,
    tmp_path: Path,
    command: Command,
    read_files: list[str],
) -> None:
    expected = searchable(filled, "images")
    shutil.move(filled, tmp_path / "elsewhere")
    assert searchable(tmp_path / "elsewhere", "images") == expected
    read_files.clear()
    with SearchEngine.open(tmp_path / "elsewhere", writable=True) as engine:
        assert engine.add_images(read_images(tmp_path / "mine")).unchanged == 3
    assert read_files == []
    assert verify_run(tmp_path / "elsewhere") == []


def test_remove_removes_by_id_and_names_unknown_ids(filled: Path, command: Command) -> None:
    result = command("remove", "run", "--images", "b.png", "--images", "zebra", "--texts", "2")
    assert "image 'zebra'" in result.err
    assert "removed 2. The index has 3 images and 1 texts" in " ".join(result.out.split())
    assert searchable(filled, "images").keys() == {"a.png", "sub/c.png", "yours/a.png"}
    assert "image 'b.png', text '9'" in command.refused(
        "remove", "run", "--images", "b.png", "--texts", "9"
    )
    assert "Nothing to remove" in command.refused("remove", "run")
    assert verify_run(filled) == []


def test_an_id_that_is_given_twice_is_removed_and_counted_once(filled: Path) -> None:
    with SearchEngine.open(filled, writable=True) as engine:
        assert engine.remove("images", ["a.png", "zebra", "a.png"]) == 1
        assert engine.remove("images", ["a.png"]) == 0
    assert verify_run(filled) == []


def test_list_filters_by_source_and_shortens_texts_except_in_json(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    long = "a boat " * 400
    (tmp_path / "long.csv").write_text(f"id,text\nlong,{long}\n")
    command("index", "run", "--texts", "long.csv")
    assert "2 of 7 items" in output(command, "list", "run", "-n", 2)
    mine = command("list", "run", "--source", "mine", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in mine] == ["a.png", "b.png", "sub/c.png"]
    assert json.loads(mine[0])["path"] == str(tmp_path / "mine" / "a.png")
    table = command("list", "run", "--source", "long.csv").out
    assert "..." in table
    assert len(table) < 800
    row = json.loads(command("list", "run", "--source", "long.csv", "--json").out)
    assert row["text"] == long.strip()
    assert len(command("search", "run", "--image", "mine/a.png", "-k", 9).out) < 4000
    assert "sounds" in command.refused("list", "run", "--modality", "sounds")


def test_info_shows_method_items_sources_and_size(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    facts = json.loads(command("info", "run", "--json").out)
    assert (facts["method"], facts["bits"]) == ("CVH", 16)
    assert (facts["images"], facts["texts"]) == (4, 2)
    assert {(Path(row["source"]).name, row["items"]) for row in facts["sources"]} == {
        ("mine", 3), ("yours", 1), ("notes.txt", 2),
    }  # fmt: skip
    assert facts["bytes"] > 1000
    table = output(command, "info", "run")
    assert "3 images from" in table
    assert facts["model"] in table.replace(" ", "")
    assert "is not a run folder" in command.refused("info", "nowhere")


def test_a_skipped_file_is_named_once(run: Path, tmp_path: Path, command: Command) -> None:
    photo(tmp_path / "mine" / "a.png", "red")
    (tmp_path / "mine" / "bad.png").write_text("not an image")
    (tmp_path / "mine" / "read.me").write_text("not an image")
    warnings = command("index", "run", "--images", tmp_path / "mine").err
    assert warnings.count("bad.png") == 1
    assert f"{tmp_path}/mine/read.me: not an image" in warnings


def test_a_missing_run_is_reported_before_a_port_in_use(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "nowhere is not a run folder" in command.refused("serve", "nowhere", "--port", port)


@pytest.mark.parametrize("order", [("mine", "yours"), ("yours", "mine")])
@pytest.mark.parametrize("together", [True, False])
def test_a_file_moved_between_synced_folders_stays_searchable(
    filled: Path, tmp_path: Path, command: Command, order: tuple[str, str], together: bool
) -> None:
    output(command, "sync", "run", "mine", "yours")
    before = len(searchable(filled, "images"))
    shutil.move(tmp_path / "mine" / "sub" / "c.png", tmp_path / "yours" / "moved.png")
    shutil.copy(tmp_path / "mine" / "b.png", tmp_path / "copy.png")
    shutil.move(tmp_path / "mine" / "b.png", tmp_path / "yours" / "b.png")
    for sources in [order] if together else [order[:1], order[1:]]:
        consent = () if together else ("--allow-shrink",)  # mine loses 2 of 3
        output(command, "sync", "run", *sources, *consent)
    images = searchable(filled, "images")
    assert len(images) == before
    assert any(name.endswith("b.png") for name in images)
    assert any(name.endswith("moved.png") for name in images)
    assert verify_run(filled) == []


def test_folders_and_tables_can_be_given_several_times(
    run: Path, tmp_path: Path, command: Command
) -> None:
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
        add_photos(tmp_path / name, 2)
        (tmp_path / f"{name}.csv").write_text(f"id,text\n{name},a boat {name}\n")
    output(
        command, "index", "run", "--images", "one", "--images", "three",
        "--texts", "one.csv", "--texts", "three.csv",
    )  # fmt: skip
    assert (len(searchable(run, "images")), len(searchable(run, "texts"))) == (4, 2)


def add_photos(folder: Path, count: int) -> None:
    for i in range(count):
        old_photo(folder / f"{i}.png", f"#{i * 7 % 256:02x}30{len(folder.name) * 11 % 256:02x}")


def test_a_source_that_lost_half_of_its_items_is_synced_only_with_allow_shrink(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    add_photos(tmp_path / "mine", 5)
    command("sync", "run", "mine")
    for name in ("a", "0", "1", "2"):
        (tmp_path / "mine" / f"{name}.png").unlink()
    message = command.refused("sync", "run", "mine")
    assert "--allow-shrink" in message
    assert "lost 4 of 8 images" in message
    preview = command("sync", "run", "mine", "--dry-run")
    assert "would remove image a.png" in preview.out
    assert "--allow-shrink" in preview.err
    assert len(searchable(filled, "images")) == 9
    assert "removed 4" in output(command, "sync", "run", "mine", "--allow-shrink")


def test_an_unmounted_disk_below_a_source_is_not_removed(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    add_photos(tmp_path / "mine", 20)
    add_photos(tmp_path / "mine" / "disk" / "deep", 5)
    command("sync", "run", "mine")
    before = searchable(filled, "images")
    (tmp_path / "mine" / "disk").rename(tmp_path / "away")
    for _ in range(2):  # gone, then an empty mount point
        message = command.refused("sync", "run", "mine")
        assert f"the folder {tmp_path / 'mine' / 'disk'} is missing or empty" in message
        (tmp_path / "mine" / "disk").mkdir(exist_ok=True)
    assert searchable(filled, "images") == before
    (tmp_path / "mine" / "disk").rmdir()
    (tmp_path / "away").rename(tmp_path / "mine" / "disk")
    assert "removed 0" in output(command, "sync", "run", "mine")


def test_a_renamed_folder_and_files_moved_between_sources_need_no_consent(
    filled: Path, tmp_path: Path, command: Command
) -> None:
    add_photos(tmp_path / "mine" / "old", 5)
    command("sync", "run", "mine")
    (tmp_path / "mine" / "old").rename(tmp_path / "mine" / "new")
    command("sync", "run", "mine")
    assert "mine/new/3.png" not in searchable(filled, "images")
    assert {"new/0.png", "new/4.png"} <= searchable(filled, "images").keys()
    for i in range(5):
        (tmp_path / "mine" / "new" / f"{i}.png").rename(tmp_path / "yours" / f"{i}.png")
    before = len(searchable(filled, "images"))
    command("sync", "run", "mine", "yours")
    assert len(searchable(filled, "images")) == before
    assert verify_run(filled) == []


ROWS = [(f"row-{i}", f"a text about subject number {i}") for i in range(12)]
TABLES = {
    "cut.csv": "id,text\n" + "".join(f'{name},"{text}, and more"\n' for name, text in ROWS),
    "cut.tsv": "id\ttext\n" + "".join(f"{name}\t{text}\n" for name, text in ROWS),
    "cut.jsonl": "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in ROWS),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_was_cut_off_removes_nothing(
    run: Path, tmp_path: Path, command: Command, name: str
) -> None:
    table, content = tmp_path / name, TABLES[name]
    table.write_text(content)
    command("sync", "run", name)
    before = searchable(run, "texts")
    ends = [i for i, letter in enumerate(content) if letter == "\n"]
    end_of_row, next_end, end_of_last_but_one = ends[-4:-1]
    sizes = [end_of_row, *range(end_of_row + 1, next_end, 5), next_end, next_end + 1]
    for size in (*sizes, end_of_last_but_one - 9):  # the last of them loses one row
        table.write_text(content[:size])
        message = command.refused("sync", "run", name)
        assert "cut off" in message
        assert "--allow-shrink" in message
    assert searchable(run, "texts") == before
    lines = content.splitlines(keepends=True)
    del lines[-3:-1]  # rows before the last one
    table.write_text("".join(lines))
    assert "removed 2" in output(command, "sync", "run", name)
    lines.insert(1, lines.pop())  # sorted anew, and without two rows
    table.write_text("".join([*lines[:4], *lines[6:]]))
    assert "removed 2" in output(command, "sync", "run", name)
    lines = [*lines[:4], *lines[6:]]
    table.write_text("".join(lines[:-1]).rstrip("\n"))  # by an editor without a last line end
    assert "removed 1" in output(command, "sync", "run", name)
    table.write_text("".join(lines[:-3]))
    assert "removed 2" in output(command, "sync", "run", name, "--allow-shrink")


def test_a_table_in_another_order_is_not_taken_for_one_that_was_cut_off(
    run: Path, tmp_path: Path, command: Command
) -> None:
    table, lines = tmp_path / "cut.csv", TABLES["cut.csv"].splitlines(keepends=True)
    table.write_text("".join(lines))
    command("sync", "run", "cut.csv")
    table.write_text("".join([lines[0], *lines[2:5], *lines[7:], lines[1]]))  # the first is last
    assert "removed 2" in output(command, "sync", "run", "cut.csv")


def test_a_parquet_file_that_was_cut_off_removes_nothing_whatever_is_allowed(
    run: Path, tmp_path: Path, command: Command
) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = tmp_path / "cut.parquet"
    columns = {"id": [name for name, _ in ROWS], "text": [text for _, text in ROWS]}
    parquet.write_table(arrow.table(columns), table)
    command("sync", "run", "cut.parquet")
    content = table.read_bytes()
    for size in (0, 4, len(content) // 2, len(content) - 1):
        table.write_bytes(content[:size])
        assert "not a readable parquet" in command.refused(
            "sync", "run", "cut.parquet", "--allow-shrink"
        )
    assert len(searchable(run, "texts")) == len(ROWS)


def test_each_index_tries_codes_of_the_other_modality_from_the_model(filled: Path) -> None:
    with SearchEngine.open(filled) as engine:
        trials = engine.encoder.trial_queries
        for modality, other in (("images", "texts"), ("texts", "images")):
            index = engine.indexes[modality]
            assert isinstance(index, GroupedIndex)
            assert index._generation.trials.tobytes() == trials[other].packed.tobytes()
            assert 0 < len(trials[other]) <= 64


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\x7f"


def test_control_characters_in_names_and_texts_are_shown_and_not_sent_to_the_terminal(
    run: Path, tmp_path: Path, command: Command
) -> None:
    old_photo(tmp_path / "mine" / f"{ESCAPES}.png", "red")
    (tmp_path / "mine" / f"broken{ESCAPES}.png").write_bytes(b"no image")
    rows = [{"id": f"id{ESCAPES}", "text": f"a boat {ESCAPES}"}, {"id": "cut\x1b[1m"}]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = []
    for arguments in (
        ("index", "run", "--images", "mine", "--texts", "notes.jsonl"),
        ("sync", "run", "mine", "--dry-run"),
        ("list", "run"),
        ("list", "run", "--json"),
        ("search", "run", "--text", "a boat", "--modality", "texts"),
        ("search", "run", "--text", "a boat", "--modality", "images"),
        ("search", "run", "--text", "a boat", "--modality", "texts", "--json"),
        ("info", "run"),
        ("feedback", "run"),
    ):
        result = command(*arguments)
        outputs.append(result.out)
        for letter in "\x1b\x07\x9b\u202e\x7f":
            assert letter not in result.out + result.err, arguments
    message = command.refused("remove", "run", "--images", f"x{ESCAPES}")
    assert "owned" in message
    assert not set("\x1b\x07\x9b\u202e\x7f") & set(message)
    assert "\\x1b[2J\\x9b31m\\u202egpj.exe\\x7f" in outputs[2]
    listed = [json.loads(line) for line in outputs[3].splitlines()]
    assert {row["text"] for row in listed} == {None, f"a boat {ESCAPES}"}  # JSON is unchanged
