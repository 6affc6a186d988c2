"""The scripts of `transhash completion`, in real shells that are asked what Tab would offer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What the shell does at Tab: the registered function is called with the words of the line.
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function=$(complete -p transhash | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" transhash "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
# A terminal of its own, where Tab is pressed; what the completion system adds is written to a file.
ZSHRC = """
PROMPT=READY
zstyle ':completion:*' insert-tab false
autoload -U compinit; compinit -u -D
source transhash.zsh
compadd() {
    local -a found
    [[ " $* " == *" -"[OAD]" "* ]] || builtin compadd -O found "$@"
    print -rl -- $found >> offers
    builtin compadd "$@"
}
"""
ZSH = """
zmodload zsh/zpty
zpty shell zsh -i
zpty -r shell line '*READY*'
zpty -w -n shell "$1"$'\\t'
zpty -w shell $'\\x15exit'
while zpty -r shell line; do :; done
cat offers
"""


def offered(shell: str, folder: Path, *words: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = [sys.executable, "-m", "transhash", "completion", shell]
    script = folder / f"transhash.{shell}"
    with script.open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    line = " ".join(words)
    (folder / ".zshrc").write_text(ZSHRC)
    (folder / "offers").write_text("")
    asked = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", script, *words],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", line],
        "fish": ["fish", "--no-config", "-c", f"source '{script}'; complete -C '{line}'"],
    }[shell]
    done = subprocess.run(
        list(map(str, asked)), capture_output=True, text=True, cwd=folder, timeout=120,
        env={**os.environ, "HOME": str(folder), "ZDOTDIR": str(folder)},
    )  # fmt: skip
    assert done.stderr == "", done.stderr
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_their_options_are_completed(shell: str, tmp_path: Path) -> None:
    assert set(offered(shell, tmp_path, "transhash", "ex")) == {"experiment", "export"}
    assert set(offered(shell, tmp_path, "transhash", "search", "run", "--te")) == {"--text"}
    assert offered(shell, tmp_path, "transhash", "doctor", "--te") == []


def test_a_word_that_is_no_option_is_left_to_the_shell_as_a_name_of_a_file(tmp_path: Path) -> None:
    assert offered("bash", tmp_path, "transhash", "search", "ru") == []


def test_every_command_that_help_shows_is_offered(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "transhash", "--help"], capture_output=True, encoding="utf-8",
        check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
    ).stdout.partition("Commands")[2]  # fmt: skip
    listed = set(re.findall(r"^\W? ([a-z]+) ", shown, re.MULTILINE))
    words = offered("bash", tmp_path, "transhash", "")
    assert listed == {word for word in words if not word.startswith("-")}
    assert "fit" in listed
