"""Runs without images of their curves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_curves(monkeypatch) -> None:
    """The page's two curves take longer than the small runs here; `tests/report` draws them."""
    monkeypatch.setattr("sfumato.report.document.curve", lambda rows, key, levels: "<svg></svg>" if rows else "")
