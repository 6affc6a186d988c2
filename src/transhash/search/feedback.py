"""Votes on search results, stored in a run: image, text, and 1 or 0 for a correct match or not.

They have a file of their own, so that they outlive items and indexes. A vote is identified by the
content of its image and text. It contains the text and a thumbnail, which a later fit can use.
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

from transhash.data.tables import escape_formula
from transhash.errors import DataError, EngineError
from transhash.search.catalog import Catalog, Item
from transhash.search.catalog_file import row_checksum
from transhash.storage import check_regular, content_digest, read_regular, write_bytes

VOTES_FILE = "votes.sqlite"
_VERSION = 2
_SCHEMA = """
CREATE TABLE votes (
  image BLOB NOT NULL,
  text TEXT NOT NULL,
  vote INTEGER NOT NULL,
  image_id TEXT NOT NULL,
  path TEXT,
  thumbnail BLOB NOT NULL,
  text_id TEXT,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (image, text)
)
"""
_COLUMNS = "image, text, vote, image_id, path, thumbnail, text_id"


@dataclass(frozen=True)
class VotedImage:
    digest: bytes  # of its file, or of its thumbnail if that is unknown
    id: str
    path: str | None
    thumbnail: bytes

    @classmethod
    def from_item(cls, catalog: Catalog, item: Item) -> VotedImage:
        thumbnail = catalog.thumbnail(item.number) if item.modality == "images" else None
        if thumbnail is None:
            raise DataError(f"Item {item.number} has no thumbnail. Vote on another image.")
        return cls(voted_digest(catalog, item.number), item.id, item.path, thumbnail)


def voted_digest(catalog: Catalog, number: int) -> bytes:
    """Return the digest that identifies an image in votes."""
    return catalog.digest(number) or content_digest(catalog.thumbnail(number) or b"")


@dataclass(frozen=True)
class StoredVote:
    image: VotedImage
    text: str
    vote: int  # 1: correct match, 0: not
    text_id: str | None = None  # None: the text was typed


class FeedbackStore:
    """Votes of a run folder. Each call opens the file, so any thread or process can use it."""

    def __init__(self, run: Path) -> None:
        self.path = run / VOTES_FILE

    def put(self, vote: StoredVote) -> None:
        """Write a vote to disk; it replaces an earlier vote on the same image and text."""
        image = vote.image
        row = (
            image.digest, vote.text, vote.vote, image.id, image.path, image.thumbnail, vote.text_id
        )  # fmt: skip
        with self._transaction() as base:
            base.execute(
                f"INSERT OR REPLACE INTO votes ({_COLUMNS}, checksum) VALUES (?,?,?,?,?,?,?,?)",
                (*row, row_checksum(row)),
            )

    def delete(self, image: bytes, text: str) -> bool:
        """Delete a vote and return whether there was one."""
        if not self.path.exists():
            return False
        with self._transaction() as base:
            sql = "DELETE FROM votes WHERE image = ? AND text = ?"
            return base.execute(sql, (image, text)).rowcount > 0

    def delete_many(self, votes: Sequence[StoredVote]) -> None:
        with self._transaction() as base:
            keys = [(vote.image.digest, vote.text) for vote in votes]
            base.executemany("DELETE FROM votes WHERE image = ? AND text = ?", keys)

    def for_text(self, text: str) -> dict[bytes, int]:
        """Return the votes on images for a text, by the digest of the image."""
        return dict(self._fetch("SELECT image, vote FROM votes WHERE text = ?", text))

    def for_image(self, image: bytes) -> dict[str, int]:
        """Return the votes on texts for an image, by the text."""
        return dict(self._fetch("SELECT text, vote FROM votes WHERE image = ?", image))

    def all(self) -> list[StoredVote]:
        """Return all votes in the order in which they were stored."""
        rows = self._fetch(f"SELECT {_COLUMNS} FROM votes ORDER BY rowid")
        return [
            StoredVote(VotedImage(digest, image_id, path, thumbnail), text, vote, text_id)
            for digest, text, vote, image_id, path, thumbnail, text_id in rows
        ]

    def find_corruption(self) -> list[str]:
        """Return what is wrong with the file: its structure, and rows with a wrong checksum."""
        try:
            problems = [row[0] for row in self._fetch("PRAGMA integrity_check(10)")]
            if problems in ([], ["ok"]):
                rows = self._fetch(f"SELECT {_COLUMNS}, checksum FROM votes")
                wrong = [row for row in rows if row_checksum(row[:-1]) != row[-1]]
                problems = [f"the vote on {row[3]!r} has a wrong checksum" for row in wrong]
            return problems
        except (DataError, EngineError) as error:
            return [str(error)]

    def _fetch(self, sql: str, *values: Any) -> list[Any]:
        if not self.path.exists():
            return []
        with self._open() as base:
            return base.execute(sql, values).fetchall() if _has_table(base) else []

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._open() as base, base:
            base.execute("BEGIN IMMEDIATE")
            if not _has_table(base):
                base.execute(_SCHEMA)
                base.execute(f"PRAGMA user_version={_VERSION}")
            yield base

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Connect without a write-ahead log, so that a copy of the file has all votes."""
        check_regular(self.path)
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as base:
                # Also sync the folder when the journal is deleted: that is what commits.
                base.execute("PRAGMA synchronous=EXTRA")
                version = int(base.execute("PRAGMA user_version").fetchone()[0])
                if _has_table(base) and version != _VERSION:
                    raise DataError(
                        f"{self.path} has format version {version}, but this transhash needs "
                        f"{_VERSION}. Delete it to start with no votes."
                    )
                yield base
        except sqlite3.OperationalError as error:
            raise EngineError(
                f"{self.path} cannot be used ({error}). Check the disk space and the permissions "
                "of its folder. Earlier votes are saved."
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path} is corrupt ({error}). Restore a backup, or delete it to start with "
                "no votes."
            ) from None


def _has_table(base: sqlite3.Connection) -> bool:
    """Return False for a file whose first vote was interrupted."""
    return bool(base.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0])


def orphaned_votes(votes: Sequence[StoredVote], catalog: Catalog) -> list[StoredVote]:
    """Return the votes whose image, or whose text if it was an item, is not in the run anymore."""
    orphaned = []
    for vote in votes:
        image = catalog.find("images", vote.image.id)
        has_image = image and voted_digest(catalog, image.number) == vote.image.digest
        text = None if vote.text_id is None else catalog.find("texts", vote.text_id)
        has_text = vote.text_id is None or (text is not None and text.text == vote.text)
        if not (has_image and has_text):
            orphaned.append(vote)
    return orphaned


def export_votes(votes: Sequence[StoredVote], out: Path) -> int:
    """Write a csv, tsv or jsonl file of image, text and vote, for `fit --relation`.

    An image is the path of its file if that is unchanged. Otherwise its thumbnail is written to a
    folder next to `out`. Returns the number of these thumbnails.
    """
    if out.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
        raise DataError(f"{out} has an unknown format. Use a name ending in .csv, .tsv or .jsonl.")
    folder = out.with_name(f"{out.stem}-images")
    images = {vote.image.digest: vote.image for vote in votes}
    paths: dict[bytes, str] = {}
    thumbnails = 0
    for digest, image in images.items():
        if image.path is not None and _is_unchanged(image.path, digest):
            paths[digest] = image.path
        else:
            file = folder / f"{digest.hex()}.jpg"
            write_bytes(file, image.thumbnail)
            paths[digest] = f"{folder.name}/{file.name}"
            thumbnails += 1
    rows = [(paths[vote.image.digest], vote.text, vote.vote) for vote in votes]
    write_bytes(out, _format_table(rows, out.suffix.lower()).encode())
    return thumbnails


def _is_unchanged(path: str, digest: bytes) -> bool:
    if path != path.strip() or "\\" in path:  # tables would change such a path
        return False
    try:
        return content_digest(read_regular(path)) == digest
    except OSError:
        return False


def _format_table(rows: Sequence[tuple[str, str, int]], suffix: str) -> str:
    names = ("image", "text", "vote")
    if suffix == ".jsonl":
        return "".join(json.dumps(dict(zip(names, row)), ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerow(names)
    for image, content, vote in rows:
        writer.writerow((escape_formula(image), escape_formula(content), vote))
    return text.getvalue()
