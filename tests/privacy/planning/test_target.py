"""Plans that are calibrated to a mu or to an attacker's success: what holds, what is refused, and riskcal's figures."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from sfumato import Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import FixedOrder, User, true_positive_rates
from sfumato.privacy.planning.target import AttackRisk, Epsilon, Mu
from sfumato.privacy.statements.curve import curve_fields

PLAN = {"examples": 50_000, "batch_size": 4096, "steps": 875, "delta": 1e-5}
TARGETS = [Epsilon(1.0), Mu(0.3), AttackRisk(0.01, 0.001), AttackRisk(0.3, 0.1)]
RISKCAL = [
    (3.2727, 4096, 50_000, 875, 0.001, 0.0099969),
    (3.2727, 4096, 50_000, 875, 0.01, 0.0587403),
    (1.0, 100, 10_000, 1000, 0.001, 0.0040139),
    (1.0, 100, 10_000, 1000, 0.1, 0.1941787),
    (2.0, 1000, 1000, 20, 0.001, 0.1965057),
    (0.8, 1000, 10_000, 1, 0.001, 0.0041866),
    (0.8, 1000, 10_000, 1, 0.1, 0.1387415),
]
"""Noise multiplier, B, N, T, false-positive rate, and the true-positive rate by riskcal 1.5.1 and dp-accounting 0.6.0:

    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from riskcal.analysis import get_beta_from_pld
    1 - get_beta_from_pld(from_gaussian_mechanism(sigma, sampling_prob=B / N).self_compose(T), alpha=rate)

For the first row, riskcal's `find_noise_multiplier_for_err_rates(alpha=0.001, beta=0.99, sample_rate=4096 / 50_000,
num_steps=875, beta_tol=1e-5)` finds 3.2715. The noise of `AttackRisk(0.01, 0.001)` is 3.2727: the
grid here is coarser, and never underestimates.
"""


def poisson(sigma: float, batch_size: int, examples: int, steps: int) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        examples=examples, batch_size=batch_size, steps=steps, noise_multiplier=sigma, delta=1e-5
    )


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    "change",
    [{}, {"batch_size": 50_000}, {"unit": User()}, {"participation": FixedOrder(batch_size=4096)}],
    ids=["sampled", "full batch", "users", "fixed order"],
)
def test_the_noise_meets_the_target_and_a_little_less_does_not(change, target):
    plan = PrivacyPlan.calibrate(**PLAN | change, **{target.name: target.value})
    assert target.cost(plan) <= target.limit
    assert target.cost(plan.with_noise(0.998 * plan.noise_multiplier)) > target.limit


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("missing", ["steps", "batch_size"])
def test_steps_and_batches_meet_it_too(missing, target):
    known = PLAN | {"noise_multiplier": 6.0, missing: None}
    plan = PrivacyPlan.calibrate(**known, **{target.name: target.value})
    assert target.cost(plan) <= target.limit
    found = plan.steps if missing == "steps" else plan.expected_batch_size
    more = PrivacyPlan.calibrate(**known | {missing: found + 1 + found // 500})
    assert target.cost(more) > target.limit


def test_the_statement_shows_no_more_than_was_asked_for():
    assert curve_fields(PrivacyPlan.calibrate(**PLAN, attack_risk="0.01@0.001"))["true_positives"]["0.001"] == 0.01
    assert curve_fields(PrivacyPlan.calibrate(**PLAN, mu=0.3))["mu"]["mu"] == 0.3


def test_a_gaussian_without_sampling_has_the_noise_of_its_closed_form():
    plan = PrivacyPlan.calibrate(**PLAN | {"batch_size": 50_000}, mu=0.7)
    assert plan.noise_multiplier == pytest.approx(np.sqrt(875) / 0.7, abs=1e-4)
    risky = PrivacyPlan.calibrate(**PLAN | {"batch_size": 50_000}, attack_risk="0.05@0.001")
    assert risky.noise_multiplier == pytest.approx(np.sqrt(875) / (ndtri(0.05) - ndtri(0.001)), rel=1e-3)


@pytest.mark.parametrize(("sigma", "batch_size", "examples", "steps", "rate", "found"), RISKCAL)
def test_the_bound_is_that_of_riskcal_and_never_below_it(sigma, batch_size, examples, steps, rate, found):
    cost = true_positive_rates(poisson(sigma, batch_size, examples, steps), [rate])[0]
    assert found - 1e-6 <= cost <= 1.02 * found  # the grid is ten times coarser


def test_it_finds_the_noise_of_riskcal():
    plan = PrivacyPlan.calibrate(**PLAN, attack_risk="0.01@0.001")
    assert 3.2714 <= plan.noise_multiplier <= 1.001 * 3.2715


@settings(max_examples=2, deadline=None)
@example(sigma=0.5, sampled=0.375, rate=0.375)
@given(sigma=st.floats(0.5, 4.0), sampled=st.floats(0.02, 0.9), rate=st.floats(1e-4, 0.4))
def test_it_bounds_the_best_test_of_one_step_for_adding_and_for_removing(sigma, sampled, rate):
    plan = poisson(sigma, round(10_000 * sampled), 10_000, 1)
    q = plan.sampling_probability
    x = np.linspace(-8 * sigma, 8 * sigma + 1, 200_001)
    without, with_unit = 1 - ndtr(x / sigma), q * (1 - ndtr((x - 1) / sigma)) + (1 - q) * (1 - ndtr(x / sigma))
    rates = np.append(np.linspace(0, 1, 500), rate)
    added, removed = np.interp(rates, without[::-1], with_unit[::-1]), np.interp(rates, 1 - with_unit, 1 - without)
    best = np.maximum(added, removed)
    below, above = np.flatnonzero(rates < rate)[:, None], np.flatnonzero(rates > rate)
    share = (rate - rates[below]) / (rates[above] - rates[below])
    hull = max(best[-1], ((1 - share) * best[below] + share * best[above]).max())  # one curve for both directions
    bound = true_positive_rates(plan, [rate])[0]
    assert best[-1] - 1e-6 <= bound <= 1.03 * hull + 1e-4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.01", "must be a true-positive rate at"),
        ("1%@0.1%", "must be a true-positive rate at"),
        ("0.1@0.01@0.001", "must be a true-positive rate at"),
        (0.01, "must be a true-positive rate at"),
        ("0.001@0.01", "must lie between its false-positive rate and 1"),
        ("0.01@0.01", "must lie between its false-positive rate and 1"),
        ("1@0.01", "must lie between its false-positive rate and 1"),
        ("nan@0.01", "must lie between its false-positive rate and 1"),
        ("0.1@1e-7", "must lie between 1e-06 and 0.5"),
        ("0.9@0.6", "must lie between 1e-06 and 0.5"),
        ("0.9@nan", "must lie between 1e-06 and 0.5"),
    ],
)
def test_rates_that_no_test_could_have_are_refused(text, problem):
    with pytest.raises(SfumatoError, match=problem):
        PrivacyPlan.calibrate(**PLAN, attack_risk=text)


@pytest.mark.parametrize("mu", [0.0, -1.0, float("nan"), float("inf")])
def test_mu_is_a_positive_number(mu):
    with pytest.raises(SfumatoError, match="mu must be"):
        PrivacyPlan.calibrate(**PLAN, mu=mu)


@pytest.mark.parametrize(
    "both",
    [{"epsilon": 1.0, "mu": 1.0}, {"mu": 1.0, "attack_risk": "0.01@0.001"}, {"epsilon": 1.0, "attack_risk": "x"}],
)
def test_two_targets_are_refused_by_name(both):
    with pytest.raises(SfumatoError, match="both given, but a plan is calibrated to one of them") as refused:
        PrivacyPlan.calibrate(**PLAN, **both)
    assert all(name in refused.value.problem for name in both)


def test_an_accountant_without_a_curve_is_refused():
    with pytest.raises(SfumatoError, match="mu 1 is given with accountant 'rdp'"):
        PrivacyPlan.calibrate(**PLAN, mu=1.0, accountant="rdp")


def test_what_no_noise_or_no_step_reaches_is_refused_with_its_name():
    known = PLAN | {"noise_multiplier": 0.1, "steps": None}
    with pytest.raises(SfumatoError, match=r"mu 0\.001 is already exceeded by one step") as refused:
        PrivacyPlan.calibrate(**known, mu=0.001)
    assert "larger mu" in refused.value.remedy


def test_a_plan_by_hand_has_the_costs_of_its_curve():
    plan = PrivacyPlan(
        population=50_000,
        participation=Poisson(batch_size=4096),
        mechanism=Gaussian(noise_multiplier=10.0),
        steps=875,
        delta=1e-5,
    )
    fields = curve_fields(plan)
    assert fields["mu"]["mu"] == pytest.approx(Mu(1.0).cost(plan), abs=1e-4)
    assert fields["true_positives"]["0.01"] == pytest.approx(AttackRisk(0.1, 0.01).cost(plan), abs=1e-4)
