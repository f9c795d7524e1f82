"""Runs without images of their curves; a small source and a plan for it, and a way to kill a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from sfumato import PrivacyPlan, open_source
from sfumato.privacy import Gaussian, Poisson
from sfumato.training import loop


@pytest.fixture(autouse=True)
def no_curves(monkeypatch) -> None:
    """The page's two curves take longer than the small runs here; `tests/report` draws them."""
    monkeypatch.setattr("sfumato.report.document.curve", lambda rows, key, levels: "<svg></svg>" if rows else "")


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", owner_key=bytes(32), public=True)


@pytest.fixture(scope="module")
def planned(digits) -> PrivacyPlan:
    return PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=digits.examples,
        participation=Poisson(batch_size=64),
        steps=24,
        delta=1e-5,
    )


@pytest.fixture
def killed_at(monkeypatch) -> Callable[[int], AbstractContextManager[pytest.MonkeyPatch]]:
    """Around a run: it is killed in its step of that number, from 1, before the weights are moved."""

    class StopError(Exception):
        pass

    @contextmanager
    def killed(step: int) -> Iterator[pytest.MonkeyPatch]:
        taken, descend = [], loop.descend

        def stopping(*given):
            taken.append(1)
            if len(taken) == step:
                raise StopError
            descend(*given)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "descend", stopping)
            with pytest.raises(StopError):
                yield patch

    return killed
