"""What a finished run's page is told."""

import pytest

from sfumato import PrivacyPlan, Statement
from sfumato.privacy import (
    Circumstances,
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    Participation,
    TruncatedPoisson,
    User,
)
from sfumato.report import RATES
from sfumato.report.plots.drawing import _environment
from sfumato.training.conclusion.run_report import _attack


@pytest.fixture(autouse=True)
def no_curves() -> None:
    """Here they are computed."""


def test_page_statement_and_card_have_one_figure_for_a_test_with_1_percent_false_alarms():
    plan = PrivacyPlan.calibrate(examples=1438, batch_size=1438, steps=60, epsilon=3.0, delta=1e-5)
    said = Statement(plan=plan, circumstances=Circumstances())
    assert "at most 5.41% of the cases" in said.plain[2]
    assert "at most 5.41% at one in a hundred" in _attack(said).description
    assert "| 1.0% | at most 5.41% |" in _tables(said.to_dict())


def _tables(said) -> str:
    """The tables of a card and of an assessment."""
    source = "{% import 'promised.md.jinja' as parts %}{{ parts.promised(said) }}"
    return _environment().from_string(source).render(said=said)


RULES = {
    "drifting": DriftingPoisson(batch_size=40, period=4, sizes=(100, 100)),
    "truncated": TruncatedPoisson(batch_size=40, largest=80),
    "cyclic": CyclicPoisson(batch_size=40, groups=4),
    "in order": FixedOrder(batch_size=40),
}


@pytest.mark.parametrize("participation", RULES.values(), ids=RULES)
def test_every_rule_has_an_attacker(participation: Participation):
    adjacency = "zero-out" if isinstance(participation, TruncatedPoisson) else "add-or-remove"
    known = {"examples": 200, "batch_size": 40, "steps": 4, "noise_multiplier": 8.0, "delta": 1e-5}
    plan = PrivacyPlan.calibrate(**known, participation=participation, adjacency=adjacency)
    found = _attack(Statement(plan=plan, circumstances=Circumstances()))
    assert found.detections == sorted(found.detections)
    assert all(rate < share <= 1 for rate, share in list(zip(RATES, found.detections, strict=True))[:-1])


def test_users_of_many_records_have_an_attacker():
    known = {"examples": 200, "batch_size": 20, "steps": 4, "noise_multiplier": 8.0, "delta": 1e-5}
    plan = PrivacyPlan.calibrate(**known, unit=User(at_most=4))
    found = _attack(Statement(plan=plan, circumstances=Circumstances()))
    assert found.subject.startswith("person, with up to 4")
    assert found.detections == sorted(found.detections)
