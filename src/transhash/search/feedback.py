"""Votes on results, kept in a run: image, text, and 1 or 0 for whether they belong together.

A file of its own, beside the catalog: an index that is made anew, and items that leave it, take no
vote along. A vote is known by what it is on, the content of the image and the words of the text,
and keeps what is needed to learn from it again: the text, and the image's thumbnail.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transhash.errors import DataError, EngineError
from transhash.search.catalog import Catalog, Item, row_checksum
from transhash.storage import content_digest, write_bytes

VOTES_FILE = "votes.sqlite"
_VERSION = 1
_TABLE = """
CREATE TABLE votes (
  image BLOB NOT NULL,
  text TEXT NOT NULL,
  vote INTEGER NOT NULL,
  image_id TEXT NOT NULL,
  source TEXT,
  thumbnail BLOB NOT NULL,
  text_id TEXT,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (image, text)
)
"""
_COLUMNS = "image, text, vote, image_id, source, thumbnail, text_id"


@dataclass(frozen=True)
class VotedImage:
    """What a vote keeps of an image."""

    digest: bytes  # of its file; of its thumbnail where that is not known
    id: str
    source: str | None
    thumbnail: bytes

    @classmethod
    def of(cls, catalog: Catalog, item: Item) -> VotedImage:
        small = catalog.thumbnail(item.number) if item.modality == "images" else None
        if small is None:
            raise DataError(f"item {item.number} has no picture, so nothing can be learned from it")
        return cls(voted_digest(catalog, item.number, small), item.id, item.source, small)


def voted_digest(catalog: Catalog, number: int, small: bytes | None = None) -> bytes:
    """What a vote knows an image by."""
    return catalog.digest(number) or content_digest(small or catalog.thumbnail(number) or b"")


@dataclass(frozen=True)
class StoredVote:
    """One vote: 1, they belong together; 0, they do not."""

    image: VotedImage
    text: str
    vote: int
    text_id: str | None = None  # None: typed


class FeedbackStore:
    """The votes of a run folder; each call opens the file, so any thread or process may ask."""

    def __init__(self, run: Path) -> None:
        self.path = run / VOTES_FILE

    def put(self, vote: StoredVote) -> None:
        """On disk when this returns; a vote on the same two is replaced."""
        image = vote.image
        row = (
            image.digest, vote.text, vote.vote, image.id, image.source, image.thumbnail,
            vote.text_id,
        )  # fmt: skip
        with self._changing() as base:
            base.execute(
                f"INSERT OR REPLACE INTO votes ({_COLUMNS}, checksum) VALUES (?,?,?,?,?,?,?,?)",
                (*row, row_checksum(row)),
            )

    def delete(self, image: bytes, text: str) -> bool:
        """Whether there was such a vote."""
        if not self.path.exists():
            return False
        with self._changing() as base:
            gone = base.execute("DELETE FROM votes WHERE image = ? AND text = ?", (image, text))
            return gone.rowcount > 0

    def forget(self, votes: Sequence[StoredVote]) -> None:
        with self._changing() as base:
            keys = [(vote.image.digest, vote.text) for vote in votes]
            base.executemany("DELETE FROM votes WHERE image = ? AND text = ?", keys)

    def for_text(self, text: str) -> dict[bytes, int]:
        """Votes on images for a text, by the image's digest."""
        return dict(self._rows("SELECT image, vote FROM votes WHERE text = ?", text))

    def on_image(self, image: bytes) -> dict[str, int]:
        """Votes on texts for an image, by the text."""
        return dict(self._rows("SELECT text, vote FROM votes WHERE image = ?", image))

    def all(self) -> list[StoredVote]:
        """In the order in which they were given."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM votes ORDER BY rowid")
        return [
            StoredVote(VotedImage(image, name, source, small), text, vote, text_id)
            for image, text, vote, name, source, small, text_id in rows
        ]

    def damage(self) -> list[str]:
        """What is wrong with the file."""
        try:
            said = [row[0] for row in self._rows("PRAGMA integrity_check(10)")]
            if said in ([], ["ok"]):
                rows = self._rows(f"SELECT {_COLUMNS}, checksum FROM votes")
                bad = [row for row in rows if row_checksum(row[:-1]) != row[-1]]
                said = [f"the vote on {row[3]!r} is not what was given" for row in bad]
            return said
        except (DataError, EngineError) as error:
            return [str(error)]

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if not self.path.exists():
            return []
        with self._open() as base:
            return base.execute(query, values).fetchall() if _has_table(base) else []

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as base, base:
            base.execute("BEGIN IMMEDIATE")
            if not _has_table(base):
                base.execute(_TABLE)
                base.execute(f"PRAGMA user_version={_VERSION}")
            yield base

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Without a write-ahead log: a copy of the one file has all votes."""
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as base:
                version = int(base.execute("PRAGMA user_version").fetchone()[0])
                if _has_table(base) and version != _VERSION:
                    raise DataError(
                        f"{self.path} has format version {version}, this transhash reads "
                        f"{_VERSION}; install a newer transhash, or restore it from a copy"
                    )
                yield base
        except sqlite3.OperationalError as error:
            raise EngineError(
                f"{self.path} cannot be used ({error}); check the space and the permissions of its "
                "folder; votes that were given are kept"
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path} is damaged or holds no votes ({error}); restore it from a copy, or "
                "delete it to begin anew"
            ) from None


def _has_table(base: sqlite3.Connection) -> bool:
    """Not in a file whose first vote never came through."""
    return bool(base.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0])


def orphaned_votes(votes: Sequence[StoredVote], catalog: Catalog) -> list[StoredVote]:
    """Those whose picture, or whose text if it was an item, is no longer in the run."""
    left = []
    for vote in votes:
        image = catalog.find("images", vote.image.id)
        text = None if vote.text_id is None else catalog.find("texts", vote.text_id)
        same = image is not None and voted_digest(catalog, image.number) == vote.image.digest
        if not same or (vote.text_id is not None and (text is None or text.text != vote.text)):
            left.append(vote)
    return left


def export_votes(votes: Sequence[StoredVote], out: Path) -> int:
    """A csv, tsv or jsonl of image, text and vote, as `fit --relation` takes it.

    An image is its own file while that is what was voted on; else its thumbnail, written to a
    folder beside `out`. Returns how many of those there are.
    """
    if out.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        raise DataError(f"{out} should end in .csv, .tsv or .jsonl")
    folder = out.with_name(f"{out.stem}-pictures")
    places: dict[bytes, str] = {}
    written = 0
    for vote in votes:
        image = vote.image
        if image.digest in places:
            continue
        place = image.source if _is_unchanged(image) else None
        if place is None:
            file = folder / f"{image.digest.hex()}.jpg"
            write_bytes(file, image.thumbnail)
            place, written = f"{folder.name}/{file.name}", written + 1
        places[image.digest] = place
    rows = [(places[vote.image.digest], vote.text, vote.vote) for vote in votes]
    write_bytes(out, _table(rows, out.suffix.lower()).encode())
    return written


def _is_unchanged(image: VotedImage) -> bool:
    source = image.source or ""
    if not source or source != source.strip() or "\\" in source:  # tables would read it otherwise
        return False
    try:
        return content_digest(Path(source).read_bytes()) == image.digest
    except OSError:
        return False


def _table(rows: Sequence[tuple[str, str, int]], suffix: str) -> str:
    names = ("image", "text", "vote")
    if suffix == ".jsonl":
        return "".join(json.dumps(dict(zip(names, row)), ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerows((names, *rows))
    return text.getvalue()
