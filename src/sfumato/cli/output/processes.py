"""Runs a verb in the processes of torchrun. The first of them is the leader, which prints; the others follow it."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._devices import is_distributed, is_follower, local_world_size
from sfumato.cli.registry import name_of

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
        return _run_on_leader(verb)
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


def _run_on_leader(verb: Any) -> int:
    """Run a verb in the leader only.

    Errors: `SfumatoError` for a verb that starts processes itself, since they would get only a part of the machine.
    """
    if is_follower():
        return 0
    if is_distributed() and hasattr(verb, "processes"):
        count = os.environ["WORLD_SIZE"]
        raise SfumatoError(
            f"this is one of {count} processes of one command, and sfumato {name_of(type(verb))} trains its runs in "
            "processes of its own",
            f"start it alone, with `processes={count}` for so many runs at once",
        )
    return verb.run() or 0
