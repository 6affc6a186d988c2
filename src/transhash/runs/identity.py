"""When two items are one, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class NewItem:
    id: str
    code: bytes
    text: str | None = None
    thumbnail: bytes | None = None
    source: str | None = None  # the file it is
    origin: str = ""  # the folder or file it was listed in; "" if by a program
    key: str | None = None  # what it is called there; None: its id
    digest: bytes | None = None  # of its content; None: not known
    stamp: str | None = None  # size and time of its file when it was read


class Stored(NamedTuple):
    """What became of a new item."""

    number: int
    change: Literal["added", "updated", "unchanged"]
    recoded: bool  # its code is another one than before


def is_same_thing(row: tuple[Any, ...], item: NewItem) -> bool:
    """Whether the item of that row, which has the new one's id, is the new one from elsewhere."""
    _, _, text, _, source, code, _, _, digest = row
    if digest is not None and item.digest is not None:
        return bool(digest == item.digest)
    if text is not None and item.text is not None:
        return bool(text == item.text)
    if source is not None and item.source is not None:  # from before digests were kept
        return Path(source).absolute() == Path(item.source).absolute()
    return bool(code == item.code)


def shown_ids(item: NewItem) -> Iterator[str]:
    """The id, then ids that also tell where the item came from."""
    yield item.id
    name = item.id
    for folder in [part for part in reversed(Path(item.origin).parts) if part.strip("/\\")][:3]:
        name = f"{folder}/{name}"
        yield name
    number = 2
    while True:
        yield f"{name} ({number})"
        number += 1
