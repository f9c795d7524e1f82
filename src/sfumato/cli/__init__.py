"""The command line: one file per verb. Data go to standard output, talk goes to standard error."""

from __future__ import annotations

import contextlib
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

    verb = parse(sys.argv[1:] if arguments is None else list(arguments))
    if isinstance(verb, int):
        return verb
    try:
        return verb.run()
    except SfumatoError as error:
        print(f"error: {error}", file=sys.stderr)
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
    """The parser's boxed message as one line.

    >>> one_line('╭─ Bad ─╮\\n│ Unrecognized options: --epsilo │\\n│ ──── │\\n│ For full help │\\n╰──╯')
    'Unrecognized options: --epsilo'
    """
    inner = [line.strip("│ \n") for line in boxed.splitlines() if line.startswith("│")]
    words: list[str] = []
    for line in inner:
        if line.startswith("──"):
            if any("Perhaps you meant" in word for word in inner) and "Perhaps you meant" not in " ".join(words):
                continue
            break
        if line.startswith(("Argument helptext", "For full helptext")):
            break
        words.append(line)
    text = re.sub(r"\s+", " ", " ".join(words)).strip()
    text = re.sub(r"no type matching \S+ could be instantiated from", "cannot be read from", text)
    text = re.sub(r" Got errors:.*", "", text)
    text = re.sub(r" For full helptext.*", "", text)
    text = re.sub(r"\{None\}\|", "", text)
    return text.rstrip(".") or "the command cannot be understood"
