"""Joining the processes that torchrun started."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato._devices import is_distributed, local_world_size
from sfumato._files import machine_id
from sfumato.randomness import owner_key
from sfumato.training.workers import ALONE, Workers

TOGETHER = timedelta(minutes=5)
"""Time limit for all workers to meet."""
AT_WORK = timedelta(days=1)
"""Time limit of operations: another worker may be busy with the test split or a slow disk."""
LOOPBACK = ("lo", "lo0")
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables with the network interface that gloo and NCCL use."""
_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that are the same in all processes of one torchrun, and differ between two."""

_own, _times = ALONE, itertools.count()


def current_workers() -> Workers:
    """The workers that this process belongs to; `ALONE` unless it joined others."""
    return _own


@contextmanager
def join_workers() -> Iterator[Workers]:
    """Makes this process one of the workers that torchrun started.

    **Guarantee.** Workers on one machine meet in a file of this user and listen on the loopback interface alone, so
    that no sum without noise passes another one.

    Errors: `SfumatoError` if the workers don't meet within `TOGETHER`.
    """
    global _own
    rank, count, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None
    time = next(_times)
    _devices.set_accelerator(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        if local_world_size() == count:
            os.environ.update(dict.fromkeys(SOCKETS, _loopback()))
            place = _meeting_place(time)
            store = distributed.FileStore(str(place / "store"), count)  # type: ignore[attr-defined]
        else:
            store, *_ = next(rendezvous("env://", rank, count))  # torchrun's
            store = distributed.PrefixStore(f"sfumato {time}", store)  # type: ignore[attr-defined]
        distributed.init_process_group(timeout=TOGETHER, store=store, rank=rank, world_size=count)
    except (RuntimeError, ValueError) as error:
        raise SfumatoError(
            f"worker {rank} of {count} did not meet the others: {str(error).splitlines()[0]}",
            "start them all with torchrun, with an address and a port that all of them can reach",
        ) from None
    group = distributed.new_group(timeout=AT_WORK)
    machines = Workers(rank=rank, count=count, group=group).gather(_machine())
    _own = Workers(rank=rank, count=count, group=group, machines=len({bytes(one.tolist()) for one in machines}))
    try:
        yield _own
    except BaseException:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # destroying the group would wait for lost workers
        raise
    finally:
        _own = ALONE
        distributed.destroy_process_group()
        if place is not None and rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def _loopback() -> str:
    """The name of the loopback interface."""
    for _, name in socket.if_nameindex():
        if name in LOOPBACK:
            return name
    raise SfumatoError("this machine has no loopback interface", "use one process")


def _meeting_place(time: int) -> Path:
    """A directory for the store of the workers on this machine. Other users can neither read it nor guess its name.

    Args:
        time: how often this process has joined workers before.
    """
    attempt = repr([*map(os.environ.get, _ATTEMPT), os.getppid(), time])
    name = hmac.new(owner_key(), attempt.encode(), hashlib.sha256).hexdigest()
    place = Path(tempfile.gettempdir()) / f"sfumato-{name[:32]}"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _machine() -> torch.Tensor:
    """A digest of `machine_id`, uint8 (32,)."""
    return torch.frombuffer(bytearray(hashlib.sha256(machine_id().encode()).digest()), dtype=torch.uint8)


@contextmanager
def join_if_started() -> Iterator[Workers]:
    """Joins the other workers if several processes were started and this one has not joined yet."""
    if is_distributed() and _own.count == 1:
        with join_workers() as workers:
            yield workers
    else:
        yield _own


def lead_or_follow(workers: Workers, lead: Callable[[], int], follow: Callable[[Workers], None]) -> int:
    """Returns the result of the leader's work; the others follow until it has ended."""
    if workers.is_leader:
        status = lead()
        workers.broadcast_json({})
        return status
    follow(workers)
    return 0
