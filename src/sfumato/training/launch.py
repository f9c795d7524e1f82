"""Starting workers: with torchrun, or with `--processes` on one machine."""

from __future__ import annotations

import ctypes
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

from torch import distributed

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato._devices import STORE, is_distributed
from sfumato.training.rendezvous import AGAIN, MEET, TOGETHER, Heartbeats, meet
from sfumato.training.workers import ALONE, Workers

AT_WORK = timedelta(days=7)
"""Timeout of operations: another worker may be busy with the test split or a slow disk. Heartbeats detect failures."""
LAST_WORDS = 5.0
"""Seconds that a worker whose connection broke waits for another worker's error message."""
_FAILURE = "what one of the workers has failed of"
_BROKE = "the connection has broken for worker"
_BROKEN = ("onnection", "gloo", "NCCL", "imed out", "imeout")
"""Parts of torch's error messages for lost connections, which have no exception type of their own."""

_own = ALONE


def current_workers() -> Workers:
    """The workers that this process belongs to; `ALONE` unless it joined others."""
    return _own


class LostError(SfumatoError):
    """The connection to another worker broke, for an unknown reason."""


@contextmanager
def join_workers(lost: Callable[[], SfumatoError | None] = lambda: None) -> Iterator[Workers]:
    """Makes this process one of several workers. If one of them fails, all raise its error.

    Args:
        lost: polled while waiting for the others; an error that it returns is raised.

    Errors: `SfumatoError` if the workers don't meet within `TOGETHER`.
    """
    global _own
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _devices.set_accelerator(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        place = meet(rank, count, lost)
        signs, words = Heartbeats(place.store, rank, place.names), place.store.clone()
        words.set_timeout(timedelta(seconds=LAST_WORDS))  # the process that holds the store may have ended
        distributed.init_process_group(timeout=TOGETHER, store=place.store, rank=rank, world_size=count)
    except SfumatoError:
        raise
    except (RuntimeError, ValueError) as error:  # torch's errors during the rendezvous
        raise SfumatoError(
            f"worker {rank} of {count} did not meet the others: {str(error).splitlines()[0]}",
            MEET,
        ) from None
    group = distributed.new_group(timeout=AT_WORK)
    _own = Workers(rank=rank, count=count, group=group, machines=place.machines, signs=signs)
    try:
        yield _own
    except BaseException as error:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # destroying the group would wait for lost workers
        _publish_error(rank, place.names, words, error)
        raise
    finally:
        _own = ALONE
        signs.close()
        distributed.destroy_process_group()


def _publish_error(rank: int, names: Sequence[str], store: Any, error: BaseException) -> None:
    """Publish this worker's error to the others; if another worker failed first, raise that error instead."""
    broken = isinstance(error, RuntimeError) and any(word in str(error) for word in _BROKEN)
    problem, remedy = f"{type(error).__name__} {error}".splitlines()[0], AGAIN
    if isinstance(error, SfumatoError):
        problem, remedy = error.problem, error.remedy
    own = f"worker {rank} on {socket.gethostname()}: {problem}\n{remedy}"
    lost = names[:1]  # the holder of the store, if the store is gone
    try:
        if broken:
            store.set(f"{_BROKE} {rank}", "")
        deadline = time.monotonic() + (LAST_WORDS if broken else 0.0)
        while not (known := store.check([_FAILURE])) and time.monotonic() < deadline:
            time.sleep(0.05)
        said = own if broken and not known else store.compare_set(_FAILURE, "", own).decode()
        if said != own and not isinstance(error, SfumatoError):  # a SfumatoError explains itself
            problem, _, remedy = said.partition("\n")
            raise SfumatoError(problem, remedy) from error
        lost = [name for other, name in enumerate(names) if not store.check([f"{_BROKE} {other}"])]
    except RuntimeError:
        broken = True
    if broken:
        raise LostError(f"the connection to {', '.join(lost) or 'another worker'} broke", AGAIN) from error


@contextmanager
def join_if_started() -> Iterator[Workers]:
    """Joins the other workers if several processes were started and this one has not joined yet."""
    if is_distributed() and _own.count == 1:
        with join_workers() as workers:
            yield workers
    else:
        yield _own


@contextmanager
def launch_workers(processes: int, command: Sequence[str]) -> Iterator[Workers]:
    """Starts further workers on this machine, which run `command`; this process leads them.

    Args:
        processes: number of workers, including this process.
        command: arguments of Python, such as ["-m", "sfumato", "train", "digits"].
    """
    place = tempfile.mkdtemp(prefix="sfumato-")  # readable by this user only
    known = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), STORE: str(Path(place) / "store")}
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    known |= {} if loopback is None else {"GLOO_SOCKET_IFNAME": loopback}  # don't listen on other networks
    before = {name: os.environ.get(name) for name in (*known, "RANK", "LOCAL_RANK")}
    others = [
        _WorkerProcess(
            rank, Path(place) / f"worker-{rank}", command, known | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(1, processes)
    ]
    os.environ.update(known | {"RANK": "0", "LOCAL_RANK": "0"})
    try:
        with join_workers(partial(_worker_error, others)) as workers:
            yield workers
    except LostError as error:
        raise _wait_for_failure(others) or error from None
    finally:
        _end(others)
        shutil.rmtree(place, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _WorkerProcess:
    """A worker process started by this one, with its error output."""

    def __init__(self, rank: int, errors: Path, command: Sequence[str], known: dict[str, str]):
        self._rank, self._errors = rank, errors
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **known}, stdin=subprocess.DEVNULL, stderr=file
            )

    def failure(self) -> SfumatoError | None:
        """An error with the process's status or signal and its last line, if it failed."""
        if not (status := self.process.poll()):
            return None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        lines = [line for line in self._errors.read_text("utf-8", "replace").splitlines() if line.strip()]
        last = "".join(f": {line.strip().removeprefix('error: ')}" for line in lines[-1:])
        return SfumatoError(f"worker {self._rank} (process {self.process.pid}) {how}{last}", AGAIN)


def _worker_error(others: Sequence[_WorkerProcess]) -> SfumatoError | None:
    """The error of a worker that failed, if there is one."""
    return next((failure for other in others if (failure := other.failure()) is not None), None)


def _wait_for_failure(others: Sequence[_WorkerProcess]) -> SfumatoError | None:
    """`_worker_error`, waiting for a worker whose connection broke and whose process may still be ending."""
    deadline = time.monotonic() + LAST_WORDS
    while (lost := _worker_error(others)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return lost


def _end(others: Sequence[_WorkerProcess]) -> None:
    """Waits for the workers to end, and kills those that don't."""
    deadline = time.monotonic() + LAST_WORDS
    for other in (one.process for one in others):
        try:
            other.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()


def lead_or_follow(workers: Workers, lead: Callable[[], int], follow: Callable[[Workers], None]) -> int:
    """Returns the result of the leader's work; the others follow until it has ended."""
    if workers.is_leader:
        status = lead()
        if workers.count > 1:
            workers.broadcast_json({})
        return status
    follow(workers)
    return 0
