"""The command line: one file per verb. Data go to standard output, talk goes to standard error."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Sequence

PROGRAM = "sfumato"
DESCRIPTION = (
    "Train image classifiers under differential privacy, and say in one checkable sentence what was promised. "
    "Begin with: sfumato train digits"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0, 1 for a refusal, 2 for a command that cannot be understood."""
    from sfumato._checks import SfumatoError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal can show every class name
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}")
        return 0
    for argument in given:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # what Python makes of bytes that it cannot read
            print(f"error: the argument {argument!r} is not UTF-8; rename what it names", file=sys.stderr)
            return 2
    verb = parse(given)
    if isinstance(verb, int):
        return verb
    try:
        return verb.run()
    except SfumatoError as error:
        print(f"error: {in_options(str(error), verb)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: an unfinished run goes on when the same command is given again", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; check the path, its permissions and the disk", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str]):
    """The verb with its options, or an exit status: after help, or after one line that says what went wrong."""
    import tyro

    from sfumato.cli import verbs

    talk = io.StringIO()
    try:
        with contextlib.redirect_stderr(talk):
            return tyro.extras.subcommand_cli_from_dict(
                verbs.VERBS, prog=PROGRAM, description=DESCRIPTION, args=list(arguments), config=verbs.STYLE
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        known = arguments[0] if arguments and arguments[0] in verbs.VERBS else ""
        print(f"error: {one_line(talk.getvalue())}; see {f'{PROGRAM} {known}'.strip()} --help", file=sys.stderr)
        return 2


def one_line(boxed: str) -> str:
    r"""The parser's boxed message as one line.

    >>> one_line(" Bad\n --- \n Error parsing --steps: no type matching {None}|INT\n could be instantiated from ['x'].")
    "--steps must be a whole number, got 'x'"
    >>> one_line("╭─ Bad ─╮\n│ Unrecognized options: --epsilo │\n│ ─── │\n│ Perhaps you meant: │\n│ --epsilon E │")
    'Unrecognized options: --epsilo; perhaps you meant --epsilon'
    """
    lines = [line.strip("│ \n") for line in boxed.splitlines() if not line.startswith(("╭", "╰"))]
    parts = " ".join("\0" if line.startswith(("──", "---")) else line for line in lines).split("\0")
    if "│" not in boxed:  # without box characters the title is a part of its own
        parts = parts[1:] or parts
    problem, *rest = [re.sub(r"\s+", " ", part).strip() for part in parts]
    problem = re.sub(r" Got errors:.*", "", problem).rstrip(".")
    if problem.startswith("Unrecognized or misplaced options"):  # options of another verb
        problem = re.sub(r" or misplaced| \(applied to [^)]*\)| Arguments are applied.*", "", problem)
        rest = []
    unread = re.fullmatch(
        r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be instantiated from \[(.*)\]", problem
    )
    if unread:
        option, kind, given = unread.groups()
        kinds = {"INT": "a whole number", "FLOAT": "a number"}
        kinds |= {"{[INT [INT ...]]}": "whole numbers", "{[FLOAT [FLOAT ...]]}": "numbers"}
        problem = f"{option} must be {kinds.get(kind, kind)}, got {given}"
    if said := re.fullmatch(r"Error parsing (\S+): (must .+)", problem):
        problem = f"{said[1]} {said[2]}"
    if not problem:
        return "the command cannot be understood"
    for part in rest:
        if meant := re.match(r"Perhaps you meant: (\S+)", part):
            return f"{problem}; perhaps you meant {meant[1]}"
        if part.startswith("Available subcommands: "):
            return f"{problem}; there are {part.removeprefix('Available subcommands: ')}"
    return problem


def in_options(message: str, verb: object) -> str:
    """A refusal of an argument, in the spelling of the command line.

    >>> from sfumato.cli.plan import Plan
    >>> in_options("batch_size must be at least 1, got 0; give the batch size", Plan())
    '--batch-size must be at least 1, got 0; give the batch size'
    """
    name, must, rest = message.partition(" must ")
    if must and name in {field.name for field in dataclasses.fields(verb)}:  # type: ignore[arg-type]
        return f"--{name.replace('_', '-')}{must}{rest}"
    return message
