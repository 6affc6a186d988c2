"""SearchFilter: restrict a search to a folder, a source or dates."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from transhash.errors import DataError, check_type


@dataclass(frozen=True)
class SearchFilter:
    """Conditions that a result must meet. Items without a date meet no condition on dates."""

    folder: str | None = None  # inside the source, or an absolute path
    after: str | None = None  # first date on which an image was taken: YYYY, YYYY-MM or YYYY-MM-DD
    before: str | None = None  # last one, included: 2023 means until the end of 2023
    source: str | None = None  # folder or file that was indexed, or its name without folders

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_type(value, (str, type(None)), f"The filter {name}", "a text, or None")
        for value in (self.after, self.before):
            if value is not None:
                _check_date(value)

    def __bool__(self) -> bool:
        return self != NO_FILTER

    def sql(self) -> tuple[str, list[str]]:
        """Return the conditions on a row of `items`, and the values of their parameters."""
        parts, values = ["1"], []
        if self.folder is not None:
            folder = self.folder.replace(os.sep, "/").rstrip("/").removeprefix("./")
            inside = "({0} >= ? AND {0} < ?)"
            limits = [f"{folder}/", f"{folder}0"]  # "0" follows "/"
            if self.folder.startswith("/") or os.path.isabs(self.folder):
                from_folder = f"{_SOURCE_NAME} || '/' || items.location"
                parts.append(f"({inside.format('items.path')} OR {inside.format(from_folder)})")
                values += [*limits, *limits]
            elif folder not in ("", "."):
                parts.append(inside.format("items.location"))
                values += limits
        if self.after is not None:
            parts.append("items.taken >= ?")
            values.append(self.after)
        if self.before is not None:
            parts.append("items.taken < ?")
            values.append(f"{self.before}~")  # "~" follows all that dates contain
        if self.source is not None:
            source = self.source.rstrip("/")
            parts.append(f"({_SOURCE_NAME} = ? OR substr({_SOURCE_NAME}, -length(?)) = ?)")
            values += [source, f"/{source}", f"/{source}"]
        return " AND ".join(parts), values


DATE_PATTERN = r"^[1-9]\d{3}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$"
_SOURCE_NAME = "(SELECT sources.name FROM sources WHERE sources.number = items.source)"
NO_FILTER = SearchFilter()


def _check_date(value: str) -> None:
    # Dates are compared as text, so that the 31st of any month does as its last day.
    if not re.fullmatch(DATE_PATTERN, value):
        raise DataError(
            f"{value!r} is not a date. Use YYYY, YYYY-MM or YYYY-MM-DD, such as 2023-05."
        )
