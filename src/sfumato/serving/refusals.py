"""What a request is refused with: a status, and one line."""

from __future__ import annotations

from sfumato._checks import SfumatoError


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
