"""Where workers meet: a store, in which each says that it is there, and who it is."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed

from sfumato._checks import SfumatoError
from sfumato._files import machine
from sfumato.training.started import STORE

TOGETHER = timedelta(minutes=5)
"""For all workers to come together."""
HERE = "here is worker"
MEET = "start as many as were announced, with an address and a port that all of them reach"


@dataclass(frozen=True)
class Met:
    """Workers that have come together.

    Attributes:
        store: in which they leave each other word.
        names: of each, in words.
        machines: how many they are on.
    """

    store: Any
    names: Sequence[str]
    machines: int


def met(rank: int, count: int, lost: Callable[[], SfumatoError | None]) -> Met:
    """Meet the others.

    Args:
        lost: what to raise while it waits for the others, if anything.

    Errors: `SfumatoError` where they don't come together within `TOGETHER`, and for a port that others use.
    """
    store = _store(rank, count)
    store.set(f"{HERE} {rank}", json.dumps(_own()))
    _wait(store, count, lost)
    said = [json.loads(one) for one in store.multi_get([f"{HERE} {rank}" for rank in range(count)])]
    names = [f"worker {rank} (process {one['process']} on {one['host']})" for rank, one in enumerate(said)]
    return Met(store, names, len({one["machine"] for one in said}))


def _own() -> dict[str, Any]:
    """Who this process is."""
    where = hashlib.sha256(machine().encode()).hexdigest()
    return {"process": os.getpid(), "host": socket.gethostname(), "machine": where}


def _store(rank: int, count: int) -> Any:
    """The store by which workers find each other."""
    if STORE in os.environ:
        return distributed.FileStore(os.environ[STORE], count)  # type: ignore[attr-defined]
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise SfumatoError(
            f"WORLD_SIZE is {count}, with MASTER_ADDR {host!r} and MASTER_PORT {port!r}",
            "start the processes by torchrun, or set both: the address and the port of worker 0",
        )
    mine = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    known = {"is_master": mine, "timeout": TOGETHER, "wait_for_workers": False, "multi_tenant": True}
    try:
        server = distributed.TCPStore(host, int(port), **known)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if mine and errno.errorcode[errno.EADDRINUSE] in str(error):
            raise SfumatoError(
                f"MASTER_PORT is {port}, and another program listens there on {socket.gethostname()}",
                "give another port, to all of them",
            ) from None
        raise
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"sfumato {attempt}", server)  # type: ignore[attr-defined]


def _wait(store: Any, count: int, lost: Callable[[], SfumatoError | None]) -> None:
    """Until all of them are there; torch would wait too, but heed no interrupt."""
    signs, deadline = [f"{HERE} {rank}" for rank in range(count)], time.monotonic() + TOGETHER.total_seconds()
    while not store.check(signs):
        if (error := lost()) is not None:
            raise error
        if time.monotonic() > deadline:
            missing = [rank for rank, sign in enumerate(signs) if not store.check([sign])]
            raise SfumatoError(
                f"of {count} workers these have not come within {TOGETHER}: {', '.join(map(str, missing))}", MEET
            )
        time.sleep(0.02)
