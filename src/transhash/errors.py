"""Errors meant for the user. Each message says what is wrong and what to do."""


class TranshashError(Exception):
    """Base class. The command line prints the message and exits with status 2."""


class DataError(TranshashError, ValueError):
    """A file, row or argument cannot be used."""


class EmptySourceError(DataError):
    """A folder or file is missing, or has no items and nothing that could not be read."""


class NotFittedError(TranshashError, RuntimeError):
    """A hasher or feature extractor was used before `fit` or `load`."""


class EngineError(TranshashError, RuntimeError):
    """An index refused an operation: wrong code length, second writer, server unreachable."""


class IndexNotFoundError(EngineError):
    """An index opened for reading does not exist."""

    def __init__(self, location: object) -> None:
        super().__init__(f"No index at {location}. Add items first.")


class CorruptionError(EngineError):
    """Stored data differ from what was written. `details` has one phrase per file."""

    def __init__(self, *details: str) -> None:
        self.details = details
        super().__init__(f"{'. '.join(details)}. Restore a backup or rebuild the index.")


def type_name(value: object) -> str:
    """Return the type of a value with its article, for messages."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def check_type(value: object, kinds: type | tuple[type, ...], name: str, expected: str) -> None:
    """Raise a DataError unless `value` is of one of the types; `expected` says what to pass."""
    if not isinstance(value, kinds):
        raise DataError(f"{name} is {type_name(value)}. Pass {expected}.")
