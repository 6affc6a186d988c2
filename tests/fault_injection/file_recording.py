"""Record the file operations of a process with strace, and build the disk after a power failure.

The model of a disk is stricter than any file system: fsync of a file makes its content durable but
not its name; fsync of a folder makes its names durable. Whatever else was written may be there or
not, in any combination: pages of 4 KiB, file sizes, and names one by one.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
_CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,lseek,ftruncate,truncate,fsync,"
    "fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,"
    "symlinkat,sendfile,copy_file_range"
)
_LINE = re.compile(r"^(\d+\.\d+) (\w+)\((.*)\)\s+= (-?\d+)(.*)$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"^(-?\d+|AT_FDCWD)(?:<((?:\\x[0-9a-f]{2}|[^>])*)>(\(deleted\))?)?$")


class Call(NamedTuple):
    time: float
    name: str
    arguments: list[str]
    result: int
    rest: str  # strace prints the path of a new descriptor there


def record(command: list[str], folder: Path, log: Path) -> list[Call]:
    """Run a command and return its successful calls on files below `folder`, in order."""
    log.mkdir()
    subprocess.run(
        ["strace", "-f", "-ff", "--seccomp-bpf", "-ttt", "-y", "-xx", "-s", str(1 << 28),
         "-e", f"trace={_CALLS}", "-e", "signal=none", "-o", str(log / "calls"), *command],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wanted = "".join(f"\\x{byte:02x}" for byte in str(folder).encode())
    calls = []
    for path in log.iterdir():
        with path.open() as lines:
            for line in lines:
                if wanted in line and (match := _LINE.match(line)) and int(match[4]) >= 0:
                    name, arguments = match[2], match[3].split(", ")
                    calls.append(Call(float(match[1]), name, arguments, int(match[4]), match[5]))
    return sorted(calls, key=lambda call: call.time)


def decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def strings(call: Call) -> list[bytes]:
    found = [_STRING.search(argument) for argument in call.arguments]
    assert not any(match and match[2] for match in found), "strace cut a string"
    return [decode(match[1]) for match in found if match]


def descriptor(argument: str) -> tuple[int, Path | None]:
    """Return number and path; None if the file was deleted."""
    match = _DESCRIPTOR.match(argument)
    assert match, argument
    number = -100 if match[1] == "AT_FDCWD" else int(match[1])
    raw = match[2] or ""
    path = decode(raw).decode() if raw.startswith("\\x") else raw
    return number, None if match[3] or path.endswith(" (deleted)") else Path(path)


@dataclass(eq=False)
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: new size

    def write(self, offset: int, data: bytes) -> None:
        self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
        self.content[offset : offset + len(data)] = data
        while data:  # page by page
            size = PAGE - offset % PAGE
            self.pending.append((offset, data[:size]))
            offset, data = offset + len(data[:size]), data[size:]

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        self.pending.append((size, None))

    def sync(self) -> None:
        self.durable, self.pending = bytes(self.content), []

    def after_power_loss(self, chance: random.Random, share: float) -> bytes:
        content = bytearray(self.durable)
        for offset, data in self.pending:
            if data is None:
                if chance.random() < share:
                    del content[offset:]
                    content.extend(bytes(offset - len(content)))
                continue
            is_written = chance.random() < share
            if is_written or chance.random() < share / 2:  # or only the size was
                content.extend(bytes(max(0, offset + len(data) - len(content))))
            if is_written:
                content[offset : offset + len(data)] = data
        return bytes(content)


Changes = list[tuple[str, "File | Folder | None"]]


@dataclass(eq=False)
class Folder:
    entries: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[Changes] = field(default_factory=list)

    def change(self, changes: Changes) -> None:
        _apply(self.entries, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.entries), []


def _apply(entries: dict[str, File | Folder], changes: Changes) -> None:
    for name, node in changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Disk:
    """What a process did to the files below a folder."""

    def __init__(self, folder: Path) -> None:
        """Begin with the files that are there; they are durable."""
        self.folder = folder
        self.root = self._load(folder)
        self._offsets: dict[int, tuple[File, int]] = {}  # of descriptors

    def _load(self, path: Path) -> Folder:
        folder = Folder()
        for child in path.iterdir():
            if child.is_dir():
                folder.entries[child.name] = self._load(child)
            else:
                content = child.read_bytes()
                folder.entries[child.name] = File(bytearray(content), content)
        folder.sync()
        return folder

    def contains(self, path: Path | None) -> bool:
        return path is not None and path.is_relative_to(self.folder) and path != self.folder

    def find(self, path: Path) -> File | Folder | None:
        node: File | Folder | None = self.root
        for part in path.relative_to(self.folder).parts:
            node = node.entries.get(part) if isinstance(node, Folder) else None
        return node

    def parent(self, path: Path) -> Folder:
        folder = self.find(path.parent)
        assert isinstance(folder, Folder), path
        return folder

    def apply(self, call: Call) -> None:
        name = call.name
        if name in ("openat", "open", "creat"):
            self._open(call)
        elif name in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
            self._write(call)
        elif name == "lseek":
            number, _ = descriptor(call.arguments[0])
            if number in self._offsets:
                self._offsets[number] = self._offsets[number][0], call.result
        elif name in ("sendfile", "copy_file_range"):
            self._copy(call)
        elif name in ("fsync", "fdatasync"):
            _, path = descriptor(call.arguments[0])
            node = self.find(path) if path and path.is_relative_to(self.folder) else None
            if node is not None:
                node.sync()
        elif name in ("ftruncate", "truncate"):
            is_path = name == "truncate"
            path = _path(call.arguments[0]) if is_path else descriptor(call.arguments[0])[1]
            node = self.find(path) if self.contains(path) and path else None
            if isinstance(node, File):
                node.truncate(int(call.arguments[1]))
        else:
            self._change_names(call)

    def _open(self, call: Call) -> None:
        _, path = descriptor(f"{call.result}{call.rest.strip()}")
        flags = call.arguments[2] if call.name == "openat" else ",".join(call.arguments[1:])
        if not self.contains(path) or path is None or "O_TMPFILE" in flags:
            return
        node = self.find(path)
        if node is None:
            if "O_CREAT" not in flags and call.name != "creat":
                return  # deleted by another thread meanwhile
            node = File()
            self.parent(path).change([(path.name, node)])
        if isinstance(node, File):
            if "O_TRUNC" in flags or call.name == "creat":
                node.truncate(0)
            self._offsets[call.result] = node, len(node.content) if "O_APPEND" in flags else 0

    def _write(self, call: Call) -> None:
        number, path = descriptor(call.arguments[0])
        if not self.contains(path) or path is None:
            return
        node, data = self.find(path), b"".join(strings(call))[: call.result]
        assert isinstance(node, File), path
        if call.name in ("write", "writev"):
            file, offset = self._offsets.get(number, (node, 0))
            offset = offset if file is node else 0
            self._offsets[number] = node, offset + len(data)
        else:
            offset = int(call.arguments[-1] if call.name != "pwritev2" else call.arguments[-2])
        node.write(offset, data)

    def _copy(self, call: Call) -> None:
        out, source = (0, 1) if call.name == "sendfile" else (2, 0)
        number, path = descriptor(call.arguments[out])
        if not self.contains(path) or path is None:
            return
        node = self.find(path)
        assert isinstance(node, File)
        _, read = descriptor(call.arguments[source])
        assert read is not None
        origin = self.find(read) if self.contains(read) else None
        content = bytes(origin.content) if isinstance(origin, File) else read.read_bytes()
        offset = len(node.content)
        node.write(offset, content[offset : offset + call.result])
        self._offsets[number] = node, offset + call.result

    def _change_names(self, call: Call) -> None:
        paths = _paths(call)
        if not all(map(self.contains, paths)):
            return
        if call.name in ("mkdir", "mkdirat"):
            self.parent(paths[0]).change([(paths[0].name, Folder())])
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            self.parent(paths[0]).change([(paths[0].name, None)])
        elif call.name in ("link", "linkat"):
            node = self.find(paths[0])
            self.parent(paths[1]).change([(paths[1].name, node)])
        else:
            assert call.name.startswith("rename"), call.name
            old, new = paths
            moved = self.find(old)
            replaced = self.find(new) if "RENAME_EXCHANGE" in call.arguments[-1] else None
            if old.parent == new.parent:
                self.parent(old).change([(old.name, replaced), (new.name, moved)])
            else:
                self.parent(old).change([(old.name, replaced)])
                self.parent(new).change([(new.name, moved)])

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files, as the process saw them last."""
        return dict(_walk(self.root, lambda folder: folder.entries, lambda f: bytes(f.content)))

    def after_power_loss(self, chance: random.Random, share: float) -> dict[str, bytes | None]:
        """Return contents by path, None for folders; `share` of what was not synced is there."""

        def entries(folder: Folder) -> dict[str, File | Folder]:
            result = dict(folder.durable)
            for changes in folder.pending:
                if chance.random() < share:
                    _apply(result, changes)
            return result

        return dict(
            _walk(self.root, entries, lambda file: file.after_power_loss(chance, share), True)
        )


def _walk(
    folder: Folder,
    entries: Callable[[Folder], dict[str, File | Folder]],
    content: Callable[[File], bytes],
    with_folders: bool = False,
    prefix: str = "",
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in entries(folder).items():
        path = f"{prefix}{name}"
        if isinstance(node, Folder):
            if with_folders:
                yield path, None
            yield from _walk(node, entries, content, with_folders, f"{path}/")
        else:
            yield path, content(node)


def _paths(call: Call) -> list[Path]:
    """Return the absolute paths that a call names."""
    folder, paths = Path("/"), []
    for argument in call.arguments:
        if match := _STRING.match(argument):
            paths.append(folder / decode(match[1]).decode())
        elif _DESCRIPTOR.match(argument) and "<" in argument:
            folder = descriptor(argument)[1] or Path("/")
    return paths


def _path(argument: str) -> Path:
    match = _STRING.match(argument)
    assert match, argument
    return Path(decode(match[1]).decode())


def write_files(folder: Path, files: Iterable[tuple[str, bytes | None]]) -> None:
    folder.mkdir(parents=True)
    for name, content in files:
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        elif not name.endswith("-shm"):  # shared memory, which SQLite makes again
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
