"""The command as a user gives it, in this process: importing torch anew takes seconds."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from transhash.cli import main


class RawTexts(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def scores(self) -> dict[str, Any]:
        """What --json printed."""
        scores: dict[str, Any] = json.loads(self.out)
        return scores

    @property
    def directions(self) -> tuple[Any, Any]:
        scores = self.scores
        return scores["image_to_text"], scores["text_to_image"]


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch

    def __call__(self, *arguments: object, code: int = 0) -> RawTexts:
        self._patch.setattr(sys, "argv", ["transhash", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        assert end.value.code == code, (out, err)
        return RawTexts(code, out, " ".join(err.split()))

    def refused(self, *arguments: object) -> str:
        """The one sentence of a refusal."""
        said = self(*arguments, code=2)
        assert said.err.startswith("error: ") or " error: " in said.err
        assert "Traceback" not in said.err
        return said.err.rpartition("error: ")[2]
