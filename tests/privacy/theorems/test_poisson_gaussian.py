"""Truncated Poisson sampling: published figures, and what the cut costs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sfumato import SfumatoError
from sfumato.privacy import (
    FullBatch,
    Gaussian,
    Poisson,
    PrivacyPlan,
    TruncatedPoisson,
)


def plan(largest: int, sigma: float = 10.0, steps: int = 875) -> PrivacyPlan:
    """De et al. 2022, table 13, epsilon 1."""
    return PrivacyPlan(
        population=50_000,
        participation=TruncatedPoisson(batch_size=4096, largest=largest),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=1e-5,
        adjacency="zero-out",
    )


UNCUT = replace(plan(4352), participation=Poisson(batch_size=4096))


@pytest.mark.parametrize(("largest", "epsilon"), [(4352, 0.902909), (4224, 1.037444), (50_000, 0.902772)])
def test_rows_of_a_cut(largest, epsilon):
    assert plan(largest).epsilon() == pytest.approx(epsilon, abs=1e-5)


def test_a_cut_costs_and_a_deeper_one_costs_more():
    assert plan(50_000).epsilon() == pytest.approx(UNCUT.epsilon(), rel=1e-8)
    costs = [plan(largest, steps=100).epsilon() for largest in (4096, 4160, 4224, 4288, 6000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 1.5 * costs[-1]


@pytest.mark.parametrize(("largest", "sigma"), [(4100, 0.3), (4686, 20.0), (5565, 0.3), (8000, 20.0)])
def test_every_cut_is_answered(largest, sigma):
    assert 0 < plan(largest, sigma, 3).epsilon(grid=1e-3) < 1e4


def test_steps_compose():
    halves = plan(4224, steps=300).loss.composed_with(plan(4224, steps=575).loss)
    assert halves == plan(4224).loss
    assert len(plan(4224, steps=300).loss.composed_with(plan(4160, steps=575).loss).parts) == 2, (
        "another cut is another step"
    )
    mixed = plan(4224, steps=300).loss.composed_with(replace(UNCUT, steps=575).loss)
    assert len(mixed.parts) == 2
    assert UNCUT.epsilon() < mixed.epsilon(1e-5) < plan(4224).epsilon()


def test_it_holds_for_zero_out_alone():
    with pytest.raises(SfumatoError, match="adjacency must be zero-out under truncated sampling"):
        replace(plan(4352), adjacency="add-or-remove")
    with pytest.raises(SfumatoError, match="do not compose"):
        plan(4352).loss.composed_with(replace(UNCUT, adjacency="add-or-remove").loss)
    everything = replace(UNCUT, participation=FullBatch(), steps=1)
    assert plan(4352, steps=1).loss.composed_with(everything.loss).epsilon(1e-5) > everything.epsilon()


def test_it_has_no_renyi_divergence():
    assert plan(4352).loss.accountants == ("pld",)
    assert UNCUT.loss.accountants == ("pld", "rdp")
    with pytest.raises(SfumatoError, match="no Renyi divergence is known"):
        plan(4352).epsilon(accountant="rdp")


def test_the_plan_holds_its_cut():
    data = plan(4352).to_dict()
    assert data["largest"] == 4352
    assert PrivacyPlan.from_dict(json.loads(json.dumps(data))) == plan(4352)
    assert plan(4352).fingerprint != plan(4353).fingerprint
