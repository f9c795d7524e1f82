"""Drifting Poisson sampling: each group's own sequence of probabilities, and the larger loss of the two."""

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sfumato import Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import BandedToeplitz, DriftingPoisson, User
from sfumato.privacy.theorems import drifting_gaussian
from sfumato.privacy.theorems.drifting_gaussian import DriftingGaussians
from sfumato.privacy.theorems.poisson_gaussian import SampledGaussians

DELTA, GRID = 1e-5, 1e-3


def plan(steps: int = 40, sigma: float = 2.0, *, batch_size: int = 60, **rule: Any) -> PrivacyPlan:
    """400 examples, of which 100 are of group 1, unless told."""
    options = {"period": 8, "shape": "linear", "sizes": (300, 100), **rule}
    return PrivacyPlan(
        population=sum(options["sizes"]),
        participation=DriftingPoisson(batch_size=batch_size, **options),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=DELTA,
    )


def convolved(sigma: float, probabilities: list[float], epsilons: list[float], *, added: bool) -> list[float]:
    """Deltas by brute force: losses of outcomes on a fine mesh, one step after the other, with no pessimism.

    With or against the record: upper is the density whose excess counts, and the loss its logarithm over the other's.
    """
    width, mesh = 2e-4, np.linspace(-9 * sigma, 1 + 9 * sigma, 30_001)
    total, low = np.ones(1), 0
    cells = ((mesh[1:] + mesh[:-1]) / 2, np.diff(ndtr(mesh / sigma)), np.diff(ndtr((mesh - 1) / sigma)))
    for q in probabilities:
        middle, without, present = cells
        loss = np.log1p(q * np.expm1((2 * middle - 1) / (2 * sigma**2)))
        losses, masses = (-loss, without) if added else (loss, (1 - q) * without + q * present)
        places = np.round(losses / width).astype(int)
        one = np.bincount(places - places.min(), masses)
        total, low = np.convolve(total, one) if len(total) == 1 else _convolve(total, one), low + places.min()
    losses = width * (low + np.arange(len(total)))
    above = [losses > epsilon for epsilon in epsilons]
    return [
        float((total[here] * -np.expm1(epsilon - losses[here])).sum())
        for epsilon, here in zip(epsilons, above, strict=True)
    ]


def _convolve(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    from scipy.signal import fftconvolve

    return fftconvolve(first, second)


def sequence(plan: PrivacyPlan, group: int) -> list[float]:
    """Each step's probability for a member, from the definition alone."""
    rule: Any = plan.participation
    found = []
    for step in range(plan.steps):
        place = step % rule.period / rule.period
        share = 1 - abs(1 - 2 * place) if rule.shape == "linear" else (1 - math.cos(2 * math.pi * place)) / 2
        found.append(rule.batch_size * (share if group else 1 - share) / rule.sizes[group])
    return found


@pytest.mark.parametrize(
    "rule",
    [
        {"steps": 3},
        {"period": 7, "sizes": (90, 310)},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"shape": "cosine"}, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_larger_of_both_groups_own_compositions(rule):
    here = plan(**{"steps": 9, **rule})
    epsilons = [0.3, 1.5]
    found = [
        convolved(2.0, sequence(here, group), epsilons, added=added) for group in (0, 1) for added in (True, False)
    ]
    for ours, *deltas in zip(here.loss.deltas(epsilons), *found, strict=True):
        true = max(deltas)
        assert ours == pytest.approx(true, rel=1e-3)
        assert ours >= true * (1 - 1e-4)


def test_where_the_groups_curves_cross_each_is_taken_where_it_is_the_larger():
    """One large probability matters more at small epsilons, many middling ones at large epsilons."""
    few, many = ((0.9, 1),), ((0.3, 6),)
    together, one, other = (
        replace(plan().loss, parts=(DriftingGaussians(sigma=1.0, groups=groups),))
        for groups in ((few, many), (few, few), (many, many))
    )
    epsilons = (0.01, 0.5, 1.0, 1.5, 2.0, 3.0)
    of_one, of_other = (np.array(each.deltas(epsilons, grid=GRID)) for each in (one, other))
    assert of_one[1] > 1.2 * of_other[1]
    assert of_one[-1] < 0.5 * of_other[-1]
    assert together.deltas(epsilons, grid=GRID) == pytest.approx(np.maximum(of_one, of_other), rel=1e-5)
    larger = np.maximum(*(each.renyi([2.0, 8.0]) for each in (one, other)))
    assert (together.renyi([2.0, 8.0]) >= larger).all()


@given(q=st.floats(0.001, 1.0), sigma=st.floats(0.4, 20), steps=st.integers(1, 300))
@settings(max_examples=6, deadline=None)
def test_one_probability_in_all_steps_is_poisson_sampling(q, sigma, steps):
    drifting = DriftingGaussians(sigma=sigma, groups=(((q, steps),), ((q, steps),)))
    poisson = SampledGaussians(sigma=sigma, probability=q, steps=steps)
    ours, theirs = (replace(plan().loss, parts=(part,)) for part in (drifting, poisson))
    assert ours.epsilon(DELTA, grid=1e-3) == pytest.approx(theirs.epsilon(DELTA, grid=1e-3), rel=1e-6, abs=1e-9)
    assert ours.renyi([2.0, 4.5, 32.0]) == pytest.approx(theirs.renyi([2.0, 4.5, 32.0]))


def test_steps_without_a_group_cost_it_nothing():
    here = plan(1)
    assert here.participation.counts(1) == (((0.2, 1),), ())
    assert here.epsilon() == pytest.approx(
        replace(here, participation=Poisson(batch_size=80)).epsilon(), rel=1e-6
    )  # 80 of 400 are 0.2 as well
    assert plan(5, period=4, sizes=(300, 100)).participation.counts(5)[1] == ((0.6, 1), (0.3, 2))


@given(
    period=st.integers(2, 23),
    steps=st.integers(1, 60),
    shape=st.sampled_from(["linear", "cosine"]),
    sizes=st.tuples(st.integers(60, 400), st.integers(60, 400)),
)
@settings(max_examples=30, deadline=None)
def test_what_is_counted_are_the_steps_own_probabilities(period, steps, shape, sizes):
    here = plan(steps, period=period, shape=shape, sizes=sizes)
    rule: Any = here.participation
    for group, counts in enumerate(rule.counts(steps)):
        counted = sorted(itertools.chain.from_iterable([q] * count for q, count in counts))
        drawn = sorted(q for step in range(steps) if (q := rule.probabilities(step)[group]))
        assert counted == drawn
        assert [rule.probabilities(step)[group] for step in range(steps)] == pytest.approx(sequence(here, group))
        assert [q for q, _ in counts] == sorted({q for q, _ in counts}, reverse=True)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=6, unique_by=lambda pair: pair[0]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=6, unique_by=lambda pair: pair[0]),
)
def test_place_by_place_the_larger(first, second):
    groups = [tuple((q / 9, count) for q, count in sorted(each, reverse=True)) for each in (first, second)]
    rows = [list(itertools.chain.from_iterable([q] * count for q, count in each)) for each in groups]
    both = drifting_gaussian._placewise(groups[0], groups[1])
    counted = list(itertools.chain.from_iterable([q] * count for q, count in both))
    assert counted == [max(pair) for pair in itertools.zip_longest(*rows, fillvalue=0)]


def test_of_many_probabilities_neighbours_count_as_the_largest(monkeypatch):
    long = plan(60, period=120, sizes=(30_000, 20_000), batch_size=3000)
    exact = long.loss.delta(1.0, grid=GRID)
    monkeypatch.setattr(drifting_gaussian, "MOST", 30)
    assert exact < long.loss.delta(1.0, grid=GRID) < 1.3 * exact
    group = tuple((q / 100, 1) for q in range(90, 0, -1))
    told = drifting_gaussian._coarsened(group)
    assert len(told) == 30
    assert sum(count for _, count in told) == 90
    assert told[:2] == ((0.9, 3), (0.87, 3))


def test_renyi_is_an_upper_bound_too_and_near():
    for here in (plan(), plan(2, sizes=(200, 200))):
        assert here.epsilon(grid=GRID) < here.epsilon_rdp < 1.5 * here.epsilon(grid=GRID) + 0.5
    assert plan().loss.accountants == ("pld", "rdp")


def test_what_nothing_is_proven_of_is_refused():
    noise = BandedToeplitz(noise_multiplier=1.0, coefficients=(1.0, 0.5))
    with pytest.raises(SfumatoError, match=r"covers banded noise under drifting .*where their noise is correlated"):
        replace(plan(), mechanism=noise)
    with pytest.raises(SfumatoError, match="users are sampled, and their records may be in both groups"):
        replace(plan(), unit=User())
    assert replace(plan(), adjacency="zero-out").loss.parts == plan().loss.parts


@pytest.mark.parametrize("named", ["cat", [1], (1,), None])
def test_groups_are_named_one_by_one(named):
    """In a string, each part of a name would be a name."""
    with pytest.raises(SfumatoError, match="named must be a tuple of names"):
        plan(named=named)


def test_the_plan_holds_its_drift():
    here = plan(named=("cat", "dog"))
    data = here.to_dict()
    assert (data["period"], data["shape"], data["sizes"], data["named"]) == (8, "linear", [300, 100], ["cat", "dog"])
    assert PrivacyPlan.from_dict(json.loads(json.dumps(data))) == here
    others = [plan(named=("cat",)), plan(period=9), plan(shape="cosine"), plan(sizes=(100, 300))]
    assert len({each.fingerprint for each in (here, *others)}) == 5


@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_one_step_s_losses_are_dp_accounting_s_in_both_directions(probability):
    """Each direction by itself, also below epsilon 0: of the larger delta above 0 only one direction tells."""
    from dp_accounting.pld import privacy_loss_distribution

    (((found, _),),) = DriftingGaussians(sigma=1.5, groups=(((probability, 1),), ((probability, 1),))).repeats(GRID)
    known = privacy_loss_distribution.from_gaussian_mechanism(
        1.5, value_discretization_interval=GRID, sampling_prob=probability
    )
    epsilons = np.linspace(-0.2, 1.0, 25)
    for ours, theirs in ((found._pmf_remove, known._pmf_remove), (found._pmf_add, known._pmf_add)):
        np.testing.assert_allclose(
            ours.get_delta_for_epsilon(epsilons), theirs.get_delta_for_epsilon(epsilons), atol=1e-6
        )


def test_many_drifting_runs_count_as_one_sequence_that_dominates_both_groups(monkeypatch):
    from sfumato.privacy import loss

    few, many = ((0.9, 1),), ((0.3, 6),)
    one = replace(plan().loss, parts=(DriftingGaussians(sigma=1.0, groups=(few, many)),))
    exact = one.composed_with(one).epsilon(DELTA, grid=GRID)
    monkeypatch.setattr(loss, "MOST_CHOICES", 1)
    assert exact < one.composed_with(one).epsilon(DELTA, grid=GRID * 1.0000001) < 2 * exact
