"""Dynamic batching: requests that come together go through the model together; what finds no place is refused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sfumato.serving.counts import Counts
from sfumato.serving.limits import Limits
from sfumato.serving.refusals import Refused, busy

Answers = Callable[[list[Sequence[Any]]], Sequence[Any]]


class _Job(NamedTuple):
    records: Sequence[Any]
    answer: asyncio.Future[Any]


class Batches:
    """A bounded queue, and one thread that works it off.

    Args:
        answers: from the records of several requests to an answer or a refusal of each; called in the thread.
        limits: how many records make a batch, how long it waits for them, and how many wait.
        counts: is told of batches and of records that wait.
    """

    def __init__(self, answers: Answers, limits: Limits, counts: Counts):
        self._answers, self._limits, self._counts = answers, limits, counts
        self._jobs: deque[_Job] = deque()
        self._some = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "sfumato-model")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work, within a running event loop."""
        self._task = asyncio.create_task(self._work())

    @property
    def ready(self) -> bool:
        """Whether it works, and has room."""
        return self._task is not None and not self._task.done() and self._counts.waiting < self._limits.queue

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
        job = _Job(records, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._counts.waiting += len(records)
        self._some.set()
        return await job.answer

    async def close(self) -> None:
        """Stop; nobody waits any more, since a server ends its requests first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for job in self._jobs:
            job.answer.cancel()
        self._thread.shutdown(wait=True)

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            if self._counts.waiting < self._limits.batch and self._limits.wait:
                await asyncio.sleep(self._limits.wait)
            jobs = self._taken()
            if not jobs:
                continue
            self._counts.sizes.add(sum(len(job.records) for job in jobs))
            try:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._answers, [job.records for job in jobs]
                )
            except Exception as error:  # of the model itself: its requests are told, and the next ones are tried
                found = [error] * len(jobs)
            for job, answer in zip(jobs, found, strict=True):
                if job.answer.done():  # its time was over
                    continue
                if isinstance(answer, Exception):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)
                    self._counts.records += len(job.records)

    def _taken(self) -> list[_Job]:
        """The first jobs, as many as make a batch and at least one, without those that nobody waits for."""
        jobs: list[_Job] = []
        count = 0
        while self._jobs and (not jobs or count + len(self._jobs[0].records) <= self._limits.batch):
            job = self._jobs.popleft()
            self._counts.waiting -= len(job.records)
            if not job.answer.done():
                jobs.append(job)
                count += len(job.records)
        if not self._jobs:
            self._some.clear()
        return jobs
