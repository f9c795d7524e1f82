"""Rounds among more users: what is met, by which accountant, at the simulated run's signal-to-noise."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import pytest

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import BufferedToeplitz, FixedOrder, Tree, User, extrapolate, zcdp

SIMULATED = PrivacyPlan(
    population=6800,
    participation=Poisson(batch_size=256),
    mechanism=Gaussian(noise_multiplier=0.62),
    steps=200,
    delta=1e-4,
    unit=User(drawn="clients"),
)


def test_fewer_participants_would_not_do():
    (row,) = extrapolate(SIMULATED, epsilons=(2.0,), populations=(1_000_000,), delta=1e-7, accountants=("rdp",))
    plan = row.plan
    assert plan is not None
    assert plan.epsilon(accountant="rdp") <= 2.0
    assert (plan.population, plan.delta, plan.steps, plan.unit) == (1_000_000, 1e-7, 200, SIMULATED.unit)
    assert row.noise_multiplier / row.batch_size == pytest.approx(0.62 / 256)
    fewer = round(row.batch_size * 0.997)
    less = PrivacyPlan.calibrate(
        examples=1_000_000,
        batch_size=fewer,
        steps=200,
        delta=1e-7,
        noise_multiplier=0.62 / 256 * fewer,
        unit=SIMULATED.unit,
    )
    assert less.epsilon(accountant="rdp") > 2.0
    assert row.zcdp is None


@pytest.mark.parametrize(
    "mechanism",
    [Tree(noise_multiplier=4.0), BufferedToeplitz(noise_multiplier=4.0, scales=(0.2, 0.3), decays=(0.98, 0.6))],
)
def test_without_sampling_gaps_grow_with_the_users(mechanism):
    order = PrivacyPlan(
        population=6800,
        participation=FixedOrder(batch_size=256),
        mechanism=mechanism,
        steps=200,
        delta=1e-4,
        unit=User(drawn="clients"),
    )
    rows = extrapolate(order, epsilons=(2.0, 8.0), populations=(1_000_000, 10_000_000), delta=1e-8)
    for row in rows:
        assert row.plan.epsilon(accountant=row.accountant) <= row.epsilon
        assert row.zcdp == pytest.approx(row.plan.loss.renyi([2.0])[0] / 2)
    exact, by_zcdp = ([row for row in rows if row.accountant == name] for name in ("pld", "rdp"))
    assert all(one.batch_size <= other.batch_size for one, other in zip(exact, by_zcdp, strict=True))
    few, many = exact[0], exact[2]
    assert few.epsilon == many.epsilon
    assert few.batch_size >= many.batch_size


@pytest.mark.parametrize(("rho", "exact", "any_mechanism"), [(0.15, 3.4157, 3.5750), (0.0144, 0.9956, 1.0445)])
def test_zcdp_at_a_small_delta(rho, exact, any_mechanism):
    plan = PrivacyPlan(
        population=10**9,
        participation=FullBatch(),
        mechanism=Gaussian(noise_multiplier=2 * (2 * rho) ** -0.5),
        steps=1,
        delta=1e-10,
        unit=User(drawn="clients"),
    )
    assert zcdp(plan) == pytest.approx(rho)
    assert plan.epsilon() == pytest.approx(exact, abs=1e-4)
    assert plan.epsilon(accountant="rdp") == pytest.approx(any_mechanism, abs=1e-4)
    known = dp_accounting.rdp.RdpAccountant().compose(dp_accounting.ZCDpEvent(rho)).get_epsilon(1e-10)
    assert plan.epsilon(accountant="rdp") == pytest.approx(known)


def test_what_not_even_everybody_meets_has_no_plan():
    everybody = replace(SIMULATED, participation=FullBatch())
    (row,) = extrapolate(everybody, epsilons=(0.01,), populations=(7000,), delta=1e-6, accountants=("pld",))
    assert row.plan is None
    order = replace(SIMULATED, participation=FixedOrder(batch_size=256))
    (row,) = extrapolate(order, epsilons=(0.001,), populations=(7000,), delta=1e-6, accountants=("pld",))
    assert (row.plan, row.batch_size, row.noise_multiplier, row.zcdp) == (None,) * 4


def test_users_grow_with_their_records():
    unit = User(drawn="examples", at_most=4, users=2000)
    plan = PrivacyPlan(
        population=6800,
        participation=FullBatch(),
        mechanism=Gaussian(noise_multiplier=400.0),
        steps=200,
        delta=1e-4,
        unit=unit,
    )
    (row,) = extrapolate(plan, epsilons=(8.0,), populations=(1_000_000,), delta=1e-7, accountants=("pld",))
    assert row.plan.users == 294_118
    with pytest.raises(SfumatoError, match="accountants must be one of"):
        extrapolate(plan, epsilons=(8.0,), delta=1e-7, accountants=("zcdp",))
