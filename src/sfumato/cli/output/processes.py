"""Runs a verb in several processes. The first of them is the leader, which prints; the others follow it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato._devices import STORE, is_distributed, is_follower, local_world_size
from sfumato.cli.registry import name_of


@contextlib.contextmanager
def silence_followers() -> Iterator[None]:
    """Silence this process if it is a follower. The leader reports the errors of all processes.

    A follower that `--processes` started keeps its standard error, which goes to the leader.
    """
    if not is_follower():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1,) if STORE in os.environ else (1, 2):  # includes what torch prints from C++
        os.dup2(nowhere, descriptor)
    yield


def run(verb: Any, arguments: Sequence[str]) -> int:
    """Run a verb, together with other processes if requested. Returns the exit status.

    Args:
        arguments: the command line of the verb, with which other processes are started.
    """
    if not hasattr(verb, "check_processes"):
        return _run_on_leader(verb)
    given = verb.processes
    processes = 1 if given is None else positive_integer("--processes", given)
    if is_distributed() and given is not None and STORE not in os.environ:
        raise SfumatoError(
            f"--processes is {given}, but this is one of {os.environ['WORLD_SIZE']} processes already",
            "leave it out: torchrun sets the number",
        )
    if not is_distributed() and processes == 1:
        return verb.run() or 0
    verb.check_processes()
    from sfumato import _devices
    from sfumato.training import launch
    from sfumato.training.preparation.resume import follow

    _devices.require_one_each(processes if given else local_world_size(), _devices.select(_device_of(verb)))
    with (
        launch.join_workers()
        if is_distributed()
        else launch.launch_workers(processes, ["-m", "sfumato", *arguments]) as workers
    ):
        if hasattr(verb, "job_from_record"):
            return launch.lead_or_follow(workers, lambda: verb.run() or 0, partial(follow, read=verb.job_from_record))
        status = verb.run() or 0  # computes the share of this process
        workers.broadcast_bool(True)  # no process ends before the leader
        return status


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
