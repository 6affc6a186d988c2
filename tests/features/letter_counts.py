"""A simple embedder for tests."""

from pathlib import Path
from typing import Any

import numpy as np

from transhash.features.embedders import embed_in_batches
from transhash.progress import Track, no_progress


class LetterCounts:
    """Counts of some letters."""

    name = "letters"
    key: str | None = None

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def cache_key(self) -> str | None:
        return self.key

    def embed(self, texts: Any, track: Track = no_progress) -> Any:
        self.embedded += texts
        return embed_in_batches(self._rows, texts, track)

    def _rows(self, texts: Any) -> Any:
        return np.array([[text.count(letter) for letter in "aeiost"] for text in texts], np.float32)

    def knows_word(self, word: str) -> bool:
        return True

    def save(self, folder: Path) -> dict[str, Any]:
        return {}
