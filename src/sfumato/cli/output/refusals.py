"""Error messages in the spelling of the command line."""

from __future__ import annotations

import dataclasses
import re

OPTIONS = {"directory": "output"}
"""Arguments of the library that have another name on the command line."""


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
