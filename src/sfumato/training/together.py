"""How workers come together: by torchrun, or by `--processes`, which starts the same on one machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from sfumato._checks import SfumatoError
from sfumato.training.started import STORE, one_of_several
from sfumato.training.workers import ALONE, Workers

TOGETHER = timedelta(minutes=5)
"""For all workers to come together."""
AT_WORK = timedelta(hours=12)
"""For one to wait for another, who may be at the test part or in front of a slow disk."""
LAST_WORDS = 5.0
"""Seconds for a worker whose connection broke to hear why another one ended."""
_HERE = "here is worker"
_FAILURE = "what one of the workers has failed of"
_AGAIN = "give the same command again: a run goes on from its last checkpoint"
_BROKEN = ("onnection", "gloo", "NCCL", "imed out", "imeout")
"""What torch's errors of a lost connection have in them, which have no type of their own."""

_own = ALONE


def own() -> Workers:
    """The workers that this process is one of; itself alone unless it has joined others."""
    return _own


class LostError(SfumatoError):
    """The connection to another worker broke, and nobody has said why."""


@contextmanager
def joined(lost: Callable[[], SfumatoError | None] = lambda: None) -> Iterator[Workers]:
    """Within, this process is one of several workers; what one of them fails of is the failure of all.

    Args:
        lost: what to raise while it waits for the others, if anything.

    Errors: `SfumatoError` where they don't come together within `TOGETHER`.
    """
    global _own
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store = _store(rank, count)
        _wait(store, count, lost)
        distributed.init_process_group(timeout=TOGETHER, store=store, rank=rank, world_size=count)
    except (RuntimeError, ValueError) as error:  # torch's own errors of the rendezvous are of these kinds
        raise SfumatoError(
            f"worker {rank} of {count} has not met the others: {str(error).splitlines()[0]}",
            "start as many as were announced, with an address and a port that all of them reach",
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
        if said and not isinstance(error, SfumatoError):  # which says itself what is wrong
            problem, _, remedy = store.get(_FAILURE).decode().partition("\n")
            raise SfumatoError(problem, remedy) from error
        if not broken and not said:
            store.set(_FAILURE, f"worker {rank} on {socket.gethostname()}: {problem}\n{remedy}")
    except RuntimeError:
        broken = True  # the store is gone with whoever held it
    if broken:
        raise LostError("the connection to another worker broke", _AGAIN) from error


@contextmanager
def joining() -> Iterator[Workers]:
    """The workers that this process is one of, or becomes one of within; itself alone where nobody started more."""
    if one_of_several() and _own.count == 1:
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
    place = tempfile.mkdtemp(prefix="sfumato-")  # for this user alone
    known = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), STORE: str(Path(place) / "store")}
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    known |= {} if loopback is None else {"GLOO_SOCKET_IFNAME": loopback}  # nothing is to be heard on other networks
    before = {name: os.environ.get(name) for name in (*known, "RANK", "LOCAL_RANK")}
    others = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
        )
        for rank in range(1, processes)
    ]
    os.environ.update(known | {"RANK": "0", "LOCAL_RANK": "0"})
    try:
        with joined(partial(_lost, others)) as workers:
            yield workers
    except LostError as error:
        raise _lost_soon(others) or error from None
    finally:
        _end(others)
        shutil.rmtree(place, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _store(rank: int, count: int) -> Any:
    """The store by which workers find each other, in which this one says that it is there."""
    if STORE in os.environ:
        found = distributed.FileStore(os.environ[STORE], count)  # type: ignore[attr-defined]
    else:
        mine = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        server = distributed.TCPStore(  # type: ignore[attr-defined]
            *address, is_master=mine, timeout=TOGETHER, wait_for_workers=False, multi_tenant=True
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        found = distributed.PrefixStore(f"sfumato {attempt}", server)  # type: ignore[attr-defined]
    found.set(f"{_HERE} {rank}", "")
    return found


def _wait(store: Any, count: int, lost: Callable[[], SfumatoError | None]) -> None:
    """Until all of them are there; torch would wait too, but heed no interrupt."""
    signs, deadline = [f"{_HERE} {rank}" for rank in range(count)], time.monotonic() + TOGETHER.total_seconds()
    while not store.check(signs):
        if (error := lost()) is not None:
            raise error
        if time.monotonic() > deadline:
            missing = [rank for rank, sign in enumerate(signs) if not store.check([sign])]
            raise SfumatoError(
                f"of {count} workers these have not come within {TOGETHER}: {', '.join(map(str, missing))}",
                "start as many as were announced, with an address and a port that all of them reach",
            )
        time.sleep(0.02)


def _lost(others: Sequence[subprocess.Popen]) -> SfumatoError | None:
    """Which of the workers has failed, and of what signal, if one has."""
    for rank, other in enumerate(others, start=1):
        if other.poll():
            how = (
                f"was killed by signal {-other.returncode}"
                if other.returncode < 0
                else f"ended with status {other.returncode}"
            )
            return SfumatoError(f"worker {rank} (process {other.pid}) {how}", _AGAIN)
    return None


def _lost_soon(others: Sequence[subprocess.Popen]) -> SfumatoError | None:
    """The same, of one whose connection is gone already and who may take a moment to end."""
    deadline = time.monotonic() + LAST_WORDS
    while (lost := _lost(others)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return lost


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
