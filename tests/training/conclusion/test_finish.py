"""What a finished run's page is told."""

from __future__ import annotations

import pytest

from sfumato import PrivacyPlan, Statement
from sfumato.privacy import CandidateCount, Circumstances, PrivateSelection, detections
from sfumato.report import RATES
from sfumato.training.conclusion.run_page import _attack


def test_the_attacker_of_a_selected_model_may_have_seen_the_choice():
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=10, epsilon=1.0, delta=1e-5)
    selection = PrivateSelection(plan=plan, draws=CandidateCount(mean=10), score_noise=None)
    alone, chosen = (
        _attack(Statement(plan=plan, circumstances=Circumstances(), selection=one)) for one in (None, selection)
    )
    assert alone.detections == pytest.approx(detections(plan, RATES))
    assert chosen.detections == pytest.approx(detections(selection, RATES))
    assert all(more > less for more, less in zip(chosen.detections[:40], alone.detections, strict=False))
