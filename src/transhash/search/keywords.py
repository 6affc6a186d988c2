"""Keyword index: the words that users have for their items, in an FTS5 table of the catalog.

Triggers keep the table in step with the items in the same transaction. Words are compared without
case, accents and English endings (unicode61, porter).
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from transhash.data.collection import Modality
from transhash.errors import DataError

if TYPE_CHECKING:
    from transhash.search.catalog_file import CatalogFile

SearchMode = Literal["hybrid", "codes", "keywords"]
DEFAULT_SEARCH: SearchMode = "hybrid"
Condition = tuple[str, Sequence[str]]  # on rows of `items`, with the values of its parameters
ALL: Condition = ("1", ())
_Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.int64]
_NO_NUMBERS = np.empty(0, np.int64)
_Read = TypeVar("_Read")

# Columns of the table, the reason shown for a match in each, and its weight in BM25. Words that
# were chosen to name one item count twice.
_FIELDS = {
    "name": ("file name", 2.0),
    "folders": ("folder", 1.0),
    "title": ("title", 2.0),
    "caption": ("caption", 1.0),
    "keywords": ("keywords", 2.0),
    "text": ("text", 1.0),
}
_LIST = ", ".join(_FIELDS)
_NEW, _OLD = (", ".join(f"{row}.{name}" for name in _FIELDS) for row in ("new", "old"))
_DELETE = f"INSERT INTO words (words, rowid, {_LIST}) VALUES ('delete', old.number, {_OLD})"
_INSERT = f"INSERT INTO words (rowid, {_LIST}) VALUES (new.number, {_NEW})"
KEYWORD_TABLE = (
    f"CREATE VIRTUAL TABLE words USING fts5({_LIST}, content='items', content_rowid='number', "
    "tokenize='porter unicode61 remove_diacritics 2')"
)
KEYWORD_SCHEMA = (
    KEYWORD_TABLE,
    f"CREATE TRIGGER words_insert AFTER INSERT ON items BEGIN {_INSERT}; END",
    f"CREATE TRIGGER words_delete AFTER DELETE ON items BEGIN {_DELETE}; END",
    f"CREATE TRIGGER words_update AFTER UPDATE OF {_LIST} ON items "
    f"WHEN ({_OLD}) IS NOT ({_NEW}) BEGIN {_DELETE}; {_INSERT}; END",
)
MAX_MATCHES = 10_000  # best by BM25; a search with that many matches needs no more of them
# Words that more items have count by their presence alone in a hybrid search. BM25 takes about two
# microseconds per item and search, presence a fiftieth of that.
_MAX_RANKED = 2_000
# Items that one word finds in a hybrid search. Those of a more common word are spread evenly.
_MAX_PRESENT = 50_000
_CACHE_BYTES = 64 << 20
_MAX_QUERY_WORDS = 32  # the rarest of a long query
# Nobody expects these to matter. Other languages: the model's own stop words.
FUNCTION_WORDS = frozenset(
    """
    about above after again all also am an and any are around as at be because been before being
    below between both but by can could did do does doing down during each few for from further had
    has have having he her here hers him his how if in into is it its just like me more most my no
    nor not of off on once one only or other our out over own same she should so some such than that
    the their them then there these they this those through to too under until up us very was we
    were what when where which while who whom why will with would you your
    """.split()  # noqa: SIM905
)


def has_fts5() -> bool:
    """Return whether Python's SQLite has the extension that keyword search needs."""
    with sqlite3.connect(":memory:") as base:
        try:
            base.execute("CREATE VIRTUAL TABLE words USING fts5(word)")
        except sqlite3.OperationalError:
            return False
    return True


def check_search(mode: str) -> SearchMode:
    for known in get_args(SearchMode):
        if mode == known:
            return mode  # type: ignore[return-value]
    raise DataError(
        f"Unknown search mode {mode!r}. Choose from: {', '.join(get_args(SearchMode))}."
    )


class KeywordMatches(NamedTuple):
    """Items that have words of a query."""

    numbers: _Numbers
    coverage: npt.NDArray[np.float64]  # 0 to 1: of what the words of the query say
    codes: npt.NDArray[np.uint8]  # packed

    def coverage_of(self, numbers: npt.ArrayLike) -> dict[int, float]:
        """Return the coverage of those of the items that match."""
        rows = np.isin(self.numbers, numbers)
        return dict(zip(self.numbers[rows].tolist(), self.coverage[rows].tolist()))


class _Presence(NamedTuple):
    """Items that have a word, in ascending order."""

    numbers: _Numbers
    codes: npt.NDArray[np.uint8]  # packed


class _WordCache:
    """What was read about words, as long as the catalog does not change; threads share it."""

    def __init__(self, file: CatalogFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, ...], Any] = OrderedDict()  # last used last
        self._bytes = 0
        self._changes = 0

    def get(self, key: tuple[str, ...], read: Callable[[], _Read]) -> _Read:
        """Return what `read` returned when it was last called with this key, if it still holds."""
        changed = self._file.has_changed()
        with self._lock:
            if changed:
                self._values.clear()
                self._bytes = 0
                self._changes += 1
            changes = self._changes
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[no-any-return]
        value = read()
        with self._lock:
            # What was read before a change must not be kept after it.
            if changes == self._changes and key not in self._values:
                self._values[key] = value
                self._bytes += _size(value)
                while self._bytes > _CACHE_BYTES:
                    self._bytes -= _size(self._values.popitem(last=False)[1])
        return value


def _size(value: object) -> int:
    arrays = value.numbers.nbytes + value.codes.nbytes if isinstance(value, _Presence) else 0
    return 500 + arrays  # about what a key and its entry take


class KeywordIndex:
    """Keyword searches in a catalog file."""

    def __init__(self, file: CatalogFile) -> None:
        self._file = file
        self._cache = _WordCache(file)

    def rarities(self, words: Sequence[str]) -> dict[str, float]:
        """Return the weight of each word in BM25, of the rarest words if there are many."""
        count = self._cache.get(
            ("items",), lambda: int(self._file.fetch_one("SELECT COUNT(*) FROM items")[0])
        )
        rarities = {}
        for word in dict.fromkeys(words):
            with_word = self._count(word)
            # As in FTS5, so that coverage is a fraction of its scores.
            rarities[word] = max(1e-6, math.log((count - with_word + 0.5) / (with_word + 0.5)))
        rarest = sorted(rarities, key=lambda word: -rarities[word])[:_MAX_QUERY_WORDS]
        return {word: rarities[word] for word in rarest}

    def _count(self, word: str) -> int:
        sql = "SELECT COUNT(*) FROM words WHERE words MATCH ?"
        return self._cache.get(
            ("count", word), lambda: int(self._file.fetch_one(sql, _expression(word))[0])
        )

    def rank(
        self, modality: Modality, rarities: Mapping[str, float], width: int, where: Condition = ALL
    ) -> KeywordMatches:
        """Return the items that have any of the words, ranked by BM25, with codes of `width` bytes.

        The coverage of an item is its BM25 score divided by that of an item of average length that
        has every word once in a field of weight one: rare words count most. It is at most the share
        of the words that the item has, so that one of two in its name does not count like both.
        Equal items are ordered by number.
        """
        numbers, scores, shares, codes = self._rank(modality, rarities, width, where)
        return KeywordMatches(numbers, _coverage(scores, shares, rarities), codes)

    def match(
        self,
        modality: Modality,
        rarities: Mapping[str, float],
        width: int,
        where: Condition = ALL,
        nearest: _Numbers = _NO_NUMBERS,
    ) -> KeywordMatches:
        """Return the items that have any of the words, as `rank` does, in bounded time.

        They are ordered by number. A word that thousands of items have counts as if they were of
        average length and had it once. Of the items with a word that more than 50,000 have, only
        as many are returned, spread evenly, and those among the `nearest`.
        """
        ranked: dict[str, float] = {}
        left = _MAX_RANKED
        for word in sorted(rarities, key=lambda word: -rarities[word]):
            left -= self._count(word)
            if left < 0:
                break
            ranked[word] = rarities[word]
        numbers, scores, shares, codes = self._rank(modality, ranked, width, where)
        parts = [(numbers, scores, shares, codes)]
        for word in rarities:
            if word not in ranked:
                numbers, codes = self._presence(word, modality, width, where, nearest)
                weights = np.full(len(numbers), rarities[word])
                parts.append((numbers, weights, weights, codes))
        numbers, scores, shares, codes = map(np.concatenate, zip(*parts))
        order = np.argsort(numbers, kind="stable")  # merges what is sorted already
        numbers = numbers[order]
        is_first = np.append(True, numbers[1:] > numbers[:-1])[: len(numbers)]
        rows = np.cumsum(is_first) - 1
        scores = np.bincount(rows, scores[order]).astype(np.float64)  # integers if there are none
        shares = np.bincount(rows, shares[order]).astype(np.float64)
        coverage = _coverage(scores, shares, rarities)
        return KeywordMatches(numbers[is_first], coverage, codes[order[is_first]])

    def _rank(
        self, modality: Modality, rarities: Mapping[str, float], width: int, where: Condition
    ) -> tuple[_Numbers, _Floats, _Floats, npt.NDArray[np.uint8]]:
        """Return the best items by BM25: numbers, scores, shares of the words, and codes."""
        weights = ", ".join(str(weight) for _, weight in _FIELDS.values())
        condition, values = where
        rows = self._file.fetch(
            f"SELECT items.number, -bm25(words, {weights}) AS score, code FROM words "
            f"JOIN items ON items.number = words.rowid WHERE words MATCH ? AND modality = ? "
            f"AND {condition} ORDER BY score DESC, items.number LIMIT {MAX_MATCHES}",
            _any_of(rarities), modality, *values,
        ) if rarities else []  # fmt: skip
        numbers = np.array([row[0] for row in rows], np.int64)
        scores = np.array([row[1] for row in rows], np.float64)
        codes = np.frombuffer(b"".join(row[2] for row in rows), np.uint8).reshape(-1, width)
        shares = np.zeros(len(numbers))
        for word, rarity in rarities.items():
            if len(rarities) == 1:  # which all of them have
                shares += rarity
                continue
            sql = "SELECT rowid FROM words WHERE words MATCH ?"
            having = self._file.fetch(sql, _expression(word))
            shares += rarity * np.isin(numbers, [number for (number,) in having])
        return numbers, scores, shares, codes

    def _presence(
        self, word: str, modality: Modality, width: int, where: Condition, nearest: _Numbers
    ) -> _Presence:
        """Return the items that have a common word."""
        condition, values = where
        sql = (
            "SELECT items.number, code FROM words CROSS JOIN items ON items.number = words.rowid "
            f"WHERE words MATCH ? AND modality = ? AND {condition}"
        )

        def read(more: str, *parameters: object) -> _Presence:
            rows = self._file.fetch(f"{sql} AND {more}", *parameters)
            codes = np.frombuffer(b"".join(code for _, code in rows), np.uint8)
            numbers = np.array([number for number, _ in rows], np.int64)
            return _Presence(numbers, codes.reshape(-1, width))

        parameters = (_expression(word), modality, *values)
        # Numbers are scattered, because those of one modality or source may have a pattern.
        step = -(-self._count(word) // _MAX_PRESENT)
        spread = f"(words.rowid * 2654435761 >> 16) % {step} = 0" if step > 1 else "1"
        if not values:
            found = self._cache.get(("presence", word, modality), lambda: read(spread, *parameters))
        else:
            found = read(spread, *parameters)
        if step <= 1:
            return found
        numbers, codes = found
        is_new = numbers.searchsorted(nearest) == numbers.searchsorted(nearest, "right")
        others = json.dumps(nearest[is_new].tolist())
        near = read("words.rowid IN (SELECT value FROM json_each(?))", *parameters, others)
        return _Presence(
            np.concatenate([numbers, near.numbers]), np.concatenate([codes, near.codes])
        )

    def matched_fields(
        self, numbers: Sequence[int], words: Collection[str]
    ) -> dict[int, tuple[str, ...]]:
        """Return for each item that has words of a query the names of the fields that have them."""
        if not words or not numbers:
            return {}
        marked = ", ".join(
            f"highlight(words, {i}, char(1), '') IS NOT words.{name}"
            for i, name in enumerate(_FIELDS)
        )
        rows = self._file.fetch(
            f"SELECT rowid, {marked} FROM words WHERE words MATCH ? "
            "AND rowid IN (SELECT value FROM json_each(?))",
            _any_of(words), json.dumps([int(number) for number in numbers]),
        )  # fmt: skip
        names = [name for name, _ in _FIELDS.values()]
        return {
            row[0]: tuple(name for name, is_match in zip(names, row[1:]) if is_match)
            for row in rows
        }

    def find_corruption(self) -> list[str]:
        """Return what is wrong with the keyword index; items must be intact.

        SQLite's own check writes, so it runs on a copy in memory.
        """
        with sqlite3.connect(":memory:", uri=True, isolation_level=None) as copy:
            copy.execute("ATTACH ? AS run", (self._file.uri,))
            copy.execute(f"CREATE TABLE items (number INTEGER PRIMARY KEY, {_LIST})")
            copy.execute(f"INSERT INTO items SELECT number, {_LIST} FROM run.items")
            copy.execute(KEYWORD_TABLE)
            for part in ("data", "idx", "docsize", "config"):
                copy.execute(f"DELETE FROM words_{part}")
                copy.execute(f"INSERT INTO words_{part} SELECT * FROM run.words_{part}")
            try:
                copy.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
            except sqlite3.DatabaseError as error:
                return [f"the keyword index does not match the items ({error})"]
        return []


_CAMERA_PREFIX = re.compile(r"img|mg|dsc[nf]?|pxl|mvi|vid|dji|gopr|p|pict|wa|scan|screenshot")
_COUNTED_NAME = re.compile(r"[^\W\d_]+[ _-]?\d+")
_INSIDE_NAME = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][^\W\d_A-Z])")


def name_words(name: str) -> str:
    """Return the words of a file or folder name without extension, as text to be indexed.

    Names are split at separators, between letters and digits, and inside camelCase. Numbers are
    counters unless they can be years. A name with a number is added without its separators, so
    that somebody who types IMG_1234 finds it.
    """
    parts = re.findall(r"\d+|[^\W\d_]+", name)
    words, previous = [], ""
    for part in parts:
        if part.isdigit():
            if re.fullmatch(r"(19|20)\d\d", part) and not _CAMERA_PREFIX.fullmatch(previous):
                words.append(part)
        else:
            pieces = _INSIDE_NAME.sub(" ", part).split()
            words += pieces if len(pieces) == 1 else [*pieces, part]  # also iPhone as it is
        previous = part.lower()
    if any(part.isdigit() for part in parts):
        words.append("".join(parts))
    return " ".join(words)


def query_words(text: str, stop_words: Collection[str] = ()) -> list[str]:
    """Return the words of a query that count, in lower case and in order."""
    words = []
    for chunk in text.lower().split():
        stem = re.sub(r"\.[a-z]{2,4}$", "", chunk.strip("\"'.,;:!?()[]{}"))
        if _COUNTED_NAME.fullmatch(stem):  # img_1234, covid-19
            words.append(stem)
            continue
        words += [
            word
            for word in re.findall(r"[^\W_]+", chunk)
            if (len(word) > 1 or not word.isascii())
            and word not in FUNCTION_WORDS
            and word not in stop_words
        ]
    return list(dict.fromkeys(words))


def _expression(word: str) -> str:
    """Return a word as an FTS5 string, which has no syntax; parts of a name are adjacent."""
    joined = "".join(letter for letter in word if letter.isalnum())
    return f'"{joined}"' if joined == word else f'("{joined}" OR "{word}")'


def _coverage(scores: _Floats, shares: _Floats, rarities: Mapping[str, float]) -> _Floats:
    return np.minimum(scores, shares) / (sum(rarities.values()) or 1.0)


def _any_of(words: Collection[str]) -> str:
    return " OR ".join(map(_expression, words))
