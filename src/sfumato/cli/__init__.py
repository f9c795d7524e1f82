"""The command line: one file per verb. Results go to standard output, messages to standard error."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

PROGRAM = "sfumato"
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
ALIASES = {
    "help": "--help",
    "version": "--version",
    "fit": "train",
    "finetune": "train",
    "resume": "train RUN",
    "test": "evaluate",
    "eval": "evaluate",
    "score": "evaluate",
    "infer": "predict",
    "classify": "predict",
    "convert": "export",
    "deploy": "serve",
    "ls": "runs",
    "list": "runs",
    "diff": "compare",
    "history": "spent",
    "search": "sweep",
    "tune": "sweep",
    "attack": "audit",
    "check": "verify",
    "stop": "finish",
    "init": "doctor",
}
"""Names that other programs use for these verbs."""
ALL_VERBS = "start with: sfumato train SOURCE, such as folder:pictures"
DESCRIPTION = (
    "Train image classifiers under differential privacy, with a guarantee that can be verified. "
    "Begin with: sfumato train digits"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0, 1 for a refusal, 2 for a command that cannot be parsed."""
    from sfumato.cli.output import processes

    with processes.silence_followers():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    from sfumato._checks import SfumatoError
    from sfumato.cli.output import processes

    if "torch" not in sys.modules:
        # On a busy machine, threads that spin while they wait take CPU time from the threads that they wait for.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some terminals cannot show all class names
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}")
        return 0
    for argument in given:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):  # surrogates: bytes that are not UTF-8
            print(f"error: the argument {argument!r} is not UTF-8; rename the file", file=sys.stderr)
            return 2
    verb: Any = None
    try:
        verb = parse(given)
        if isinstance(verb, int):
            return verb
        from sfumato.cli.output.missing import refuse_absent

        refuse_absent(verb)
        return processes.run(verb, given)
    except SfumatoError as error:
        from sfumato.cli.options.spellings import UsageError
        from sfumato.cli.output.refusals import with_option_names

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
    """Parse a command. Returns the verb with its options, or an exit status after printing help or an error."""
    from sfumato.cli.registry import VERBS, load

    name, *rest = arguments or ("",)
    if name in (*HELP, HELP_ALL):
        print(overview())
        return 0
    if name in ("--completion", "--complete"):
        from sfumato.cli.output import completion

        shell, line, breaks = (*rest, "", "", "")[:3]
        completing = name == "--complete"
        found = completion.complete(shell, line, breaks, PROGRAM) if completing else [completion.script(shell, PROGRAM)]
        print("\n".join(found))
        return 0
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        remedy = f"perhaps you meant {ALIASES.get(name) or near[0]}" if near or name in ALIASES else ALL_VERBS
        problem = f"unknown verb {name!r}" if name else "no verb is given"
        print(f"error: {problem}; {remedy}; see {PROGRAM} --help", file=sys.stderr)
        return 2
    if not {*HELP, HELP_ALL}.isdisjoint(rest):
        from sfumato.cli.output import help as pages

        place = next(place for place, word in enumerate(rest) if word in (*HELP, HELP_ALL))
        topic = pages.ALL if rest[place] == HELP_ALL else " ".join(rest[place + 1 :])
        print(pages.topic_text(load(name), topic))
        return 0
    import tyro

    from sfumato.cli.options.spellings import annotate_for_tyro

    printed, program = io.StringIO(), f"{PROGRAM} {name}"
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                annotate_for_tyro(load(name)), prog=program, args=rest, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        from sfumato.cli.output.refusals import one_line, suggest_option

        problem = suggest_option(one_line(printed.getvalue()), load(name), rest)
        print(f"error: {problem}; see {program} --help", file=sys.stderr)
        return 2


def overview() -> str:
    """The output of `sfumato --help`: all verbs, without importing them."""
    from sfumato.cli.registry import VERBS

    width = max(map(len, VERBS))
    listing = [f"  {name:<{width}}  {summary}" for name, summary in VERBS.items()]
    usage = f"usage: {PROGRAM} [-h] [--version] [--completion SHELL] VERB ..."
    further = f"{PROGRAM} VERB --help shows the options of a verb; where there are many, --help all shows every one"
    return "\n".join([usage, "", *textwrap.wrap(DESCRIPTION, 80), "", "verbs:", *listing, "", further])
