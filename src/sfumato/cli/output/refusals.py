"""Refusals of missing files before slow imports, and error messages in the spelling of the command line.

Importing torch alone takes seconds.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any

from sfumato._checks import SfumatoError

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
    if verb is None:
        return message
    defaults: dict[str, Any] = {field.name: field.default for field in fields(verb)}  # type: ignore[arg-type]

    def option(marked: re.Match[str]) -> str:
        name, value = marked.groups()
        flag = f"--{OPTIONS.get(name, name).replace('_', '-')}"
        return flag if value is None or defaults.get(name) is False else f"{flag} {value}"

    message = re.sub(r"`(\w+)(?:=([^`]*))?`", option, message)
    name, must, rest = message.partition(" must ")
    return f"--{name.replace('_', '-')}{must}{rest}" if must and name in defaults else message


NO_PATH = "timm"
"""The value of `--pretrained` for weights that timm provides, in place of a path."""


def refuse_absent(verb: Any) -> None:
    """Refuse a verb whose run, sources, weights or lists do not exist. Paths in a recipe are checked later."""
    from sfumato.data import refuse_absent as refuse_absent_source
    from sfumato.runs.directory import RunDirectory

    run = getattr(verb, "run_directory", None)
    if run is not None and not os.path.exists(run):
        RunDirectory(run).require()
    for name in ("score_on", "public_data"):
        if (spec := getattr(verb, name, None)) is not None:
            refuse_absent_source(spec)
    pretrained = getattr(verb, "pretrained", None)
    if pretrained not in (None, NO_PATH) and not os.path.exists(pretrained):
        raise SfumatoError(
            f"pretrained file {pretrained} does not exist",
            "give the path of a finished run or of a safetensors file, or the word timm",
        )
    for name in ("words", "label_sets"):
        path = getattr(verb, name, None)
        if path is not None and not os.path.exists(os.path.expanduser(path)):
            raise SfumatoError(f"`{name}={path}` does not exist", "correct the path")
