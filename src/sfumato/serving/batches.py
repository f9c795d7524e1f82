"""Limits of a server, its metrics, and dynamic batching with a bounded queue.

Metrics are counts of requests, records and seconds, and nothing about contents (Prometheus, exposition formats, text
version 0.0.4).
"""

from __future__ import annotations

import asyncio
import bisect
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError, not_negative, positive, positive_integer

BODIES = 16
"""Memory limit for all request bodies, as a multiple of the largest body."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Args:
        megabytes: largest body of a request, in units of 10^6 bytes.
        seconds: timeout for sending a request, and for answering it.
        batch: largest number of records in a batch.
        wait: seconds that an incomplete batch waits for more records.
        queue: largest number of waiting records; a request that exceeds it is refused with "send it again later".

    Raises:
        SfumatoError: a limit is out of range.

    >>> Limits(megabytes=10).body, Limits(megabytes=10).held
    (10000000, 160000000)
    """

    megabytes: float = 10
    seconds: float = 30
    batch: int = 64
    wait: float = 0.002
    queue: int = 512

    def __post_init__(self):
        positive("max_body", self.megabytes)
        positive("timeout", self.seconds)
        not_negative("wait", self.wait)
        positive_integer("batch", self.batch)
        if positive_integer("queue", self.queue) < self.batch:
            raise SfumatoError(
                f"`queue={self.queue}` is smaller than a batch of {self.batch}",
                "give a larger `queue`, or a smaller `batch`",
            )

    @property
    def body(self) -> int:
        """Largest size of one body, in bytes."""
        return int(1e6 * self.megabytes)

    @property
    def held(self) -> int:
        """Largest total size of the bodies in memory, in bytes."""
        return BODIES * self.body


class Refused(SfumatoError):  # noqa: N818 - in HTTP a refusal is a response
    """Refusal of a request.

    Args:
        status: HTTP status.
        problem, remedy: as for `SfumatoError`.
    """

    def __init__(self, status: int, problem: str, remedy: str):
        super().__init__(problem, remedy)
        self.status = status

    def __reduce__(self):
        return type(self), (self.status, self.problem, self.remedy)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response: `retry-after` for 503, `www-authenticate` for 401."""
        by_status = {503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}
        return by_status.get(self.status, {})


def busy(problem: str) -> Refused:
    """The refusal of a request while the server is overloaded."""
    return Refused(503, problem, "send it again later")


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """A Prometheus histogram: cumulative counts up to each bound, total count and sum.

    >>> one = Histogram((1, 2))
    >>> one.add(2), one.add(5)
    (None, None)
    >>> list(one.lines("size"))
    ['size_bucket{le="1"} 0', 'size_bucket{le="2"} 1', 'size_bucket{le="+Inf"} 2', 'size_sum 7', 'size_count 2']
    """

    def __init__(self, bounds: Sequence[float]):
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Adds a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yields the lines of the text format."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:g}"
        yield f"{name}_count {total}"


@dataclass
class Counts:
    """Counters since the server started.

    Args:
        requests: number of requests by path and status.
        records: number of answered records.
        seconds: durations of requests.
        sizes: batch sizes.
        waiting: number of records in the queue.
        held: bytes of request bodies in memory.
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    records: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))
    waiting: int = 0
    held: int = 0

    def text(self) -> str:
        """All metrics in text format."""
        answered = (
            f'sfumato_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        )
        parts = {
            ("sfumato_requests_total", "counter", "Requests by path and status."): answered,
            ("sfumato_request_seconds", "histogram", "Seconds from a request's header to its answer."): (
                self.seconds.lines("sfumato_request_seconds")
            ),
            ("sfumato_batch_records", "histogram", "Records in a batch."): (self.sizes.lines("sfumato_batch_records")),
            ("sfumato_records_total", "counter", "Answered records."): [f"sfumato_records_total {self.records}"],
            ("sfumato_waiting_records", "gauge", "Records in the queue."): [f"sfumato_waiting_records {self.waiting}"],
            ("sfumato_held_bytes", "gauge", "Bytes of request bodies in memory."): [f"sfumato_held_bytes {self.held}"],
        }
        lines = []
        for (name, kind, purpose), values in parts.items():
            lines += [f"# HELP {name} {purpose}", f"# TYPE {name} {kind}", *values]
        return "\n".join(lines) + "\n"


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
