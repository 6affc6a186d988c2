"""Back up a run folder to one file while it is in use, and restore it.

A backup is a tar file without compression. Its last member, backup.json, lists size and SHA-256 of
every other member, so that a truncated file is recognized. Catalog and index are of one moment:
the index did not change while the catalog's read transaction began, and a read transaction sees
one moment until it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from transhash import __version__
from transhash.data.collection import MODALITIES, Modality
from transhash.errors import DataError, EngineError, TranshashError
from transhash.index import Index
from transhash.index.grouped import store
from transhash.index.grouped.grouped import GroupedIndex
from transhash.index.grouped.store import IndexSnapshot
from transhash.model.files import check_files, read_config
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog
from transhash.search.catalog_file import CatalogFile
from transhash.search.consistency import complete_pending
from transhash.search.feedback import VOTES_FILE
from transhash.search.verify import verify_run
from transhash.storage import WriterLock, make_folder, sync_folder

MANIFEST = "backup.json"
_FORMAT, _VERSION = "transhash backup", 1
_CATALOG = "catalog.sqlite"
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = tarfile.BLOCKSIZE
_MAX_MANIFEST_BYTES = 1 << 26
_SNAPSHOT_SECONDS = 60.0  # to find a moment between two changes; each attempt takes milliseconds
_DRAFT_SUFFIX = ".backup-draft"
# Parts of the run folder that are copied in another way, or that no other process needs.
_SPECIAL_FOLDERS = {"index", "validation"}
_SPECIAL_FILES = {_CATALOG, VOTES_FILE, "checkpoint.safetensors"}
_TEMPORARY = (".lock", "-wal", "-shm", "-journal")


class BackupFile(NamedTuple):
    """One member of a backup."""

    name: str  # relative to the run folder, with slashes
    bytes: int
    sha256: str


def backup_run(run: Path, file: Path, track: Track = no_progress) -> list[BackupFile]:
    """Write a backup of `run` to `file` and return what it contains.

    Other processes may search and change the run meanwhile. The copy is verified before it
    replaces `file`: a corrupt run never replaces a good backup.
    """
    read_config(run)
    if file.is_dir():
        raise DataError(f"{file} is a folder. Pass the name of a file.")
    if file.resolve().is_relative_to(run.resolve()):
        raise DataError(f"{file} is in the run folder. Choose a file outside {run}.")
    with _draft_folder(file) as draft:
        copy = draft / "run"
        copy.mkdir()
        _copy_run(run, copy, track)
        if (copy / _CATALOG).exists():
            _finish_changes(copy)
        if findings := verify_run(copy, track=track):
            problem = findings[0].problem.replace(str(copy), str(run))
            raise DataError(
                f"{run} is corrupt, so no backup was written ({findings[0].part}: {problem}). "
                f"Run: transhash verify {run} --repair"
            )
        archive = draft / "archive"
        with archive.open("xb") as out:
            files = _write_archive(copy, out, track)
            out.flush()
            os.fsync(out.fileno())
        os.replace(archive, file)
        sync_folder(file.parent)
    return files


def restore_run(file: Path, run: Path, track: Track = no_progress) -> list[BackupFile]:
    """Create the run folder `run` from a backup, after checking every byte of it.

    `run` must not exist or be empty; it appears only when it is complete and on disk.
    """
    if run.is_symlink() or (run.exists() and (not run.is_dir() or any(run.iterdir()))):
        raise DataError(f"{run} exists and is not an empty folder. Choose a new name.")
    if not file.is_file():
        state = "is not a file" if file.exists() else "does not exist"
        raise DataError(f"{file} {state}. Pass a file written by `transhash backup`.")
    with file.open("rb") as source, _draft_folder(run) as draft:
        members = _read_members(file, source)
        copy = draft / "run"
        copy.mkdir()
        total = sum(_chunks(member.bytes) for member, _ in members)
        for _ in track(_extract(file, source, members, copy), "restoring (MiB)", total):
            pass
        try:
            check_files(copy, read_config(copy))
        except TranshashError as error:
            raise _corrupt(file, str(error).replace(str(copy), "")) from None
        for folder, _, _ in os.walk(copy):
            sync_folder(Path(folder))
        if run.exists():
            run.rmdir()  # Windows cannot rename over it
        os.replace(copy, run)
        sync_folder(run.parent)
    return [member for member, _ in members]


# ---- one moment of a run ----


def _copy_run(run: Path, copy: Path, track: Track) -> None:
    with ExitStack() as stack:
        catalog, snapshots = _take_snapshot(run, stack)
        for path in list(_model_files(run)):
            target = copy / path.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        sizes = [os.fstat(f.fileno()).st_size for s in snapshots.values() for f in s.files.values()]
        work = _copy_indexes(snapshots, copy)
        for _ in track(work, "copying the index (MiB)", sum(map(_chunks, sizes))):
            pass
        if catalog is not None:
            _copy_database(catalog.base, copy / _CATALOG, track, "copying the catalog (MiB)")
    if (run / VOTES_FILE).exists():
        uri = f"{(run / VOTES_FILE).resolve().as_uri()}?mode=rw"
        with _database_errors(run / VOTES_FILE), closing(sqlite3.connect(uri, uri=True)) as votes:
            _copy_database(votes, copy / VOTES_FILE, track, "copying the votes (MiB)")


def _take_snapshot(
    run: Path, stack: ExitStack
) -> tuple[CatalogFile | None, dict[Modality, IndexSnapshot]]:
    """Return catalog, in a read transaction, and indexes of one moment."""
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while True:
        with ExitStack() as attempt, suppress(FileNotFoundError):
            snapshots = {
                modality: attempt.enter_context(IndexSnapshot(run / "index" / modality))
                for modality in MODALITIES
                if store.exists(run / "index" / modality)
            }
            catalog = None
            if (run / _CATALOG).exists():
                catalog = CatalogFile(run / _CATALOG, read_only=True)
                attempt.callback(catalog.close)
                with catalog.errors():
                    catalog.base.execute("BEGIN")
                    catalog.fetch("SELECT 1 FROM sqlite_master")  # the transaction begins here
            if all(snapshot.is_current() for snapshot in snapshots.values()):
                stack.push(attempt.pop_all())
                return catalog, snapshots
        if time.monotonic() > deadline:
            raise EngineError(f"{run} changes all the time. Try again when fewer processes write.")
        time.sleep(0.002)


def _model_files(run: Path) -> Iterator[Path]:
    """Yield the files of a run other than catalog, votes, index and temporary files."""
    for folder, folders, names in os.walk(run):
        if Path(folder) == run:
            folders[:] = [name for name in folders if name not in _SPECIAL_FOLDERS]
        for name in folders:
            if (Path(folder) / name).is_symlink():
                raise DataError(
                    f"{Path(folder) / name} is a link to a folder. Replace it by the folder."
                )
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder) / name
            is_special = name in _SPECIAL_FILES or name.endswith(_TEMPORARY)
            if not is_special and not name.startswith(".") and path.is_file():
                yield path


def _copy_indexes(snapshots: dict[Modality, IndexSnapshot], copy: Path) -> Iterator[None]:
    for modality, snapshot in snapshots.items():
        folder = copy / "index" / modality
        folder.mkdir(parents=True)
        for name, content in snapshot.contents.items():
            (folder / name).write_bytes(content)
        for name, source in snapshot.files.items():
            with (folder / name).open("xb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    yield


def _copy_database(base: sqlite3.Connection, path: Path, track: Track, description: str) -> None:
    with _database_errors(path), closing(sqlite3.connect(path)) as target:
        page_bytes = int(base.execute("PRAGMA page_size").fetchone()[0])
        pages = int(base.execute("PRAGMA page_count").fetchone()[0])
        # SQLite copies all pages in one call and reports after each step.
        steps = iter(track(range(_chunks(pages * page_bytes)), description))

        def advance(_status: int, _remaining: int, _total: int) -> None:
            next(steps, None)

        base.backup(target, pages=_CHUNK_BYTES // page_bytes, progress=advance)
        for _ in steps:
            pass


@contextmanager
def _database_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise EngineError(f"Cannot copy {path} ({error}). Check the disk and try again.") from None
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"{path} is corrupt ({error}), so no backup was written. Restore a backup."
        ) from None


def _finish_changes(copy: Path) -> None:
    """Give the index of the copy the codes of a change that was in progress."""
    bits = read_config(copy)["settings"]["bits"]
    with Catalog(copy / _CATALOG) as catalog, ExitStack() as stack:
        if catalog.pending(""):
            folders = {modality: copy / "index" / modality for modality in MODALITIES}
            indexes: dict[Modality, Index] = {
                modality: stack.enter_context(closing(GroupedIndex.open(folder, bits)))
                for modality, folder in folders.items()
            }
            complete_pending(catalog, "", indexes)


# ---- the archive ----


def _write_archive(copy: Path, out: BinaryIO, track: Track) -> list[BackupFile]:
    paths = sorted(p for p in copy.rglob("*") if p.is_file() and not p.name.endswith(_TEMPORARY))
    for name in (path.relative_to(copy).as_posix() for path in paths):
        if not _is_relative(name):
            raise DataError(f"{name!r} is not a name that every system allows. Rename the file.")
    files: list[BackupFile] = []
    total = sum(_chunks(path.stat().st_size) for path in paths)
    for _ in track(_write_members(copy, paths, out, files), "writing (MiB)", total):
        pass
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "transhash": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in files},
    }
    content = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    out.write(_header(MANIFEST, len(content), int(time.time())))
    out.write(content + bytes(-len(content) % _BLOCK_BYTES))
    out.write(bytes(2 * _BLOCK_BYTES))  # the end of a tar file
    return files


def _write_members(
    copy: Path, paths: list[Path], out: BinaryIO, files: list[BackupFile]
) -> Iterator[None]:
    """Append every file to the archive and delete it, so that little more disk space is needed."""
    for path in paths:
        name, status = path.relative_to(copy).as_posix(), path.stat()
        digest, size = hashlib.sha256(), 0
        out.write(_header(name, status.st_size, int(status.st_mtime)))
        with path.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                yield
        out.write(bytes(-size % _BLOCK_BYTES))
        path.unlink()
        files.append(BackupFile(name, size, digest.hexdigest()))


def _header(name: str, size: int, modified: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, modified, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _read_members(file: Path, source: BinaryIO) -> list[tuple[BackupFile, tarfile.TarInfo]]:
    """Return the members as the manifest and the headers list them, which must agree."""
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            headers = archive.getmembers()
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise _corrupt(file, f"not a readable tar file: {error}") from None
    if not headers or headers[-1].name != MANIFEST or not _is_plain(headers[-1]):
        raise _corrupt(file, f"it does not end with {MANIFEST}")
    manifest = _read_manifest(file, source, headers.pop())
    try:
        files = [
            BackupFile(str(name), int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in manifest["files"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _corrupt(file, f"{MANIFEST} lists no files") from None
    for member in headers:
        if not _is_plain(member) or not _is_relative(member.name):
            raise _corrupt(file, f"it contains {member.name!r}, which is not a file of a run")
    listed = [(member.name, member.bytes) for member in files]
    if listed != [(member.name, member.size) for member in headers]:
        raise _corrupt(file, f"its files are not those that {MANIFEST} lists")
    return list(zip(files, headers, strict=True))


def _read_manifest(file: Path, source: BinaryIO, header: tarfile.TarInfo) -> dict[str, Any]:
    if header.size > _MAX_MANIFEST_BYTES:
        raise _corrupt(file, f"{MANIFEST} has {header.size:,} bytes")
    source.seek(header.offset_data)
    try:
        manifest = json.loads(source.read(header.size))
        if manifest["format"] != _FORMAT:
            raise ValueError("another format")
        version = int(manifest["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(file, f"{MANIFEST} cannot be read: {error}") from None
    if version != _VERSION:
        raise DataError(
            f"{file} has format version {version}, this transhash reads version {_VERSION}. "
            "Restore it with the transhash that wrote it."
        )
    assert isinstance(manifest, dict)
    return manifest


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.type == tarfile.REGTYPE and not member.issparse()


def _is_relative(name: str) -> bool:
    """Return whether a name stays in its folder on every system."""
    parts = name.split("/")
    has_bad_character = any(not c.isprintable() or c in "\\:" for c in name)
    return not has_bad_character and all(part.strip(" .") for part in parts)


def _extract(
    file: Path, source: BinaryIO, members: list[tuple[BackupFile, tarfile.TarInfo]], copy: Path
) -> Iterator[None]:
    for member, header in members:
        path, digest, remaining = copy / member.name, hashlib.sha256(), member.bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        source.seek(header.offset_data)
        with path.open("xb") as target:
            while remaining and (chunk := source.read(min(remaining, _CHUNK_BYTES))):
                target.write(chunk)
                digest.update(chunk)
                remaining -= len(chunk)
                yield
            target.flush()
            os.fsync(target.fileno())
        if remaining or digest.hexdigest() != member.sha256:
            raise _corrupt(file, f"{member.name} does not match its checksum")
        os.utime(path, (header.mtime, header.mtime))


def _corrupt(file: Path, reason: str) -> DataError:
    return DataError(f"{file} is not an intact backup ({reason}). Use another backup.")


def _chunks(size: int) -> int:
    return -(-size // _CHUNK_BYTES)


@contextmanager
def _draft_folder(target: Path) -> Iterator[Path]:
    """Yield a locked temporary folder next to `target`; remove those that a kill left over."""
    draft = None
    try:
        make_folder(target.parent)
        for path in target.parent.glob(f".*{_DRAFT_SUFFIX}"):
            if path.name.startswith(f".{target.name}."):
                _remove_if_unused(path)
        draft = Path(tempfile.mkdtemp(_DRAFT_SUFFIX, f".{target.name}.", target.parent))
        lock = WriterLock(draft, hint="wait for it")
        try:
            yield draft
        finally:
            lock.release()
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or error
        if draft is not None and error.filename and not str(error.filename).startswith(str(draft)):
            raise EngineError(
                f"Cannot read {error.filename} ({reason}), so {target} is as before. "
                "Check the disk and the permissions."
            ) from None
        raise EngineError(
            f"Cannot write {target} ({reason}). Its previous content is unchanged. "
            "Free disk space or choose another folder, then try again."
        ) from None


def _remove_if_unused(draft: Path) -> None:
    with suppress(EngineError):  # in use by another process
        lock = WriterLock(draft)
        shutil.rmtree(draft, ignore_errors=True)
        lock.release()
