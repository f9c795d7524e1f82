"""Calls are recorded at once, and no garbage is collected for it: that takes as long as a small recording."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sfumato.gradients.replay import recording, replays


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch):
    monkeypatch.setattr(replays, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(recording, "gc", SimpleNamespace(collect=lambda: None))


@pytest.fixture
def no_more(monkeypatch) -> Callable[[], None]:
    """From now on nothing is recorded: recordings that there are stay."""
    return lambda: monkeypatch.setattr(replays, "_WORTH_SECONDS", float("inf"))
