"""A verb that several processes run together: the first of them speaks, the others follow it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sfumato._checks import SfumatoError, positive_integer

OURS = "SFUMATO_STORE"
"""In the environment of what `--processes` has started, and not torchrun."""


def started() -> bool:
    """Whether this process was started as one of several, as torchrun starts them."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """Within, a process that does not lead others prints nothing: what it fails of, the leader says."""
    if not started() or os.environ["RANK"] == "0":
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # torch's own words in C++ too
        os.dup2(nowhere, descriptor)
    yield


def run(verb: Any, arguments: Sequence[str]) -> int:
    """Run a verb, with other processes where that was asked for; the exit status.

    Args:
        arguments: those that the verb was parsed from, for other processes to be started with.
    """
    shares = hasattr(verb, "of_record")
    given = verb.processes if shares else None
    processes = 1 if given is None else positive_integer("--processes", given)
    if started() and given is not None and OURS not in os.environ:
        raise SfumatoError(
            f"--processes is {given}, and this is one of {os.environ['WORLD_SIZE']} processes already",
            "leave it out: torchrun says how many there are",
        )
    if not started() and processes == 1:
        return verb.run() or 0
    if not shares:  # what one process does, the others need not
        return verb.run() or 0 if os.environ["RANK"] == "0" else 0
    verb.refuse_together()
    from sfumato.training import together
    from sfumato.training.run import follow

    with together.joined() if started() else together.launched(processes, ["-m", "sfumato", *arguments]) as workers:
        return together.led(workers, lambda: verb.run() or 0, partial(follow, read=verb.of_record))
