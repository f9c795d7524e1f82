"""Attempts at `sfumato` commands in processes of their own, which may kill themselves. A script for test_crash.py.

It reads requests from one pipe, answers through another, and forks a process for each attempt, after one run of its
own: a process that has everything imported and warm takes a fifth of a second, so a kill falls into the run and not
into Python's start.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

SIDE_EFFECTS = ("write", "fsync", "replace", "rename", "unlink", "link", "mkdir", "ftruncate")
"""The calls of the module os by which a run changes the disk."""


def count_side_effects(before: Callable[[int, str, Callable, tuple], None]) -> list[str]:
    """Call `before(number, name, call, arguments)` ahead of every side effect; returns the growing list of names."""
    seen: list[str] = []

    def wrapped(name: str, call: Callable) -> Callable:
        def counting(*arguments: Any, **options: Any) -> Any:
            seen.append(name)
            before(len(seen), name, call, arguments)
            return call(*arguments, **options)

        return counting

    for name in SIDE_EFFECTS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    return seen


def attempt(
    *,
    arguments: list[str],
    printed: str,
    checkpoint_seconds: float,
    kill_at: int | None = None,
    count: str | None = None,
) -> int:
    """Run one command and return its exit status.

    Args:
        arguments: of the command line.
        printed: the file for everything that it prints.
        checkpoint_seconds: how often checkpoints are written.
        kill_at: die by SIGKILL at this side effect, counted from 1; a write is cut in the middle.
        count: the file for the names of all side effects.
    """
    from sfumato.cli import main
    from sfumato.training import loop

    loop.CHECKPOINT_SECONDS = checkpoint_seconds

    def before(number: int, name: str, call: Callable, given: tuple) -> None:
        if number == kill_at:
            if name == "write":
                call(given[0], given[1][: len(given[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    with open(printed, "a") as output, redirect_stdout(output), redirect_stderr(output):
        if kill_at is None and count is None:
            return main(arguments)
        seen = count_side_effects(before)
        status = main(arguments)
    if count is not None:
        with open(count, "w") as file:
            file.write(json.dumps(seen))
    return status


def check_once() -> None:
    """The model against the slow truth: each attempt has that of the first, which runs before any is killed."""
    from sfumato.gradients.checks import selfcheck

    genuine, known = selfcheck.check, set()

    def once(gradient: Any, build: Any, model: Any, loss: Any, synthetic: Any, **given: Any) -> None:
        if repr(model) in known:
            gradient(*synthetic)  # which chooses the methods that it has not yet chosen
            return
        genuine(gradient, build, model, loss, synthetic, **given)
        known.add(repr(model))

    selfcheck.check = once


def serve(requests: str, answers: str) -> None:
    """Answer requests, one JSON object a line, by their exit status: `start` in a fork, `warm` in this process."""
    check_once()
    os.fsync = os.fstat  # what a killed process wrote is there without it; that it is called is counted all the same
    with open(requests) as asked, open(answers, "w") as answered:
        for line in asked:
            print(json.dumps(answer(json.loads(line))), file=answered, flush=True)


def answer(request: dict[str, Any]) -> int:
    """The exit status of a request's command."""
    if "warm" in request:
        return attempt(**request["warm"])
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os._exit(attempt(**request["start"]))


if __name__ == "__main__":
    serve(*sys.argv[1:])
