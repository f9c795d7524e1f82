"""Where workers meet: a store, in which each says that it is there, and who it is; and signs of life: which of them has
stopped moving, while the others wait for it.

How long a worker may rightly be at something, nobody can know: the leader measures the test part, reads a slow disk,
writes the page. So no step has a time limit. But a process that is alive has time for a sign every few seconds,
whatever it is at; one that gives none for minutes was stopped, or its machine is gone or out of reach.
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
from sfumato._files import machine

BEAT = 10.0
"""Seconds from one sign of a worker to its next."""
LOOK = 20.0
"""Seconds from one look at the others' signs to the next, while waiting for them."""
SILENCE = 300.0
"""Seconds without a sign after which a worker is given up."""
_ENDING = 5.0
"""Seconds for a last sign to be given."""
AGAIN = "give the same command again: a run goes on from its last checkpoint"
_SIGN = "sign of worker"


class Signs:
    """This worker's signs, given by a thread, and what was seen of the others'.

    Args:
        store: where they have met; a connection of its own is made to it, since others wait there for long.
        rank: of this one.
        names: of all of them, in words.
    """

    def __init__(self, store: Any, rank: int, names: Sequence[str]):
        self._names, self._over = names, threading.Event()
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=SILENCE))
        self._keys = [f"{_SIGN} {other}" for other in range(len(names))]
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._store.set(self._keys[rank], "0")
        own = store.clone()  # to look there may take long, where nobody answers; signs must go on
        self._thread = threading.Thread(target=self._give, args=(own, self._keys[rank]), name="signs", daemon=True)
        self._thread.start()

    def _give(self, store: Any, key: str) -> None:
        count = 0
        while not self._over.wait(BEAT):
            count += 1
            with contextlib.suppress(RuntimeError):  # the store is gone with whoever held it
                store.set(key, str(count))

    def finished(self, work: Any) -> None:
        """Wait until an operation with the others is done.

        Errors: `SfumatoError` where one of them shows no sign of life meanwhile; what the operation itself fails of.
        """
        while True:
            try:
                work.wait(timedelta(seconds=LOOK))
            except RuntimeError:  # it has failed, or takes longer
                if work.is_completed():
                    work.wait()
                    return
                self._refuse_silent()
            else:
                return

    def _refuse_silent(self) -> None:
        """Refuses where one of them has not moved for long, as far as was looked."""
        try:
            signs = self._store.multi_get(self._keys)
        except RuntimeError as error:
            if "imeout" not in str(error):
                return  # the store is gone, and so will be the connection that is waited for
            raise SfumatoError(
                f"the place where the workers meet, with {self._names[0]} or its torchrun, has not answered for "
                f"{_words(SILENCE)}",
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
                f"{', '.join(odd)} has shown no sign of life for {_words(SILENCE)}: it was stopped, or its machine is "
                "out of reach",
                f"end it, and {AGAIN}",
            )

    def close(self) -> None:
        """Give no more of them.

        The thread has ended then, unless the store does not answer: one that is still in torch's code when Python ends
        ends the process with an abort.
        """
        self._over.set()
        self._thread.join(_ENDING)


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


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
