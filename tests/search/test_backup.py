"""Backups are complete, verified files; restore refuses everything else and leaves no trace."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scale.command import Command
from transhash.errors import DataError
from transhash.search import backup
from transhash.search.backup import MANIFEST, backup_run, restore_run
from transhash.search.catalog_file import CatalogFile
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage
from transhash.search.verify import verify_run


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def found(run: Path) -> list[tuple[str, int]]:
    with SearchEngine.open(run) as engine:
        hits = [*engine.similar_to_text("a boat", 10), *engine.similar_to_text("a", 10, "texts")]
        return [(hit.item.id, hit.distance) for hit in hits]


def test_a_restored_run_finds_the_same_items_and_has_the_votes(
    indexed_run: Path, tmp_path: Path, command: Command
) -> None:
    store = FeedbackStore(indexed_run)
    store.put(StoredVote(VotedImage(b"1" * 16, "red.png", None, b"small"), "a red boat", 1))
    expected = found(indexed_run)
    command("backup", indexed_run, tmp_path / "copies" / "mine.tar")
    out = command("restore", tmp_path / "copies" / "mine.tar", tmp_path / "other" / "run")
    assert "restored from" in out.out
    restored = tmp_path / "other" / "run"
    assert found(restored) == expected
    assert verify_run(restored) == []
    assert [vote.text for vote in FeedbackStore(restored).all()] == ["a red boat"]
    with SearchEngine.open(restored, writable=True) as engine:  # and can be changed
        assert engine.remove("texts", ["b1"]) == 1


def test_a_backup_has_changes_that_the_writer_has_not_merged_into_the_catalog_file(
    indexed_run: Path, tmp_path: Path
) -> None:
    with SearchEngine.open(indexed_run, writable=True) as engine:
        engine.add_texts(["a kite on a string"])
        assert (indexed_run / "catalog.sqlite-wal").stat().st_size
        backup_run(indexed_run, tmp_path / "b.tar")
    restore_run(tmp_path / "b.tar", tmp_path / "restored")
    with SearchEngine.open(tmp_path / "restored") as engine:
        hits = engine.similar_to_text("a kite on a string", 10, "texts")
    assert "a kite on a string" in [hit.item.text for hit in hits]


def test_a_change_between_reading_index_and_catalog_is_noticed(
    indexed_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SearchEngine.open(indexed_run, writable=True) as engine:

        def open_after_a_change(path: Path, *, read_only: bool) -> CatalogFile:
            monkeypatch.undo()
            engine.add_texts(["a kite on a string"])
            return CatalogFile(path, read_only=read_only)

        monkeypatch.setattr(backup, "CatalogFile", open_after_a_change)
        backup_run(indexed_run, tmp_path / "b.tar")
    restore_run(tmp_path / "b.tar", tmp_path / "restored")
    assert verify_run(tmp_path / "restored") == []


def test_a_model_without_items_can_be_backed_up(run: Path, tmp_path: Path) -> None:
    backup_run(run, tmp_path / "b.tar")
    restore_run(tmp_path / "b.tar", tmp_path / "restored")
    assert verify_run(tmp_path / "restored") == []


def test_a_corrupt_run_does_not_replace_a_good_backup(indexed_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    backup_run(indexed_run, file)
    good = file.read_bytes()
    hasher = indexed_run / "hasher.safetensors"
    hasher.write_bytes(hasher.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="corrupt"):
        backup_run(indexed_run, file)
    assert file.read_bytes() == good
    assert not list(tmp_path.glob(".b.tar*"))


def test_backup_refuses_a_place_where_it_cannot_be_a_file(
    indexed_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="folder"):
        backup_run(indexed_run, tmp_path)
    with pytest.raises(DataError, match="run folder"):
        backup_run(indexed_run, indexed_run / "b.tar")


def test_restore_refuses_a_folder_with_files_and_accepts_an_empty_one(
    indexed_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "b.tar"
    backup_run(indexed_run, file)
    before = sorted(path.name for path in indexed_run.iterdir())
    with pytest.raises(DataError, match="not an empty folder"):
        restore_run(file, indexed_run)
    assert sorted(path.name for path in indexed_run.iterdir()) == before
    (tmp_path / "empty").mkdir()
    restore_run(file, tmp_path / "empty")
    assert verify_run(tmp_path / "empty") == []


def test_flipped_bits_and_truncation_are_refused_or_in_unused_bytes(
    indexed_run: Path, tmp_path: Path
) -> None:
    file, damaged = tmp_path / "b.tar", tmp_path / "damaged.tar"
    files = backup_run(indexed_run, file)
    content = file.read_bytes()
    chance, messages = random.Random(4), []
    for number in range(150):
        data = bytearray(content)
        if number % 3:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data) - 1024) :]
        damaged.write_bytes(data)
        target = tmp_path / f"restored-{number}"
        try:
            assert restore_run(damaged, target) == files
        except DataError as error:
            messages.append(str(error))
            assert not target.exists()
    assert len(messages) > 100
    # Not only by the checks of what was restored, which do not read every file.
    assert sum("does not match its checksum" in message for message in messages) > 50
    assert all("not an intact backup" in message for message in messages)
    assert not list(tmp_path.glob(".restored*"))


def rewrite(file: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]) -> Path:
    """Write another archive with changed members and a manifest that lists its own files."""
    with tarfile.open(file) as archive:
        members = [
            (info, stream.read() if (stream := archive.extractfile(info)) else b"")
            for info in archive.getmembers()
        ]
    change(members)
    target = file.with_name("changed.tar")
    with tarfile.open(target, "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return target


def add_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", listed: bool = True):  # type: ignore[no-untyped-def]
    """Return a change that adds an empty member and lists it in the manifest."""

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        manifest, content = members.pop()
        listing = json.loads(content)
        if listed:
            empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            listing["files"][name] = {"bytes": 0, "sha256": empty}
        content = json.dumps(listing).encode()
        manifest.size = len(content)
        members += [(info, b""), (manifest, content)]

    return change


HOSTILE = {
    "outside the folder": add_member("../evil.txt"),
    "below, then outside": add_member("index/../../evil.txt"),
    "absolute": add_member("/tmp/evil.txt"),
    "with backslashes": add_member("..\\evil.txt"),
    "of a drive": add_member("C:evil.txt"),
    "current folder": add_member("./evil.txt"),
    "with a line break": add_member("evil\n.txt"),
    "a symbolic link": add_member("evil", tarfile.SYMTYPE, "/etc"),
    "a hard link": add_member("evil", tarfile.LNKTYPE, "config.json"),
    "a pipe": add_member("evil", tarfile.FIFOTYPE),
    "a device": add_member("evil", tarfile.CHRTYPE),
    "a folder": add_member("evil", tarfile.DIRTYPE),
    "not listed": add_member("evil.txt", listed=False),
    "twice": add_member("config.json", listed=False),
    "missing": lambda members: members.pop(0),
    "in another order": lambda members: members.insert(0, members.pop(1)),
    "without a manifest": lambda members: members.pop(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_restore_refuses_members_that_no_backup_has(
    indexed_run: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "below" / "here"
    folder.mkdir(parents=True)
    backup_run(indexed_run, folder / "b.tar")
    before = {path for path in tmp_path.rglob("*") if "evil" in path.name}
    with pytest.raises(DataError, match="not an intact backup"):
        restore_run(rewrite(folder / "b.tar", HOSTILE[name]), folder / "restored")
    assert {path for path in tmp_path.rglob("*") if "evil" in path.name} == before
    assert sorted(os.listdir(folder)) == ["b.tar", "changed.tar"]


def test_other_files_and_versions_are_one_sentence_and_exit_code_2(
    indexed_run: Path, tmp_path: Path, command: Command
) -> None:
    def newer(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        manifest, content = members.pop()
        content = content.replace(b'"version": 1', b'"version": 9')
        members.append((manifest, content))

    file = tmp_path / "b.tar"
    backup_run(indexed_run, file)
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(indexed_run / "config.json", MANIFEST)
    (tmp_path / "empty").touch()
    for source, word in [
        (tmp_path / "b.tar.gz", "not an intact backup"),
        (tmp_path / "empty", "not an intact backup"),
        (indexed_run, "not a file"),
        (tmp_path / "nothing.tar", "does not exist"),
        (rewrite(file, newer), "version 9"),
    ]:
        result = command("restore", source, tmp_path / "restored", code=2)
        assert word in result.err
        assert "Traceback" not in result.err
    assert not (tmp_path / "restored").exists()
