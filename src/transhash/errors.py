"""The three ways a call can be refused; each message says what, where and what to do."""


class TranshashError(Exception):
    """Base of all errors meant for the user; the command line prints them and exits with 2."""


class DataError(TranshashError, ValueError):
    """A file, row or argument cannot be used."""


class NotFittedError(TranshashError, RuntimeError):
    """A hasher or feature extractor was used before `fit` or `load`."""


class EngineError(TranshashError, RuntimeError):
    """A search engine refused: wrong code length, second writer, server away."""


class IndexNotFoundError(EngineError):
    """An index that was to be read is not there."""

    def __init__(self, place: object) -> None:
        super().__init__(f"there is no index at {place} to read; add items first")


class CorruptionError(EngineError):
    """What is stored is not what was written; `what` says it, a phrase for each file."""

    def __init__(self, *what: str) -> None:
        self.what = what
        them = "it" if len(what) == 1 else "them"
        super().__init__(f"{' and '.join(what)}; restore {them} from a copy or rebuild the index")
