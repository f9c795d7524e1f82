"""Runs a study as a command. Its options are the fields of a dataclass, and a refusal is one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.cli import parser
from sfumato.cli.parser import UsageError
from sfumato.cli.running import with_option_names


def _numbers(text: str) -> tuple[int, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (0.5,)
    if not all(value.is_integer() and value > 0 for value in values):
        raise ValueError(f"must be integers separated by commas, such as 1e6,1e7, got {text!r}")
    return tuple(map(int, values))


def numbers(default: float | tuple[float, ...] | None = None) -> Any:
    """An option of a study: a number, or several separated by commas."""
    return parser.option("NUMBER[,NUMBER...]", default=default, read=parser.numbers)


def whole_numbers(default: Any = None) -> Any:
    """An option of a study: integers separated by commas."""
    return parser.option("N,N,...", default=default, read=_numbers)


NAMES = ("pairs", "more_users", "simulate", "two_worlds", "noise_study", "printed", "dead_leaves", "haiku")
"""The scripts of this folder."""


def load(name: str) -> Any:
    """The dataclass of a study. Its method `run` runs the study."""
    return getattr(importlib.import_module(f"studies.{name}"), "".join(map(str.capitalize, name.split("_"))))


def parse(name: str, arguments: Sequence[str]) -> Any:
    """Parse the options of a study.

    Raises:
        SystemExit: after help.
        UsageError: for an invalid command.
    """
    study = load(name)
    description = sys.modules[study.__module__].__doc__ or ""
    return parser.parse(study, arguments, program=f"python studies/{name}.py", description=description)


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a study. Returns the exit status: 0, 1 for a refusal, 2 for an invalid command."""
    study = None
    try:
        study = parse(name, sys.argv[1:] if arguments is None else arguments)
        study.run()
    except SfumatoError as error:
        print(f"error: {with_option_names(f'{error.problem}; {error.remedy}', study)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
