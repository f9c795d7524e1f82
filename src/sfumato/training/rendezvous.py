"""The rendezvous of workers in a store, and heartbeats that detect a worker that stopped while others wait for it.

Steps have no time limit, since the leader may be busy for long: evaluating, reading a slow disk, writing the report.
But a live process can send a heartbeat every few seconds. A worker without heartbeats for minutes was stopped, or its
machine is down or out of reach.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed

from sfumato._checks import SfumatoError
from sfumato._devices import STORE
from sfumato._files import machine_id

BEAT = 10.0
"""Seconds between a worker's heartbeats."""
LOOK = 20.0
"""Seconds between checks of the others' heartbeats, while waiting for them."""
SILENCE = 300.0
"""Seconds without a heartbeat after which a worker counts as lost."""
_ENDING = 5.0
"""Seconds to wait for the heartbeat thread to end."""
AGAIN = "give the same command again: the run resumes from its last checkpoint"
_SIGN = "sign of worker"


class Heartbeats:
    """This worker's heartbeats, sent by a thread, and the last heartbeats seen of the others.

    Args:
        store: where the workers met. It is cloned: other operations block their connection for long.
        rank: of this worker.
        names: descriptions of all workers, for messages.
    """

    def __init__(self, store: Any, rank: int, names: Sequence[str]):
        self._names, self._finished = names, threading.Event()
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=SILENCE))
        self._keys = [f"{_SIGN} {other}" for other in range(len(names))]
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._store.set(self._keys[rank], "0")
        own = store.clone()  # a separate connection: checks may block, heartbeats must not
        self._thread = threading.Thread(target=self._give, args=(own, self._keys[rank]), name="signs", daemon=True)
        self._thread.start()

    def _give(self, store: Any, key: str) -> None:
        count = 0
        while not self._finished.wait(BEAT):
            count += 1
            with contextlib.suppress(RuntimeError):  # the process that held the store has ended
                store.set(key, str(count))

    def wait_for(self, work: Any) -> None:
        """Wait until a collective operation is done.

        Errors: `SfumatoError` if a worker sends no heartbeats meanwhile; errors of the operation itself.
        """
        while True:
            try:
                work.wait(timedelta(seconds=LOOK))
            except RuntimeError:  # the operation failed, or takes longer
                if work.is_completed():
                    work.wait()
                    return
                self._refuse_silent()
            else:
                return

    def _refuse_silent(self) -> None:
        """Raises an error if a worker's heartbeat has not changed for `SILENCE` seconds."""
        try:
            signs = self._store.multi_get(self._keys)
        except RuntimeError as error:
            if "imeout" not in str(error):
                return  # the store is gone; the pending operation will fail too
            raise SfumatoError(
                f"the workers' store, in {self._names[0]} or its torchrun, has not answered for {_words(SILENCE)}",
                AGAIN,
            ) from None
        now, odd = time.monotonic(), []
        for rank, sign in enumerate(signs):
            if rank not in self._seen or self._seen[rank][0] != sign:
                self._seen[rank] = sign, now
            elif now - self._seen[rank][1] > SILENCE:
                odd.append(self._names[rank])
        if odd:
            raise SfumatoError(
                f"{', '.join(odd)} has sent no heartbeat for {_words(SILENCE)}: it was stopped, or its machine is "
                "out of reach",
                f"end it, and {AGAIN}",
            )

    def close(self) -> None:
        """Stop the heartbeats.

        Waits for the thread, unless the store does not answer: a thread still inside torch when Python exits would
        abort the process.
        """
        self._finished.set()
        self._thread.join(_ENDING)


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


TOGETHER = timedelta(minutes=5)
"""Time limit for all workers to meet."""
HERE = "here is worker"
MEET = "start as many workers as WORLD_SIZE says, with an address and a port that all of them can reach"


@dataclass(frozen=True)
class Rendezvous:
    """Workers that have met.

    Attributes:
        store: the key-value store that they share.
        names: a description of each, for messages.
        machines: number of machines that they run on.
    """

    store: Any
    names: Sequence[str]
    machines: int


def meet(rank: int, count: int, lost: Callable[[], SfumatoError | None]) -> Rendezvous:
    """Meet the other workers.

    Args:
        lost: polled while waiting for the others; an error that it returns is raised.

    Errors: `SfumatoError` if the workers don't meet within `TOGETHER`, and for a port that another program uses.
    """
    store = _store(rank, count)
    store.set(f"{HERE} {rank}", json.dumps(_process_facts()))
    _wait(store, count, lost)
    said = [json.loads(one) for one in store.multi_get([f"{HERE} {rank}" for rank in range(count)])]
    names = [f"worker {rank} (process {one['process']} on {one['host']})" for rank, one in enumerate(said)]
    return Rendezvous(store, names, len({one["machine"] for one in said}))


def _process_facts() -> dict[str, Any]:
    """Facts that identify this process."""
    where = hashlib.sha256(machine_id().encode()).hexdigest()
    return {"process": os.getpid(), "host": socket.gethostname(), "machine": where}


def _store(rank: int, count: int) -> Any:
    """The store where the workers meet."""
    if STORE in os.environ:
        return distributed.FileStore(os.environ[STORE], count)  # type: ignore[attr-defined]
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise SfumatoError(
            f"WORLD_SIZE is {count}, with MASTER_ADDR {host!r} and MASTER_PORT {port!r}",
            "start the processes with torchrun, or set both: the address and the port of worker 0",
        )
    mine = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    known = {"is_master": mine, "timeout": TOGETHER, "wait_for_workers": False, "multi_tenant": True}
    try:
        server = distributed.TCPStore(host, int(port), **known)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if mine and errno.errorcode[errno.EADDRINUSE] in str(error):
            raise SfumatoError(
                f"MASTER_PORT is {port}, but another program listens on that port on {socket.gethostname()}",
                "give another port to all workers",
            ) from None
        raise
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"sfumato {attempt}", server)  # type: ignore[attr-defined]


def _wait(store: Any, count: int, lost: Callable[[], SfumatoError | None]) -> None:
    """Waits until all workers have arrived. Unlike torch's own wait, this one can be interrupted."""
    signs, deadline = [f"{HERE} {rank}" for rank in range(count)], time.monotonic() + TOGETHER.total_seconds()
    while not store.check(signs):
        if (error := lost()) is not None:
            raise error
        if time.monotonic() > deadline:
            missing = [rank for rank, sign in enumerate(signs) if not store.check([sign])]
            raise SfumatoError(
                f"of {count} workers these did not arrive within {TOGETHER}: {', '.join(map(str, missing))}", MEET
            )
        time.sleep(0.02)
