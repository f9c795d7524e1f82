"""The command line: one file per verb. Results go to standard output, messages to standard error."""

from __future__ import annotations

import difflib
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

PROGRAM = "sfumato"
HELP = ("-h", "--help", "--help-all")
ALL_VERBS = "start with: sfumato train SOURCE, such as folder:pictures"
DESCRIPTION = (
    "Train image classifiers under differential privacy, with a guarantee that can be verified. "
    "Begin with: sfumato train digits"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0, 1 for a refusal, 2 for a command that cannot be parsed."""
    from sfumato._checks import SfumatoError

    if "RANK" in os.environ:  # torchrun started this process
        from sfumato.cli.running import silence_followers

        silence_followers()
    if "torch" not in sys.modules:
        # On a busy machine, threads that spin while they wait take CPU time from the threads that they wait for.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some terminals cannot show all class names
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}")
        return 0
    for argument in words:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # surrogates: bytes that are not UTF-8
            print(f"error: the argument {argument!r} is not UTF-8; rename the file", file=sys.stderr)
            return 2
    verb: Any = None
    try:
        verb = parse(words)
        if isinstance(verb, int):
            return verb
        from sfumato.cli import running

        running.refuse_absent(verb)
        return running.run(verb)
    except SfumatoError as error:
        from sfumato.cli.parser import UsageError
        from sfumato.cli.running import with_option_names

        print(f"error: {with_option_names(f'{error.problem}; {error.remedy}', verb)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except (MemoryError, RuntimeError) as error:
        from sfumato._devices import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        print("error: out of memory; free some, or use fewer or smaller images at a time", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: repeat the command to resume an unfinished run", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; check the path, its permissions and the disk", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str]):
    """Parse a command. Returns the verb with its options, or the exit status 0 after printing help.

    Errors: `UsageError` for a command that cannot be parsed.
    """
    from sfumato.cli.parser import UsageError
    from sfumato.cli.registry import VERBS, load

    name, *rest = arguments or ("",)
    if name in HELP:
        print(overview())
        return 0
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        remedy = f"perhaps you meant {near[0]}" if near else ALL_VERBS
        raise UsageError(f"unknown verb {name!r}" if name else "no verb is given", f"{remedy}; see {PROGRAM} --help")
    from sfumato.cli import parser

    if not {*HELP}.isdisjoint(rest):
        print(parser.parser_of(load(name), every=HELP[-1] in rest).format_help(), end="")
        return 0
    return parser.parse(load(name), rest)


def overview() -> str:
    """The output of `sfumato --help`: all verbs, without importing them."""
    from sfumato.cli.registry import VERBS

    width = max(map(len, VERBS))
    listing = [f"  {name:<{width}}  {summary}" for name, summary in VERBS.items()]
    usage = f"usage: {PROGRAM} [-h] [--version] VERB ..."
    further = f"{PROGRAM} VERB --help shows the options of a verb; where there are many, --help-all shows every one"
    return "\n".join([usage, "", *textwrap.wrap(DESCRIPTION, 80), "", "verbs:", *listing, "", further])
