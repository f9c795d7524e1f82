"""Error messages on one line, in the spelling of the command line, with a suggestion for unknown options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import pairwise, zip_longest

OPTIONS = {"directory": "output"}
"""Arguments of the library that have another name on the command line."""


def suggest_option(problem: str, verb: type, arguments: Sequence[str] = ()) -> str:
    """The message, with the option that was probably meant if other libraries have another name for it.

    Args:
        arguments: the words of the command. The sizes among them convert epochs to steps.

    >>> from sfumato.cli.verbs.train import Train
    >>> suggest_option("Unrecognized options: --lr, 0.5", Train)
    'Unrecognized options: --lr, 0.5; perhaps you meant --learning-rate'
    >>> suggest_option("Unrecognized options: --amp; perhaps you meant --examples", Train)
    'Unrecognized options: --amp; use --precision bfloat16; norms, sums and noise keep full precision'
    """
    if problem.startswith("an argument is missing"):
        known = {field.name for field in dataclasses.fields(verb)}
        odd = [word for word in arguments if word.startswith("--") and _name_of(word) not in known]
        problem = f"Unrecognized options: {odd[0]}" if odd else problem
    if unknown := re.match(r"Unrecognized options: (?:[^-][^,]*, )*--?([\w-]+)", problem):
        from sfumato.experiment.foreign_options import OPTIMIZER_OPTIONS, THEIR_OWN, foreign_hint, is_alias, is_foreign

        known, name = {field.name for field in dataclasses.fields(verb)}, _name_of(unknown[1])
        if name in OPTIMIZER_OPTIONS and "optimizer" in known:
            own = THEIR_OWN.format("--momentum", "--weight-decay", "--learning-rate")
            return f"{problem.partition(';')[0]}; leave it out: {own}"
        given = value_of(unknown[1], arguments)
        sizes = {size: value_of(size.replace("_", "-"), arguments) for size in ("examples", "batch_size")}
        found = foreign_hint(name, known, given=given, **sizes)
        near = re.fullmatch(r"did you mean `(\w+)`", found or "")
        if near and ("perhaps" not in problem or is_alias(name, known)):
            return f"{problem.partition(';')[0]}; perhaps you meant --{near[1].replace('_', '-')}"
        if found is not None and near is None:
            return f"{problem.partition(';')[0]}; {_in_options(found, verb)}"
        return problem.partition(";")[0] if is_foreign(name) and found is None else problem
    return _too_many(problem, arguments)


def _too_many(problem: str, arguments: Sequence[str]) -> str:
    """The message for a surplus argument, which the parser reports as an unknown option."""
    unknown = re.fullmatch(r"Unrecognized options: ([^-][^,]*)", problem)
    if unknown is None:
        return problem
    from sfumato.data.kinds import KINDS

    before = next((first for first, second in pairwise(arguments) if second == unknown[1]), "")
    meant = f"; perhaps you meant {before}:{unknown[1]}" if before in KINDS and KINDS[before].argument else ""
    return f"one argument too many: {unknown[1]}{meant}"


def _name_of(word: str) -> str:
    """The name of an option's field."""
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option on the command line; None if it has none.

    >>> value_of("steps", ["--steps", "3", "--bs=4"]), value_of("bs", ["--bs=4"]), value_of("a", ["--a"])
    ('3', '4', None)
    """
    for word, after in zip_longest(arguments, arguments[1:]):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == option:
            return value if equals else after
    return None


def one_line(boxed: str) -> str:
    r"""The parser's boxed message as one line.

    >>> one_line(" Bad\n --- \n Error parsing --steps: no type matching {None}|INT\n could be instantiated from ['x'].")
    "--steps must be a whole number, got 'x'"
    >>> one_line("╭─ Bad ─╮\n│ Unrecognized options: --epsilo │\n│ ─── │\n│ Perhaps you meant: │\n│ --epsilon E │")
    'Unrecognized options: --epsilo; perhaps you meant --epsilon'
    >>> one_line("╭─ Missing ─╮\n│ Missing from sfumato features: --backbone NAME Timm:NAME, or a run. (required) │")
    '--backbone is missing: timm:NAME, or a run'
    >>> one_line("╭─ Missing ─╮\n│ Missing from sfumato evaluate: RUN A run. (required) SOURCE Digits. (required) │")
    'RUN and SOURCE are missing'
    """
    lines = [line.strip("│ \n") for line in boxed.splitlines() if not line.startswith(("╭", "╰"))]
    parts = " ".join("\0" if line.startswith(("──", "---")) else line for line in lines).split("\0")
    if "│" not in boxed:  # without box characters, the title is a separate part
        parts = parts[1:] or parts
    problem, *rest = [re.sub(r"\s+", " ", part).strip() for part in parts]
    problem = re.sub(r" Got errors:.*", "", problem).rstrip(".")
    unread = re.fullmatch(
        r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be instantiated from \[(.*)\]", problem
    )
    if unread:
        option, kind, given = unread.groups()
        kinds = {"INT": "a whole number", "FLOAT": "a number"}
        kinds |= {"{[INT [INT ...]]}": "whole numbers", "{[FLOAT [FLOAT ...]]}": "numbers"}
        problem = f"{option} must be {kinds.get(kind, kind)}, got {given}"
    if refused := re.fullmatch(r"Error parsing (\S+): (must .+)", problem):
        problem = f"{refused[1]} {refused[2]}"
    if unread := re.fullmatch(r"Error parsing (\S+): (invalid literal for int|could not convert).*: (.+)", problem):
        problem = f"{unread[1]} must be a {'whole ' if 'int' in unread[2] else ''}number, got {unread[3]}"
    if chosen := re.fullmatch(r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.+)\)", problem):
        allowed = sorted({name.strip("' ") for name in chosen[3].split(",")} - {"None"}, reverse=True)
        problem = f"{chosen[2]} must be {' or '.join(allowed)}, got {chosen[1]}"
    # tyro 1.0 prints the name as a tuple: "argument '('--interval',)'".
    if valueless := re.fullmatch(
        r"Missing value for argument '(?:\(')?(\S+?)(?:',\))?'\. Expected (\d+) values?", problem
    ):
        named = valueless[1].startswith("-")
        several = "" if valueless[2] == "1" else f": {valueless[2]} are needed"
        problem = f"{valueless[1]} needs a value" if named else f"an argument is missing{several}"
    if missing := re.fullmatch(r"Missing from [^:]+: (.+ \(required\))", problem):
        (name, meant), *others = re.findall(r"(\S+) (?:[A-Z]{2,} )?(.+?)\.? \(required\)", missing[1])
        names = " and ".join([name, *(other for other, _ in others)])
        problem = f"{names} are missing" if others else f"{name} is missing: {meant[0].lower()}{meant[1:]}"
    if not problem:
        return "the command cannot be parsed"
    for part in rest:
        if meant := re.match(r"Perhaps you meant: (\S+)", part):
            return f"{problem}; perhaps you meant {meant[1]}"
    return problem


def with_option_names(message: str, verb: object) -> str:
    """An error message in which options replace the names of arguments.

    >>> from sfumato.cli.verbs.train import Train
    >>> verb = Train(what="digits")
    >>> with_option_names("batch_size must be at least 1, got 0; give the batch size", verb)
    '--batch-size must be at least 1, got 0; give the batch size'
    >>> with_option_names("the data are private; declare them (`public=True`), or give another `directory`", verb)
    'the data are private; declare them (--public), or give another --output'
    """
    return message if verb is None else _in_options(message, type(verb))


def _in_options(message: str, verb: type) -> str:
    flags = {field.name for field in dataclasses.fields(verb) if field.default is False}

    def option(marked: re.Match[str]) -> str:
        name, value = marked.groups()
        spelt = f"--{OPTIONS.get(name, name).replace('_', '-')}"
        return spelt if value is None or name in flags else f"{spelt} {value}"

    message = re.sub(r"`(\w+)(?:=([^`]*))?`", option, message)
    name, must, rest = message.partition(" must ")
    if must and name in {field.name for field in dataclasses.fields(verb)}:
        return f"--{name.replace('_', '-')}{must}{rest}"
    return message
