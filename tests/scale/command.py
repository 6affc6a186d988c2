"""Runs the command line in this process: importing torch in a new one takes seconds."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from transhash.cli import main


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def scores(self) -> dict[str, Any]:
        """The output of --json."""
        scores: dict[str, Any] = json.loads(self.out)
        return scores

    @property
    def directions(self) -> tuple[Any, Any]:
        scores = self.scores
        return scores["image_to_text"], scores["text_to_image"]


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch

    def __call__(self, *arguments: object, code: int = 0) -> CommandResult:
        self._patch.setattr(sys, "argv", ["transhash", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        assert end.value.code == code, (out, err)
        return CommandResult(code, out, " ".join(err.split()))

    def refused(self, *arguments: object) -> str:
        """Return the error message of a command that must fail."""
        result = self(*arguments, code=2)
        assert result.err.startswith("error: ") or " error: " in result.err
        assert "Traceback" not in result.err
        return result.err.rpartition("error: ")[2]
