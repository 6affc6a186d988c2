"""docs/cli.md is generated from the commands' help; commands in other pages exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer

from transhash.cli import load_commands

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "site" / "cli_reference.py"
MAX_HELP = 70
LONG_HELP = {"method", "relation", "features", "text_features", "store"}  # list their values
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "compose.yaml"])


def test_the_reference_page_is_up_to_date() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), f"run python {SCRIPT}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_the_docs_exist(page: Path) -> None:
    group: Any = typer.main.get_command(load_commands())
    text = re.sub(r"\\\n\s*(?:# *)?", " ", page.read_text(encoding="utf-8"))
    unknown = []
    for match in re.finditer(r"\btranshash ([a-z]+)((?:[^\S\n]+[^`|;&\n]*)?)", text):
        name, arguments = match.groups()
        options = re.findall(r"(?<=\s)--[a-z][a-z-]*", arguments.split(" # ")[0])
        if name not in group.commands:
            unknown += [match.group()] if options else []  # else prose about transhash
            continue
        known = {o for p in group.commands[name].params for o in (*p.opts, *p.secondary_opts)}
        unknown += [f"{name} {option}" for option in options if option not in {*known, "--help"}]
    assert unknown == []


def test_every_command_has_an_example_and_short_help() -> None:
    group: Any = typer.main.get_command(load_commands())
    for name, command in group.commands.items():
        assert "Example: `transhash" in command.help, name
        for parameter in command.params:
            text = getattr(parameter, "help", None)
            assert text, (name, parameter.name)
            assert len(text) < MAX_HELP or parameter.name in LONG_HELP, text
