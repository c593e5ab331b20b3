"""Prints the script with which a shell completes commands, options and pipeline names: `tidemark completion bash`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")

_BASH: Final = """\
_tidemark() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
        case "$word" in -*) ;; *) words="$(tidemark pipelines --names 2>/dev/null)" ;; esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _tidemark tidemark
"""
_FISH: Final = """\
complete -c tidemark -n __fish_use_subcommand -f -a "{commands}"
complete -c tidemark -n "not __fish_use_subcommand" -a "(tidemark pipelines --names 2>/dev/null)"
"""


def completion(options: argparse.Namespace, commands: Mapping[str, Sequence[str]]) -> int:
    """The script for a shell. `commands` maps each command to its options."""
    names = " ".join(commands)
    if options.shell == "fish":
        flags = (
            f'complete -c tidemark -n "__fish_seen_subcommand_from {name}" -l {flag.removeprefix("--")}\n'
            for name, known in commands.items()
            for flag in known
        )
        print(_FISH.format(commands=names), *flags, sep="", end="")
        return 0
    cases = "\n".join(f'            {name}) words="{" ".join(flags)}" ;;' for name, flags in commands.items())
    before = "autoload -U +X bashcompinit && bashcompinit\n" if options.shell == "zsh" else ""
    print(before + _BASH.format(commands=names, cases=cases), end="")
    return 0
