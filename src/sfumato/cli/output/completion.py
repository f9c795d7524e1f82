"""`sfumato --completion SHELL`: a script by which a shell completes verbs and options."""

from __future__ import annotations

import contextlib
import io

from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.registry import VERBS, load

SHELLS = ("bash", "zsh")


def script(shell: str, program: str) -> str:
    """The script for a shell; whatever is neither verb nor option is completed as a path.

    Errors: `UnclearError` for a shell that none is written for.
    """
    import tyro

    if shell not in SHELLS:
        raise UnclearError(
            f"--completion must be one of {', '.join(SHELLS)}, got {shell!r}", "name one of these shells"
        )
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
