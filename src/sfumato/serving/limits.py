"""What a server takes at most, and what a request is refused with: a status, and one line."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, not_negative, positive, positive_integer

BODIES = 16
"""So many bodies of the largest size are held at once, all requests together."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server.

    Args:
        megabytes: of 10^6 bytes, that the body of a request has at most.
        seconds: that a client may take to send a request, and a request to be answered.
        batch: records that go through the model together, at most.
        wait: seconds that a batch which is not full waits for more records.
        queue: records that wait at most; a request that finds no place is refused, to come again.

    Errors: `SfumatoError` that names the one that is out of range.

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
                f"`queue={self.queue}` has no room for a batch of {self.batch}",
                "give a larger `queue`, or less `batch`",
            )

    @property
    def body(self) -> int:
        """Bytes of one body."""
        return int(1e6 * self.megabytes)

    @property
    def held(self) -> int:
        """Bytes of all bodies that are in memory."""
        return BODIES * self.body


class Refused(SfumatoError):  # noqa: N818 - in the words of HTTP a refusal is an answer
    """A request that is not answered with what it asks for.

    Args:
        status: of HTTP.
        problem, remedy: as of every refusal.
    """

    def __init__(self, status: int, problem: str, remedy: str):
        super().__init__(problem, remedy)
        self.status = status

    def __reduce__(self):
        return type(self), (self.status, self.problem, self.remedy)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: a busy server says when to come again, a closed one by what it opens."""
        own = {503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}
        return own.get(self.status, {})


def busy(problem: str) -> Refused:
    """The refusal of what there is no room or time for now."""
    return Refused(503, problem, "send it again later")
