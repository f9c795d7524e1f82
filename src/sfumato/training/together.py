"""How workers come together: by torchrun, or by `--processes`, which starts the same on one machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from sfumato._checks import SfumatoError
from sfumato.training.workers import ALONE, Workers

TOGETHER = timedelta(minutes=5)
"""For all workers to come together."""
AT_WORK = timedelta(hours=12)
"""For one to wait for another, who may be at the test part or in front of a slow disk."""
LAST_WORDS = 5.0
"""Seconds for a worker whose connection broke to hear why another one ended."""
_FAILURE = "what one of the workers has failed of"
_AGAIN = "see to it, and give the same command again: the run goes on"
_BROKEN = ("onnection", "gloo", "NCCL", "imed out", "imeout")
"""What torch's errors of a lost connection have in them, which have no type of their own."""

_own = ALONE


def own() -> Workers:
    """The workers that this process is one of; itself alone unless it has joined others."""
    return _own


def started() -> bool:
    """Whether this process was started as one of several, as torchrun starts them."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def silent() -> bool:
    """Whether another process speaks for this one."""
    return started() and os.environ["RANK"] != "0"


def local_count() -> int:
    """How many of them there are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started() else 1


@contextmanager
def joined() -> Iterator[Workers]:
    """Within, this process is one of several workers; what one of them fails of is the failure of all."""
    global _own
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        distributed.init_process_group(timeout=TOGETHER)
    except (RuntimeError, ValueError) as error:  # torch's own errors of the rendezvous are of these kinds
        raise SfumatoError(
            f"worker {rank} of {count} has not met the others: {str(error).splitlines()[0]}",
            "start as many as were said, with an address and a port that all of them reach",
        ) from None
    _own = Workers(rank=rank, count=count, group=distributed.new_group(timeout=AT_WORK))
    try:
        yield _own
    except BaseException as error:
        _fail(rank, error)
        raise
    finally:
        _own = ALONE
        distributed.destroy_process_group()


def _fail(rank: int, error: BaseException) -> None:
    """Tell the others of a failure; or, where another one has failed first, raise that in its place."""
    broken = isinstance(error, RuntimeError) and any(word in str(error) for word in _BROKEN)
    problem, remedy = f"{type(error).__name__} {error}".splitlines()[0], _AGAIN
    if isinstance(error, SfumatoError):
        problem, remedy = error.problem, error.remedy
    try:
        store = distributed.distributed_c10d._get_default_store()
        deadline = time.monotonic() + (LAST_WORDS if broken else 0.0)
        while not (said := store.check([_FAILURE])) and time.monotonic() < deadline:
            time.sleep(0.05)
        if said:
            problem, _, remedy = store.get(_FAILURE).decode().partition("\n")
            raise SfumatoError(problem, remedy) from error
        if not broken:
            store.set(_FAILURE, f"worker {rank} on {socket.gethostname()}: {problem}\n{remedy}")
    except RuntimeError:
        broken = True  # the store is gone with whoever held it
    if broken:
        raise SfumatoError("a worker has ended without a word: its connection broke", _AGAIN) from error


@contextmanager
def joining() -> Iterator[Workers]:
    """The workers that this process is one of, or becomes one of within; itself alone where nobody started more."""
    if started() and _own.count == 1:
        with joined() as workers:
            yield workers
    else:
        yield _own


@contextmanager
def launched(processes: int, command: Sequence[str]) -> Iterator[Workers]:
    """Within, this process leads so many workers on this machine, the others of which run `command`.

    Args:
        command: arguments of Python, such as ["-m", "sfumato", "train", "digits"].
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    known |= {"LOCAL_WORLD_SIZE": str(processes)}
    before = {name: os.environ.get(name) for name in (*known, "RANK", "LOCAL_RANK")}
    others = [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | known | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
        )
        for rank in range(1, processes)
    ]
    os.environ.update(known | {"RANK": "0", "LOCAL_RANK": "0"})
    try:
        with joined() as workers:
            yield workers
    finally:
        _end(others)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _end(others: Sequence[subprocess.Popen]) -> None:
    """Wait for workers that have come to their end, and end those that have not."""
    deadline = time.monotonic() + LAST_WORDS
    for other in others:
        try:
            other.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()


def led(workers: Workers, lead: Callable[[], int], follow: Callable[[Workers], None]) -> int:
    """What the leader's work returns; the others follow until it is at its end."""
    if workers.is_leader:
        status = lead()
        if workers.count > 1:
            workers.told({})
        return status
    follow(workers)
    return 0
