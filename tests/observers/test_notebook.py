"""In a notebook a run shows a bar by itself, and nowhere else."""

from __future__ import annotations

import sys
import types

import pytest

from sfumato import train
from sfumato.observers import notebook
from sfumato.observers.notebook import NotebookBar, default_progress, in_notebook
from sfumato.observers.progress import NoProgress


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
    monkeypatch.setattr(notebook, "_SECONDS", 0.0)
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
    monkeypatch.setattr(notebook, "_SECONDS", 3600.0)
    bar = NotebookBar()
    bar.begin("training", 1000)
    for step in range(1, 1001):
        bar.advance(step)
    assert [one["text/plain"] for one in kernel.displayed] == ["training: 0 of 1000", ""]
