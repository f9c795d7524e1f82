"""What a page says of calibration, and of figures that may be published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sfumato.privacy import NoisyTable
from sfumato.report import Calibration, NoisyFigures, page
from sfumato.report.sections.calibrated import calibrated

FIGURES = NoisyFigures(
    table=NoisyTable(epsilon=0.5, classes=2), counts=np.array([[1195, 30], [2, 7]]), classes=("heron", "<newt>")
)


def test_published_figures_are_on_every_version_of_the_page(facts):
    for public in (False, True):
        text = page(facts(published=FIGURES), public=public)
        assert "Accuracy: 97.4% (" in text
        assert "epsilon 0.5" in text
        assert "unknown: the noise leaves nothing of it" in text
        assert "&lt;newt&gt;" in text
        assert "<newt>" not in text
    assert 'id="published"' not in page(facts(), public=True)


def test_exact_calibration_is_on_the_owner_s_page_alone(facts, evaluation):
    bands = [(0.4, 0.5, 40, 0.45, 0.31), (0.9, 1.0, 40, 0.97, 0.77)]
    exact = replace(evaluation, calibration=Calibration(error=0.17, bands=bands))
    assert "17.0%" in page(facts(evaluation=exact))
    assert 'id="calibration"' not in page(facts(evaluation=exact), public=True)
    assert page(facts(evaluation=exact), public=True) == page(facts(), public=True)


def test_bad_calibration_is_said_in_a_sentence():
    sure = calibrated(Calibration(error=0.12, bands=[(0.9, 1.0, 50, 0.97, 0.85)]))
    assert "is overconfident" in sure["words"]
    unsure = calibrated(Calibration(error=0.12, bands=[(0.8, 0.9, 50, 0.85, 0.97)]))
    assert "is underconfident" in unsure["words"]
    assert calibrated(Calibration(error=0.01, bands=[(0.8, 0.9, 50, 0.85, 0.86)]))["words"] == ""
    assert calibrated(None) is None
    few = calibrated(Calibration(error=0.1, bands=[(0.5, 0.6, 9, 0.55, 0.0), (0.8, 0.9, 50, 0.85, 0.86)]))
    assert few["left_out"] == 9
    assert "0% at 55" not in few["plot"], "nine images make no point"
    assert "86.0% at 85.0%" in few["plot"]


def test_published_accuracy_leads_the_page_whose_exact_one_is_left_out(facts, evaluation):
    public = page(facts(published=FIGURES, evaluation=evaluation), public=True)
    summary = public[: public.index('id="promise"')]
    assert "97.4%" in summary
    assert "from about 1,234 test images, with noise that is worth epsilon 0.5" in summary
    assert "Published with the model" in summary
    assert "Private: not covered" not in summary
    assert "Accuracy is left out" not in summary
    own = page(facts(published=FIGURES, evaluation=evaluation))
    assert (
        "Private: not covered" in own[: own.index('id="owner"') if 'id="owner"' in own else own.index('id="promise"')]
    )
    nothing = replace(FIGURES, counts=FIGURES.counts // 100)
    assert "Accuracy is left out" in page(facts(published=nothing, evaluation=evaluation), public=True)
