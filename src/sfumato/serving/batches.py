"""Dynamic batching: requests that come together go through the model together; what finds no place is refused."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sfumato.serving.counts import Counts
from sfumato.serving.limits import Limits, Refused, busy


class Asked(NamedTuple):
    """The records of one request, and where its answer goes."""

    records: Sequence[Any]
    answer: asyncio.Future[Any]

    @property
    def over(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.answer.done()


Answers = Callable[[list[Asked]], Sequence[Any]]


class Batches:
    """A bounded queue, and one thread that works it off.

    Args:
        answers: from several requests to an answer or a refusal of each; called in the thread.
        limits: how many records make a batch, how long it waits for them, how many wait, and how long a batch may take.
        counts: is told of batches and of records that wait.
    """

    def __init__(self, answers: Answers, limits: Limits, counts: Counts):
        self._answers, self._limits, self._counts = answers, limits, counts
        self._waiting: deque[Asked] = deque()
        self._some = asyncio.Event()
        self._given: queue.SimpleQueue[tuple[asyncio.Future[Any], list[Asked]] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._began: float | None = None

    def start(self) -> None:
        """Begin to work, within a running event loop."""
        # Daemonic: a forward that never ends must not keep the process from ending.
        self._thread = threading.Thread(target=self._answer, name="sfumato-model", daemon=True)
        self._thread.start()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._work())

    @property
    def alive(self) -> bool:
        """Whether it works, and is not held up by a batch that takes longer than anybody waits."""
        if self._task is None or self._task.done():
            return False
        return self._began is None or self._loop.time() - self._began <= self._limits.seconds

    @property
    def ready(self) -> bool:
        """Whether it is alive, and has room."""
        return self.alive and self._counts.waiting < self._limits.queue

    async def ask(self, records: Sequence[Any]) -> Any:
        """The answer to the records of one request.

        Errors: `Refused` where there is no room for them, and whatever the model refuses.
        """
        if len(records) > self._limits.queue:
            raise Refused(
                413, f"{len(records)} records are more than the {self._limits.queue} of the queue", "send fewer at once"
            )
        if self._counts.waiting + len(records) > self._limits.queue:
            raise busy(f"{self._counts.waiting} records are waiting")
        asked = Asked(records, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._counts.waiting += len(records)
        self._some.set()
        return await asked.answer

    async def close(self) -> None:
        """Stop; nobody waits any more, since a server ends its requests first."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for asked in self._waiting:
            asked.answer.cancel()
        self._given.put(None)
        self._thread.join(timeout=1)

    def _answer(self) -> None:
        """The thread: batch by batch, until there is none."""
        while (given := self._given.get()) is not None:
            found, batch = given
            try:
                answers = self._answers(batch)
            except Exception as error:  # of the model itself: its requests are told, and the next ones are tried
                answers = [error] * len(batch)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(_settle, found, answers)

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            if self._counts.waiting < self._limits.batch and self._limits.wait:
                await asyncio.sleep(self._limits.wait)
            batch = self._taken()
            if not batch:
                continue
            self._counts.sizes.add(sum(len(asked.records) for asked in batch))
            found, self._began = self._loop.create_future(), self._loop.time()
            self._given.put((found, batch))
            for asked, answer in zip(batch, await found, strict=True):
                if asked.over:
                    continue
                _settle(asked.answer, answer)
                if not isinstance(answer, Exception):
                    self._counts.records += len(asked.records)
            self._began = None

    def _taken(self) -> list[Asked]:
        """The first requests, as many as make a batch and at least one, without those that nobody waits for."""
        batch: list[Asked] = []
        count = 0
        while self._waiting and (not batch or count + len(self._waiting[0].records) <= self._limits.batch):
            asked = self._waiting.popleft()
            self._counts.waiting -= len(asked.records)
            if not asked.over:
                batch.append(asked)
                count += len(asked.records)
        if not self._waiting:
            self._some.clear()
        return batch


def _settle(future: asyncio.Future[Any], found: Any) -> None:
    """Give a future what was found, or why nothing was; unless nobody waits for it."""
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
