"""What a long run shows: lines without a terminal, and in a notebook a bar."""

from __future__ import annotations

import sys
import types

import pytest

from sfumato import train
from sfumato.observers import progress
from sfumato.observers.progress import NoProgress, NotebookBar, ProgressBars, default_progress, in_notebook


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


class Kernel:
    """What IPython is to us: a shell with or without a kernel, and what was displayed."""

    def __init__(self, kernel: object):
        self.displayed: list[dict[str, str]] = []
        self.ipython = types.ModuleType("IPython")
        shell = types.SimpleNamespace(kernel=kernel)
        self.ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
        self.display = types.ModuleType("IPython.display")
        self.display.display = self._display  # type: ignore[attr-defined]

    def _display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Kernel:
        assert raw
        assert display_id
        assert not self.displayed, "one bar, moved; not one for each step"
        self.displayed.append(shown)
        return self

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.displayed.append(shown)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(object())
    monkeypatch.setitem(sys.modules, "IPython", made.ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display)
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    return made


def test_without_ipython_it_is_not_imported_and_nothing_is_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    assert isinstance(default_progress(None), NoProgress)
    assert "IPython" not in sys.modules


def test_a_run_shows_its_steps_in_one_bar_that_goes(kernel: Kernel, spots, plan, options, tmp_path, capsys):
    train("linear", spots, plan, directory=tmp_path / "run", **(options | {"views": 1, "shift": 0}))
    texts = [one["text/plain"] for one in kernel.displayed]
    assert "training: 0 of 12" in texts
    assert any(text.startswith("training: 11 of 12") for text in texts)
    assert texts[-1] == ""
    assert "evaluating; writing the model and its report" in capsys.readouterr().out
    values = [one["text/html"] for one in kernel.displayed if 'max="12"' in one["text/html"]]
    assert 'value="11"' in values[-1]


def test_the_bar_does_not_move_for_every_step(kernel: Kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_SECONDS", 3600.0)
    bar = NotebookBar()
    bar.begin("training", 1000)
    for step in range(1, 1001):
        bar.advance(step)
    assert [one["text/plain"] for one in kernel.displayed] == ["training: 0 of 1000", ""]
