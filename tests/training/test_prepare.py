"""From choices to a job: threads."""

from __future__ import annotations

import joblib
import torch

from sfumato.training.prepare import default_threads


def test_threads_are_those_that_the_container_allows(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    assert default_threads() == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert default_threads() == 1
