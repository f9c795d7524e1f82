"""The plan: calibration never exceeds the budget, wastes little of it, and a plan is its fields."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import (
    BandedToeplitz,
    CyclicPoisson,
    FixedClipping,
    FixedOrder,
    Tree,
    TruncatedPoisson,
    calibration,
    loss,
)
from sfumato.privacy.plan import default_delta

PLAN = PrivacyPlan(
    population=1000,
    participation=Poisson(batch_size=100),
    mechanism=Gaussian(noise_multiplier=2.0),
    steps=50,
    delta=1e-5,
)


@given(
    examples=st.integers(200, 100_000),
    share=st.floats(0.002, 1.0),
    steps=st.integers(1, 3000),
    epsilon=st.floats(0.05, 2.0),  # a large epsilon costs the accountant ten times a small one
)
@example(examples=100_000, share=0.002, steps=3000, epsilon=10.0)
@settings(max_examples=2, deadline=None)
def test_the_least_noise_meets_the_budget_and_a_little_less_would_not(examples, share, steps, epsilon):
    batch = max(1, int(examples * share))
    plan = PrivacyPlan.calibrate(examples=examples, batch_size=batch, steps=steps, epsilon=epsilon, delta=1e-5)
    assert plan.epsilon() <= epsilon
    assert (plan.expected_batch_size, plan.steps, plan.delta) == (batch, steps, 1e-5)
    if plan.noise_multiplier > 0.05:
        less = replace(plan, mechanism=Gaussian(noise_multiplier=plan.noise_multiplier * 0.998 - 2e-4))
        assert less.epsilon() > epsilon * 0.999


@pytest.mark.parametrize(
    ("batch", "steps", "epsilon"),
    [(1000, 1, 1e8), (1000, 1, 1e300), (10, 3, 1e-10), (10, 3, 1e-4), (10, 3, 5000.0), (700, 2174, 1.0)],
)
def test_noise_is_found_for_any_budget_that_can_be_written(batch, steps, epsilon):
    """Where dp-accounting has no Gaussian of such a budget to begin the search with, too."""
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=batch, steps=steps, epsilon=epsilon, delta=1e-5)
    assert plan.epsilon() <= epsilon


@pytest.mark.parametrize("guess", [1e-9, 0.02, 1.0, 7.0, 1e7])
@pytest.mark.parametrize("high", [1e300, math.inf])
def test_the_guess_does_not_decide_what_is_found(guess, high):
    """Not even where the cost falls from one end of the numbers to the other."""

    def spent(value: float, grid: float) -> float:
        return high if value < 3.0 else 1e-300

    assert calibration.least_within(spent, 1.0, what="value", remedy="", guess=guess) == pytest.approx(3.0, rel=2e-4)
    powers = [
        calibration.least_within(lambda v, _: 5 * v**-1.3, 0.7, what="value", remedy="", guess=one)
        for one in (guess, 1.0)
    ]
    assert powers[0] == powers[1]


@given(batch=st.integers(40, 2000), sigma=st.floats(1.5, 5.0), epsilon=st.floats(0.5, 2.0))
@example(batch=40, sigma=0.7, epsilon=12.0)
@settings(max_examples=2, deadline=None)
def test_the_most_steps_meet_the_budget_and_one_more_would_not(batch, sigma, epsilon):
    known = {"examples": 2000, "batch_size": batch, "noise_multiplier": sigma, "delta": 1e-5}
    if PrivacyPlan.calibrate(**known, steps=1).epsilon() > epsilon:
        with pytest.raises(SfumatoError, match="already exceeded by one step"):
            PrivacyPlan.calibrate(**known, epsilon=epsilon)
        return
    plan = PrivacyPlan.calibrate(**known, epsilon=epsilon)
    assert plan.epsilon() <= epsilon
    assert plan.epsilon(steps=plan.steps + max(1, plan.steps // 500)) > epsilon * 0.9999


def test_a_batch_of_everything_is_full_batch():
    plan = PrivacyPlan.calibrate(examples=500, batch_size=500, steps=10, epsilon=1.0, delta=1e-4)
    assert plan.participation == FullBatch()
    assert plan.sampling_probability == 1
    assert plan.expected_epochs == 10


def test_the_hardest_row_is_answered_in_few_tries():
    loss._epsilon.cache_clear()
    plan = PrivacyPlan.calibrate(examples=1_271_167, batch_size=16_384, steps=71_589, epsilon=8.0, delta=8e-7)
    assert plan.noise_multiplier == pytest.approx(2.379, abs=0.002)
    assert loss._epsilon.cache_info().misses < 16


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 51},
        {"delta": 2e-5},
        {"clipping": FixedClipping(1.5)},
        {"mechanism": Gaussian(noise_multiplier=2.0001)},
        {"population": 1001},
        {"population": 1000, "participation": Poisson(batch_size=101)},
        {"participation": FullBatch()},
    ],
)
def test_every_field_is_in_the_fingerprint(changed):
    assert replace(PLAN, **changed).fingerprint != PLAN.fingerprint


def test_the_fingerprint_outlives_versions():
    assert PLAN.fingerprint == "03a54cd4f1883f98e9098b2d70efdcf010b9e98f19e3569653668fbf423392d1"


# Every theorem with each of its rules and mechanisms; their batch sizes and noise multipliers give way.
BANDED = BandedToeplitz(noise_multiplier=1.0, coefficients=(1.0, 0.5, 0.375))
TREES = Tree(noise_multiplier=1.0, steps_per_tree=16, completed=True)
ONE = Gaussian(noise_multiplier=1.0)
IN_ORDER = FixedOrder(batch_size=1)
BY_POSITION = FixedOrder(batch_size=1, assignment="position")
CYCLIC = CyclicPoisson(batch_size=1, groups=4)
CUT = TruncatedPoisson(batch_size=1, largest=80)
PAIRS = [
    (FullBatch(), ONE, "zero-out"),
    (FullBatch(), TREES, "add-or-remove"),
    (FullBatch(), BANDED, "add-or-remove"),
    (IN_ORDER, ONE, "add-or-remove"),
    (IN_ORDER, Tree(noise_multiplier=1.0), "add-or-remove"),
    (IN_ORDER, BANDED, "zero-out"),
    (BY_POSITION, TREES, "zero-out"),
    (CYCLIC, ONE, "add-or-remove"),
    (CYCLIC, BANDED, "zero-out"),
    (CUT, ONE, "zero-out"),
]


@pytest.mark.parametrize(("participation", "mechanism", "adjacency"), PAIRS)
def test_every_unknown_of_every_pair_meets_the_budget(participation, mechanism, adjacency):
    """And a plan of that pair survives JSON."""
    pair = {"participation": participation, "mechanism": mechanism, "adjacency": adjacency}
    batch, sigma = (600, 200.0) if isinstance(participation, FullBatch) else (40, 12.0)
    known = {"batch_size": batch, "steps": 12, "noise_multiplier": sigma, "epsilon": 0.8}
    if isinstance(participation, FullBatch):
        del known["batch_size"]  # the data, whether given or not
    for unknown in known:
        given = {name: value for name, value in known.items() if name != unknown}
        plan = PrivacyPlan.calibrate(examples=600, delta=1e-5, **given, **pair)
        assert unknown == "epsilon" or plan.epsilon() <= 0.8
        found = {"batch_size": plan.expected_batch_size, "steps": plan.steps, "noise_multiplier": plan.noise_multiplier}
        assert (given.items() - {("epsilon", 0.8)}) <= found.items(), "what was given stays"
        assert replace(plan.mechanism, noise_multiplier=1.0) == mechanism
        assert plan.participation == participation.with_batch_size(plan.expected_batch_size)
        assert plan.adjacency == adjacency
    data = json.loads(json.dumps(plan.to_dict()))
    assert PrivacyPlan.from_dict(data) == plan
    assert PrivacyPlan.from_dict(data).fingerprint == plan.fingerprint
    with pytest.raises(SfumatoError, match="difference in"):
        PrivacyPlan.from_dict({**data, "extra": 1})
    for name in data:
        with pytest.raises(SfumatoError, match="difference in"):
            PrivacyPlan.from_dict({key: value for key, value in data.items() if key != name})


@pytest.mark.parametrize(("participation", "mechanism", "adjacency"), PAIRS[4:7:2] + PAIRS[10:11])
def test_what_is_found_is_the_most_or_the_least(participation, mechanism, adjacency):
    pair = {"participation": participation, "mechanism": mechanism, "adjacency": adjacency}
    given = {"examples": 600, "delta": 1e-5, "epsilon": 0.8, "batch_size": 40}
    plan = PrivacyPlan.calibrate(**given, steps=40, **pair)
    assert plan.with_noise(0.99 * plan.noise_multiplier).epsilon() > 0.8
    plan = PrivacyPlan.calibrate(**given, noise_multiplier=12.0, **pair)
    assert plan.epsilon(steps=plan.steps + max(4, plan.steps // 500)) > 0.8


def test_a_batch_that_is_not_everything_is_no_full_batch():
    with pytest.raises(SfumatoError, match="batch_size must be 600, the number of examples, for full batches, got 40"):
        PrivacyPlan.calibrate(
            examples=600, delta=1e-5, batch_size=40, steps=12, noise_multiplier=9.0, participation=FullBatch()
        )
    given = {"examples": 600, "delta": 1e-5, "steps": 12, "noise_multiplier": 9.0, "participation": FullBatch()}
    assert PrivacyPlan.calibrate(**given) == PrivacyPlan.calibrate(**given, batch_size=600)
    with pytest.raises(SfumatoError, match="must be left out, but none is"):
        PrivacyPlan.calibrate(**given, epsilon=1.0)
    with pytest.raises(SfumatoError, match="but steps and noise_multiplier are; leave out the one"):
        PrivacyPlan.calibrate(examples=600, delta=1e-5, batch_size=60, epsilon=1.0)


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": None},
        {"steps": 1.5},
        {"steps": 10_000_001},
        {"noise_multiplier": 1e300},
        {"sampling": "Shuffled"},
        {"mechanism": "Laplace"},
        {"delta": "1e-5"},
        {"unit": "user"},
        {"adjacency": "replace-one"},
        {"noise_multiplier": -1},
        {"extra": 1},
        {"batch_size": 1000},
    ],
)
def test_a_damaged_plan_is_refused(damage):
    with pytest.raises(SfumatoError):
        PrivacyPlan.from_dict({**PLAN.to_dict(), **damage})


REFUSED = {
    "none left out": {"batch_size": 10, "steps": 10, "noise_multiplier": 1.0, "epsilon": 1.0},
    "two left out": {"batch_size": 10, "steps": 10},
    "epsilon 0": {"batch_size": 10, "steps": 10, "epsilon": 0.0},
    "epsilon nan": {"batch_size": 10, "steps": 10, "epsilon": float("nan")},
    "batch above N": {"batch_size": 101, "steps": 10, "epsilon": 1.0},
    "steps 0": {"batch_size": 10, "steps": 0, "epsilon": 1.0},
    "too many steps": {"batch_size": 10, "steps": 10**9, "epsilon": 1.0},
    "noise 0": {"batch_size": 10, "steps": 10, "noise_multiplier": 0.0},
    "one step is too much": {"batch_size": 100, "noise_multiplier": 0.5, "epsilon": 0.5},
    "one example is too much": {"steps": 10, "noise_multiplier": 0.3, "epsilon": 0.1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument_and_a_remedy(name):
    with pytest.raises(SfumatoError) as error:
        PrivacyPlan.calibrate(examples=100, delta=1e-3, **REFUSED[name])
    assert error.value.remedy
    assert "\n" not in str(error.value)


KNOWN = {"examples": 1000, "batch_size": 100, "steps": 10, "noise_multiplier": 1.0, "max_norm": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_of_other_kinds_are_refused_or_taken_as_they_are(name):
    """A tensor of one number, or a float32 that the accountant would compute with, is no number of a plan."""
    for value in (torch.tensor(KNOWN[name]), torch.tensor([KNOWN[name]]), np.array([KNOWN[name]]), np.float32(1e-5)):
        with pytest.raises(SfumatoError, match=rf"{name} must be a (whole )?number, got"):
            PrivacyPlan.calibrate(**KNOWN | {name: value})
    own = np.int64 if isinstance(KNOWN[name], int) else np.float64
    plan = PrivacyPlan.calibrate(**KNOWN | {name: own(KNOWN[name])})
    assert plan.fingerprint == PrivacyPlan.calibrate(**KNOWN).fingerprint
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan"), "1e-5"])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(SfumatoError, match="delta must"):
        PrivacyPlan.calibrate(examples=100, delta=delta, batch_size=10, steps=10, epsilon=1.0)


def test_the_default_delta_is_one_that_somebody_would_sign():
    for examples in (1, 9, 10, 999, 1000, 9999, 60_000, 90_000, 1_281_167):
        delta = default_delta(examples)
        assert delta <= 1e-5
        assert delta <= (1 + 1e-12) / (10 * examples)
        assert 10 * delta > min(1e-5, 0.0999999 / examples), "the largest power of ten"


@pytest.mark.parametrize("sigma", [300.0, 777.0, 2000.0])
def test_many_steps_are_those_whose_epsilon_was_computed(sigma):
    """Of so many the search knows one in ten thousand, and must not round up within it."""
    known = {"examples": 1000, "batch_size": 1000, "noise_multiplier": sigma, "delta": 1e-5}
    plan = PrivacyPlan.calibrate(**known, epsilon=5.0)
    assert plan.steps > 60_000
    assert plan.epsilon() <= 5.0
    assert plan.epsilon(steps=plan.steps + plan.steps // 5000) > 5.0
