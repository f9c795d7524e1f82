"""Limits of a server, and the refusal of a request: an HTTP status and one line."""

from __future__ import annotations

from dataclasses import dataclass

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
