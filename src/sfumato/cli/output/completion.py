"""`sfumato --completion SHELL`: a script by which a shell completes verbs, options and paths."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import tyro

from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.output.help import full
from sfumato.cli.registry import VERBS, load

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, program: str) -> str:
    """The script for a shell; whatever is neither verb nor option is completed as a path.

    Errors: `UnclearError` for a shell that none is written for.
    """
    if shell not in SHELLS:
        raise UnclearError(
            f"--completion must be one of {', '.join(SHELLS)}, got {shell!r}", "name one of these shells"
        )
    if shell == "fish":
        return "\n".join(_fish(program))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(
            {name: load(name) for name in VERBS},
            prog=program,
            args=["--tyro-print-completion", shell],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    return "\n".join(map(_mended, printed.getvalue().splitlines()))


def _mended(line: str) -> str:
    """A line of the parser's script: what an option is for on one line, and paths where there is nothing else."""
    if line.startswith("COMPLETION_SPEC"):
        return line.replace(r"\n", " ").replace("'--help'", "'--help', '--help-all'")
    return line.replace("complete -F ", "complete -o default -F ")


def _fish(program: str) -> Iterator[str]:
    """The lines for fish, which the parser writes none for."""
    yield f"complete -c {program} -n __fish_use_subcommand -f"
    for name, purpose in VERBS.items():
        yield f"complete -c {program} -n __fish_use_subcommand -a {name} -d {_quoted(purpose)}"
        seen = f"'__fish_seen_subcommand_from {name}'"
        for options in full(load(name)).options.values():
            for one in options:
                option = one.usage.split("--", 1)[1].split()[0]
                takes = " -r" if one.usage.partition(f"--{option}")[2] else ""
                yield f"complete -c {program} -n {seen} -l {option}{takes} -d {_quoted(one.until('.').purpose)}"
        yield f"complete -c {program} -n {seen} -l help-all -d 'Show every option.'"


def _quoted(text: str) -> str:
    """A text as one word of fish.

    >>> print(_quoted("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
