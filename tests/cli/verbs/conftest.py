"""Runs of these tests are small: to draw their pictures would take longer than they do."""

import pytest


@pytest.fixture(autouse=True)
def no_images(request, monkeypatch) -> None:
    """Nothing is drawn but for a test that asks for `images`; `tests/report` looks at what is drawn."""
    if "images" in request.fixturenames:
        return
    monkeypatch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "<svg></svg>")
    monkeypatch.setattr("sfumato.search.trials.sweep_panels", lambda rows, varied: f"<svg>{len(rows)} {varied}</svg>")


@pytest.fixture
def images() -> None:
    """Pictures are drawn."""
