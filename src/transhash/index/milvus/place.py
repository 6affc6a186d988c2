"""Where codes live in Milvus, read from what follows "milvus:" in a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from transhash.errors import DataError

INDEX_TYPES = ("BIN_FLAT", "BIN_IVF_FLAT")
_MOST_LISTS = 65_536
CONSISTENCY = ("Strong", "Session", "Bounded", "Eventually")


@dataclass(frozen=True)
class Place:
    """Where codes live: "file.db#part" or "http://host:19530/collection?index=...#part"."""

    uri: str
    collection: str = "transhash"
    part: str = ""  # what follows "#", e.g. the modality
    index_type: str = "BIN_FLAT"
    nlist: int = 128  # of BIN_IVF_FLAT: lists the codes are divided into
    nprobe: int | None = None  # of BIN_IVF_FLAT: lists a query looks at; None: all, hence exact
    consistency: str = "Strong"

    @property
    def embedded(self) -> bool:
        return "://" not in self.uri

    @property
    def partition(self) -> str | None:
        return None if self.embedded else self.part or None

    @property
    def table(self) -> str:
        """The collection that is spoken to. Milvus Lite has no partitions: a part is one there."""
        return f"{self.collection}_{self.part}" if self.embedded and self.part else self.collection

    def __str__(self) -> str:
        part = f"#{self.part}" if self.part else ""
        return f"milvus:{self.uri}{'' if self.embedded else '/' + self.collection}{part}"

    @classmethod
    def parse(cls, location: str) -> Place:
        rest, _, part = location.partition("#")
        rest, _, query = rest.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if "://" in rest:
            uri, collection = _server(rest)
        else:
            uri, collection = rest, options.pop("collection", "")
            if not uri.endswith(".db"):
                raise DataError(
                    f"milvus:{location} is neither a server (milvus:http://host:19530/collection) "
                    "nor a Milvus Lite file, whose name ends in .db (milvus:./codes.db)"
                )
            if not re.fullmatch("[A-Za-z0-9._-]{1,36}", Path(uri).name):
                raise DataError(
                    "Milvus Lite takes up to 36 letters, digits, dots, - and _ in the name of a "
                    f"file, got {Path(uri).name!r}"
                )
        collection = collection or cls.collection
        for what, name in (("collection", collection), ("part after #", part or "_")):
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,200}", name):
                raise DataError(
                    f"Milvus takes letters, digits and _ in the name of a {what}, got {name!r}"
                )
        return cls(uri, collection, part, **_options(location, options))


def _server(url: str) -> tuple[str, str]:
    """Address and collection of "http://host:19530/collection"."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        good = False
    if "@" in url:
        raise DataError(
            "credentials do not belong in a milvus: URL, which ends up in logs; set "
            "MILVUS_TOKEN, or MILVUS_USER and MILVUS_PASSWORD, in the environment"
        )
    if not good:
        raise DataError(f"{url} is no address of a server; use http://host:19530/collection")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _options(location: str, options: dict[str, str]) -> dict[str, Any]:
    try:
        nprobe = options.pop("nprobe", None)
        chosen: dict[str, Any] = {
            "index_type": options.pop("index", "BIN_FLAT").upper(),
            "nlist": int(options.pop("nlist", Place.nlist)),
            "nprobe": None if nprobe is None else int(nprobe),
            "consistency": options.pop("consistency", "Strong").capitalize(),
        }
    except ValueError as error:
        raise DataError(
            f"milvus:{location}: nlist and nprobe are whole numbers ({error})"
        ) from None
    for name in ("nlist", "nprobe"):
        if chosen[name] is not None and not 1 <= chosen[name] <= _MOST_LISTS:
            raise DataError(f"milvus:{location}: {name} goes from 1 to {_MOST_LISTS:,}")
    if options:
        raise DataError(
            f"milvus:{location}: there is no option {next(iter(options))!r}; "
            "use index, nlist, nprobe or consistency"
        )
    for name, allowed in (("index_type", INDEX_TYPES), ("consistency", CONSISTENCY)):
        if chosen[name] not in allowed:
            raise DataError(f"milvus:{location}: {chosen[name]} is not one of {', '.join(allowed)}")
    return chosen
