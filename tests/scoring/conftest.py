"""Run folders, as in tests/search."""

from search.conftest import indexed_run, run

__all__ = ["indexed_run", "run"]
