"""Runs that are killed: their work ends where a function is called, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class StopError(BaseException):
    """Ends a process's work from within, as a kill would."""


def before_line(step: int) -> Callable[..., bool]:
    """For `Ledger.append`: the line of this step's release."""
    return lambda _, kind, body: kind == "release" and body["step"] == step


@contextmanager
def killed(
    place: Any, name: str, when: Callable[..., bool] = lambda *_: True, *, call: int = 1
) -> Iterator[pytest.MonkeyPatch]:
    """Around what is killed in place of the call of this number, from 1, of those for which `when` holds."""
    inner, calls = getattr(place, name), []

    def stopping(*given: Any, **named: Any) -> Any:
        if when(*given):
            calls.append(1)
            if len(calls) == call:
                raise StopError
        return inner(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, stopping)
        with pytest.raises(StopError):
            yield patch
