"""A verb that several processes run together: the first of them speaks, the others follow it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato._devices import STORE, local_count, one_of_several, silent
from sfumato.cli.registry import name_of


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """Within, a process that does not lead others prints nothing: what it fails of, the leader says. Errors of one that
    `--processes` has started go to its leader."""
    if not silent():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1,) if STORE in os.environ else (1, 2):  # torch's own words in C++ too
        os.dup2(nowhere, descriptor)
    yield


def run(verb: Any, arguments: Sequence[str]) -> int:
    """Run a verb, with other processes where that was asked for; the exit status.

    Args:
        arguments: those that the verb was parsed from, for other processes to be started with.
    """
    if not hasattr(verb, "refuse_together"):
        return _alone(verb)
    given = verb.processes
    processes = 1 if given is None else positive_integer("--processes", given)
    if one_of_several() and given is not None and STORE not in os.environ:
        raise SfumatoError(
            f"--processes is {given}, and this is one of {os.environ['WORLD_SIZE']} processes already",
            "leave it out: torchrun says how many there are",
        )
    if not one_of_several() and processes == 1:
        return verb.run() or 0
    verb.refuse_together()
    from sfumato import _devices
    from sfumato.training import together
    from sfumato.training.preparation.resume import follow

    _devices.one_each(processes if given else local_count(), _devices.chosen(_device_of(verb)))
    with (
        together.joined()
        if one_of_several()
        else together.launched(processes, ["-m", "sfumato", *arguments]) as workers
    ):
        if hasattr(verb, "of_record"):
            return together.led(workers, lambda: verb.run() or 0, partial(follow, read=verb.of_record))
        status = verb.run() or 0  # which computes this one's share
        workers.agreed(True)  # nobody is at the end before the leader
        return status


def _device_of(verb: Any) -> str | None:
    """Which one was asked for, or has been recorded by the run that goes on."""
    from sfumato.runs import directory as names

    run = names.RunDirectory(Path(getattr(verb, "what", None) or "."))
    if verb.device is None and hasattr(verb, "of_record") and run.exists:
        return run.read_json(names.SETTINGS).get("performance", {}).get("device")
    return verb.device


def _alone(verb: Any) -> int:
    """Run a verb in the first process: what it does, the others need not.

    Errors: `SfumatoError` for one that starts processes of its own, which would find a part of the machine.
    """
    if silent():
        return 0
    if one_of_several() and hasattr(verb, "processes"):
        count = os.environ["WORLD_SIZE"]
        raise SfumatoError(
            f"this is one of {count} processes of one command, and sfumato {name_of(type(verb))} trains its runs in "
            "processes of its own",
            f"start it alone, with `processes={count}` for so many runs at once",
        )
    return verb.run() or 0
