"""Dynamic batching with a bounded queue. Requests that do not fit are refused."""

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


class Pending(NamedTuple):
    """The records of one request, and the future for its answer."""

    records: Sequence[Any]
    answer: asyncio.Future[Any]

    @property
    def is_abandoned(self) -> bool:
        """Whether no client waits for the answer any more."""
        return self.answer.done()


Answers = Callable[[list[Pending]], Sequence[Any]]


class BatchQueue:
    """A bounded queue of requests, and a thread that runs the model.

    Args:
        answers: maps several requests to an answer or an error for each; called in the thread.
        limits: batch size, waiting time for a full batch, queue length and timeout.
        counts: the counters of batches, answered records and waiting records.
    """

    def __init__(self, answers: Answers, limits: Limits, counts: Counts):
        self._answers, self._limits, self._counts = answers, limits, counts
        self._waiting: deque[Pending] = deque()
        self._nonempty = asyncio.Event()
        self._to_thread: queue.SimpleQueue[tuple[asyncio.Future[Any], list[Pending]] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._began: float | None = None

    def start(self) -> None:
        """Starts the thread and the dispatcher, within a running event loop."""
        # A daemon thread, so that a forward pass that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._run_thread, name="sfumato-model", daemon=True)
        self._thread.start()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._dispatch())

    @property
    def alive(self) -> bool:
        """Whether the dispatcher runs, and the current batch has not exceeded the timeout."""
        if self._task is None or self._task.done():
            return False
        return self._began is None or self._loop.time() - self._began <= self._limits.seconds

    @property
    def ready(self) -> bool:
        """Whether the queue is alive and not full."""
        return self.alive and self._counts.waiting < self._limits.queue

    async def submit(self, records: Sequence[Any]) -> Any:
        """Queues the records of one request and waits for the answer.

        Raises:
            Refused: the queue has no room for the records.
            SfumatoError: the model refuses a record.
        """
        if len(records) > self._limits.queue:
            raise Refused(
                413, f"{len(records)} records exceed the queue limit of {self._limits.queue}", "send fewer at once"
            )
        if self._counts.waiting + len(records) > self._limits.queue:
            raise busy(f"{self._counts.waiting} records are waiting")
        request = Pending(records, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._counts.waiting += len(records)
        self._nonempty.set()
        return await request.answer

    async def close(self) -> None:
        """Stops the dispatcher and the thread. The server has already ended all requests, so no client waits."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for request in self._waiting:
            request.answer.cancel()
        self._to_thread.put(None)
        self._thread.join(timeout=1)

    def _run_thread(self) -> None:
        """Runs the model on batches until None is received."""
        while (item := self._to_thread.get()) is not None:
            future, batch = item
            try:
                answers = self._answers(batch)
            except Exception as error:  # an error of the model fails this batch only
                answers = [error] * len(batch)
            with suppress(RuntimeError):  # the event loop may be closed
                self._loop.call_soon_threadsafe(_set_result, future, answers)

    async def _dispatch(self) -> None:
        while True:
            await self._nonempty.wait()
            if self._counts.waiting < self._limits.batch and self._limits.wait:
                await asyncio.sleep(self._limits.wait)
            batch = self._next_batch()
            if not batch:
                continue
            self._counts.sizes.add(sum(len(request.records) for request in batch))
            future, self._began = self._loop.create_future(), self._loop.time()
            self._to_thread.put((future, batch))
            for request, answer in zip(batch, await future, strict=True):
                if request.is_abandoned:
                    continue
                _set_result(request.answer, answer)
                if not isinstance(answer, Exception):
                    self._counts.records += len(request.records)
            self._began = None

    def _next_batch(self) -> list[Pending]:
        """Takes requests from the queue: at least one, at most a full batch. Skips requests whose client is gone."""
        batch: list[Pending] = []
        count = 0
        while self._waiting and (not batch or count + len(self._waiting[0].records) <= self._limits.batch):
            request = self._waiting.popleft()
            self._counts.waiting -= len(request.records)
            if not request.is_abandoned:
                batch.append(request)
                count += len(request.records)
        if not self._waiting:
            self._nonempty.clear()
        return batch


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    """Sets the result or the exception of a future, unless it is done."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
