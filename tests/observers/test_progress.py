"""What a long run tells without a terminal: how far it is, and how long it will still take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sfumato.observers import progress
from sfumato.observers.progress import Bars, read_source


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
    with Bars() as bars:
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


def test_what_was_done_before_does_not_count_as_quick(clock, capsys):
    with Bars() as bars:
        bars.begin("steps", 100, done=80)
        clock.now += 40
        bars.advance(80)
        assert capsys.readouterr().err == "steps: 80 of 100\n"
        clock.now += 40
        bars.advance(90)
        assert capsys.readouterr().err == "steps: 90 of 100, about 80 s left\n"


def test_reading_many_files_is_shown_a_thousand_times_a_pass(monkeypatch):
    told = []

    class Watched:
        def begin(self, what, total, done=0):
            told.append((what, total))

        def advance(self, done, note=""):
            told.append(done)

    class Spec:
        def open(self, key, *, progress):
            for _ in range(2):
                for done in range(1, 5001):
                    progress(done, 5000)
            return SimpleNamespace(unreadable_files=())

    monkeypatch.setattr("sfumato.randomness.owner_key", lambda: bytes(32))
    read_source(Spec(), Watched())
    once = [("reading files", 5000), *range(5, 5001, 5)]
    assert told == [("reading", 1), *once, *once]
