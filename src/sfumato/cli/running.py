"""Runs a verb: refuses what is missing before slow imports, and shares the work among the processes of torchrun.

Importing torch alone takes seconds. The first of the processes is the leader, which prints; the others follow it.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._devices import is_distributed, is_follower, local_world_size

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


_errors: int | None = None
"""Descriptor of the standard error of a follower, for its own errors."""


def silence_followers() -> None:
    """Silence this process if it is a follower."""
    global _errors
    if is_follower():
        _errors = os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):  # includes what torch prints from C++
            os.dup2(nowhere, descriptor)


def run(verb: Any) -> int:
    """Run a verb, together with the other processes if torchrun started several. Returns the exit status."""
    if not is_distributed():
        return verb.run() or 0
    if not hasattr(verb, "check_processes"):
        return 0 if is_follower() else verb.run() or 0
    verb.check_processes()
    from sfumato import _devices
    from sfumato.training import launch
    from sfumato.training.preparation.resume import follow
    from sfumato.training.workers import LostError

    _devices.require_one_each(local_world_size(), _devices.select(_device_of(verb)))
    with _own_errors(LostError), launch.join_workers() as workers:
        if hasattr(verb, "job_from_record"):
            return launch.lead_or_follow(workers, lambda: verb.run() or 0, partial(follow, read=verb.job_from_record))
        status = verb.run() or 0  # computes the share of this process
        workers.broadcast_bool(True)  # no process ends before the leader
        return status


@contextlib.contextmanager
def _own_errors(lost: type[Exception]) -> Iterator[None]:
    """Print the error of a follower, unless another process failed first (`lost`)."""
    try:
        yield
    except Exception as error:
        if _errors is not None and not isinstance(error, lost):
            refused = isinstance(error, SfumatoError)
            words = f"{error.problem}; {error.remedy}" if refused else traceback.format_exc()
            os.write(_errors, f"worker {os.environ['RANK']}: error: {words}\n".encode())
        raise


def _device_of(verb: Any) -> str | None:
    """The requested device; for a run that is resumed, the recorded one by default."""
    from sfumato.runs import directory as names

    run = names.RunDirectory(Path(getattr(verb, "what", None) or "."))
    if verb.device is None and hasattr(verb, "job_from_record") and run.exists:
        return run.read_json(names.SETTINGS).get("performance", {}).get("device")
    return verb.device
