"""Server metrics in Prometheus text format: counts of requests, records and seconds, but nothing about contents.

Source: Prometheus, exposition formats, text version 0.0.4.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
