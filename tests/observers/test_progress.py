"""What a long run tells without a terminal: how far it is, and how long it will still take."""

from __future__ import annotations

import pytest

from sfumato.observers import progress
from sfumato.observers.progress import ProgressBars


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when it is told to."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_a_line_now_and_then_says_how_far_it_is_and_how_long_it_will_take(clock, capsys):
    with ProgressBars() as bars:
        bars.begin("steps", 100)
        clock.now += progress.LINE_SECONDS / 2
        bars.advance(5)
        assert capsys.readouterr().err == ""
        clock.now += progress.LINE_SECONDS
        bars.advance(30, "test accuracy 50%")
        assert capsys.readouterr().err == "steps: 30 of 100, about 35 s left, test accuracy 50%\n"
        clock.now += 1
        bars.advance(31)
    assert capsys.readouterr().err == ""
