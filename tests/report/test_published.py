"""What a page says of figures that may be published, and of the exact ones."""

from dataclasses import replace

import numpy as np

from sfumato.privacy import NoisyTable
from sfumato.report import NoisyFigures, page

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


def test_the_exact_calibration_error_is_on_the_owner_s_page_alone(facts, evaluation):
    exact = replace(evaluation, calibration_error=0.17)
    assert "17.0% (expected calibration error)" in page(facts(evaluation=exact))
    assert "calibration error" not in page(facts(evaluation=evaluation))
    assert page(facts(evaluation=exact), public=True) == page(facts(), public=True)


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
