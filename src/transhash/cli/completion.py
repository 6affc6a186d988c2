"""completion: a script for the shell, written from the commands themselves.

Nothing of transhash runs when Tab is pressed: commands and options are in the script, everything
else is completed as a name of a file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import typer

from transhash.cli import app


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class _Option(NamedTuple):
    name: str
    about: str
    has_value: bool


class _Command(NamedTuple):
    name: str
    about: str
    options: list[_Option]


@app.command()
def completion(
    shell: Shell = typer.Argument(..., help="The shell it is written for."),
) -> None:
    """Print a script that completes commands, options and files when Tab is pressed.

    Example: `source <(transhash completion bash)`

    Bash and zsh read it by that line in `~/.bashrc` or `~/.zshrc`, there after `compinit`; fish by
    `transhash completion fish | source` in `~/.config/fish/config.fish`.
    """
    write = {Shell.bash: _bash, Shell.zsh: _zsh, Shell.fish: _fish}[shell]
    print("\n".join(write(_commands())))


def _commands() -> list[_Command]:
    group = typer.main.get_command(app)
    found = []
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        options = [_Option("--help", "Show this message and exit.", False)]
        for parameter in command.params:
            flag = getattr(parameter, "is_flag", False)
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-"):
                    options.append(_Option(option, _sentence(parameter.help or ""), not flag))
        found.append(_Command(name, _sentence(command.help or ""), options))
    return found


def _sentence(text: str) -> str:
    return text.strip().split("\n")[0]


def _bash(commands: list[_Command]) -> list[str]:
    return [
        "_transhash() {",
        '    local words="" word="${COMP_WORDS[COMP_CWORD]}"',
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f'        words="{" ".join(command.name for command in commands)} --help --version"',
        '    elif [[ "$word" == -* ]]; then',
        '        case "${COMP_WORDS[1]}" in',
        *(
            f'            {name}) words="{" ".join(option.name for option in options)}" ;;'
            for name, _, options in commands
        ),
        "        esac",
        "    fi",
        '    [[ -z "$words" ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _transhash transhash",  # default: names of files
    ]


def _zsh(commands: list[_Command]) -> list[str]:
    def quoted(text: str) -> str:
        return text.replace("'", "'\\''")

    def spec(option: _Option) -> str:
        about = option.about.replace("\\", "\\\\")
        for letter in "[]:":
            about = about.replace(letter, f"\\{letter}")
        return f"'*{option.name}[{quoted(about)}]{':value:_files' if option.has_value else ''}'"

    return [
        "#compdef transhash",
        "_transhash() {",
        "    local -a commands=(",
        *(f"        '{name}:{quoted(about)}'" for name, about, _ in commands),
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
        "    shift words",
        "    (( CURRENT-- ))",
        '    case "$words[1]" in',
        *(
            f"        {name}) _arguments {' '.join(map(spec, options))} '*:file:_files' ;;"
            for name, _, options in commands
        ),
        "    esac",
        "}",
        # Loaded from a folder of $fpath, this file is the function; else it is read by source.
        'if [[ "$funcstack[1]" == _transhash ]]; then _transhash "$@"',
        "else compdef _transhash transhash; fi",
    ]


def _fish(commands: list[_Command]) -> list[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    for name, about, options in commands:
        first = "complete -c transhash -n __fish_use_subcommand -f"
        lines.append(f"{first} -a {name} -d {quoted(about)}")
        inside = f"complete -c transhash -n '__fish_seen_subcommand_from {name}'"
        for option in options:
            long = option.name.startswith("--")
            flag = f"-l {option.name[2:]}" if long else f"-s {option.name[1:]}"
            value = " -r" if option.has_value else ""
            lines.append(f"{inside} {flag}{value} -d {quoted(option.about)}")
    return lines
