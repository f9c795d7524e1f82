"""Rules of participation: what they refuse, what they count, and what they are called."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.privacy import (
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    FullBatch,
    Gaussian,
    Participation,
    Poisson,
    PrivacyPlan,
    TruncatedPoisson,
)
from sfumato.privacy.participation import UNPROVEN, refuse_unproven

RULES: list[Participation] = [
    FullBatch(),
    Poisson(batch_size=30),
    FixedOrder(batch_size=30),
    FixedOrder(batch_size=30, assignment="position"),
    CyclicPoisson(batch_size=30, groups=5),
    TruncatedPoisson(batch_size=30, largest=60),
    DriftingPoisson(batch_size=30, period=8, sizes=(700, 300)),
]


def plan(participation: Participation, steps: int = 20, adjacency="zero-out") -> PrivacyPlan:
    mechanism = Gaussian(noise_multiplier=5.0)
    return PrivacyPlan(
        population=1000, participation=participation, mechanism=mechanism, steps=steps, delta=1e-5, adjacency=adjacency
    )


@given(population=st.integers(1, 5000), share=st.floats(0, 1))
def test_bins_hold_everybody_and_take_turns(population, share):
    rule = FixedOrder(batch_size=max(1, round(share * population)))
    bins = rule.bins(population)
    assert (bins - 1) * rule.batch_size < population <= bins * rule.batch_size
    assert rule.gap(population) == bins
    assert rule.probability(population) == 1 / bins
    assert bins == math.ceil(population / rule.batch_size)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_draws_its_largest_batch_and_no_larger(rule):
    largest = rule.largest_batch(1000)
    assert plan(rule.with_batch_size(largest)).expected_batch_size in (largest, 1000)
    if not isinstance(rule, FullBatch):
        with pytest.raises(SfumatoError):
            plan(rule.with_batch_size(largest + 1))


ADJACENCIES = {"add-or-remove": (True, True, True, False, True, False, True), "zero-out": (True,) * 7}


@pytest.mark.parametrize(("rule", "adjacency"), [(rule, adjacency) for rule in RULES for adjacency in ADJACENCIES])
def test_what_moves_others_holds_for_zero_out_alone(rule, adjacency):
    if ADJACENCIES[adjacency][RULES.index(rule)]:
        assert plan(rule, adjacency=adjacency).loss.adjacency == adjacency
        return
    with pytest.raises(SfumatoError, match="where one record's absence changes who else takes part") as no:
        plan(rule, adjacency=adjacency)
    assert "use zero-out adjacency, or use " in no.value.remedy


@pytest.mark.parametrize("name", [*UNPROVEN, "With_Replacement"])
def test_what_has_no_theorem_is_refused_with_what_comes_nearest(name):
    with pytest.raises(SfumatoError, match=f"no theorem here covers the participation '{name}': ") as error:
        refuse_unproven(name)
    assert error.value.remedy.startswith("use ")
    with pytest.raises(SfumatoError, match="no theorem here covers the participation"):
        PrivacyPlan.from_dict({**plan(Poisson(batch_size=30)).to_dict(), "sampling": name})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedOrder(batch_size=0), "batch_size must be at least 1"),
        (lambda: FixedOrder(batch_size=3, assignment="hash"), "assignment must be one of random, position"),  # type: ignore[arg-type]
        (lambda: CyclicPoisson(batch_size=3, groups=0), "groups must be at least 1"),
        (lambda: CyclicPoisson(batch_size=3, groups=True), "groups must be a whole number"),
        (lambda: TruncatedPoisson(batch_size=30, largest=29), "largest must be at least 30, got 29"),
        (lambda: plan(CyclicPoisson(batch_size=30, groups=34)), "batch_size must be at most 29, got 30"),
        (lambda: plan(FixedOrder(batch_size=1001)), "batch_size must be at most"),
        (lambda: plan(TruncatedPoisson(batch_size=1000, largest=1000)), "batch_size must be at most 999, got 1000"),
    ],
)
def test_bad_values_are_refused(make, words):
    with pytest.raises(SfumatoError, match=words):
        make()
