"""Users as the unit of a plan: what they are counted by, what a plan writes of them, and what is refused."""

import contextlib
import json
from dataclasses import replace

import pytest

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import BandedToeplitz, CyclicPoisson, Example, FixedOrder, Tree, TruncatedPoisson, User
from sfumato.privacy.plan import default_delta
from sfumato.privacy.planning.remarks import large_delta_note


def plan(unit=None, **changes) -> PrivacyPlan:
    known = {
        "population": 6800,
        "participation": Poisson(batch_size=256),
        "mechanism": Gaussian(noise_multiplier=0.62),
        "steps": 200,
        "delta": 1e-4,
        "unit": User() if unit is None else unit,
    }
    return PrivacyPlan(**(known | changes))


SHOWN = User(at_most=10, per_step=2)
CLIENTS = User(clients=True, at_most=None)
GROUPED = User(clients=True, users=54_400, grouped=True)


def test_emnist_by_users_and_by_clients():
    """q = 256 / 6800, z = 0.62, T = 200, delta 1e-4."""
    assert plan().epsilon() == pytest.approx(9.27, abs=0.01)
    assert plan().epsilon_rdp == pytest.approx(10.886, abs=0.001), "10.91 by dp-accounting's orders"
    assert plan(CLIENTS).epsilon() == pytest.approx(62.18, abs=0.02)
    assert plan(CLIENTS).epsilon_rdp == pytest.approx(71.10, abs=0.01), "91.02 by dp-accounting's orders"


PAIRS = [
    (Poisson(batch_size=256), Gaussian(noise_multiplier=6.0)),
    (FullBatch(), Gaussian(noise_multiplier=60.0)),
    (FixedOrder(batch_size=256), Gaussian(noise_multiplier=6.0)),
    (FixedOrder(batch_size=256), Tree(noise_multiplier=6.0)),
    (FullBatch(), Tree(noise_multiplier=600.0)),
    (FixedOrder(batch_size=256), BandedToeplitz(noise_multiplier=6.0, coefficients=(1.0, 0.5))),
    (CyclicPoisson(batch_size=256, groups=4), BandedToeplitz(noise_multiplier=6.0, coefficients=(1.0, 0.5))),
    (TruncatedPoisson(batch_size=256, largest=320), Gaussian(noise_multiplier=6.0)),
]


@pytest.mark.parametrize(("participation", "mechanism"), PAIRS)
def test_every_pair_that_has_a_theorem_for_examples_has_it_for_users(participation, mechanism):
    """A user drawn as a whole costs what an example costs; in a virtual client, what it costs at half the noise."""
    for adjacency in participation.adjacencies:
        example = plan(Example(), participation=participation, mechanism=mechanism, adjacency=adjacency, steps=40)
        users = replace(example, unit=User())
        assert users.epsilon() == example.epsilon()
        for unit in (CLIENTS, GROUPED):
            assert replace(example, unit=unit).epsilon() == example.with_noise(mechanism.noise_multiplier / 2).epsilon()
    if len(participation.adjacencies) == 1:
        with pytest.raises(SfumatoError, match="adjacency must be zero-out"):
            plan(participation=participation, mechanism=mechanism, adjacency="add-or-remove", steps=40)


@pytest.mark.parametrize("unit", [User(), User(at_most=3), SHOWN, CLIENTS, GROUPED])
def test_a_plan_writes_and_reads_its_unit(unit):
    written = plan(unit, mechanism=Gaussian(noise_multiplier=5.0))
    data = json.loads(json.dumps(written.to_dict()))
    assert data["unit"] == "user"
    assert PrivacyPlan.from_dict(data) == written
    assert PrivacyPlan.from_dict(data).fingerprint == written.fingerprint
    for odd in ({"clients": not unit.clients}, {"users": 4000}, {"at_most": 7}, {"per_step": 5}):
        if odd.items() <= data.items():
            continue
        with contextlib.suppress(SfumatoError):
            assert PrivacyPlan.from_dict(data | odd).fingerprint != written.fingerprint
    for name in ("clients", "users", "at_most", "per_step", "grouped"):
        with pytest.raises(SfumatoError, match="exactly its own fields"):
            PrivacyPlan.from_dict({key: value for key, value in data.items() if key != name})
    with pytest.raises(SfumatoError, match="grouped must be true or false"):
        PrivacyPlan.from_dict(data | {"grouped": 0})


def test_a_plan_for_examples_has_no_field_of_users():
    data = plan(Example()).to_dict()
    assert data["unit"] == "example"
    assert not {"clients", "users", "at_most", "per_step", "grouped"} & set(data)
    with pytest.raises(SfumatoError, match="difference in"):
        PrivacyPlan.from_dict(data | {"users": 3400})


def test_units_are_counted_by_users_and_delta_goes_by_them():
    assert plan(Example()).users is None
    assert plan(Example()).units == plan().units == plan().users == 6800
    assert plan(GROUPED).users == 54_400
    assert default_delta(plan(GROUPED).units) == 1e-6
    groups = {"unit": GROUPED, "mechanism": Gaussian(noise_multiplier=5.0)}
    assert large_delta_note(plan(**groups, delta=1.8e-5)) is None
    remark = large_delta_note(plan(**groups, delta=1.9e-5))
    assert "above 1 over 54400 users" in (remark or "")


def test_how_many_records_are_shown_in_a_step_costs_nothing():
    """The vector is clipped whatever is shown."""
    assert plan(SHOWN).epsilon() == plan(User(at_most=10)).epsilon() == plan().epsilon()
    assert plan(SHOWN).fingerprint != plan(User(at_most=10)).fingerprint


def test_a_plan_that_draws_records_of_users_is_refused():
    for drawn in ("examples", "users"):
        with pytest.raises(SfumatoError, match="difference in"):
            PrivacyPlan.from_dict(plan().to_dict() | {"drawn": drawn})


@pytest.mark.parametrize(("batch", "noise"), [(20_000, 2.231), (2_000, 1.359)])
def test_a_million_users_in_virtual_clients(batch, noise):
    """T = 200, delta 1e-7, epsilon 2, twice the clipping norm: the least noise, to three digits."""
    million = {"population": 1_000_000, "participation": Poisson(batch_size=batch), "delta": 1e-7}
    assert plan(CLIENTS, **million, mechanism=Gaussian(noise_multiplier=noise + 5e-4)).epsilon() <= 2.0
    assert plan(CLIENTS, **million, mechanism=Gaussian(noise_multiplier=noise - 5e-4)).epsilon() > 2.0


def test_calibration_takes_the_unit():
    known = {"examples": 1000, "batch_size": 1000, "epsilon": 2.0, "delta": 1e-5, "unit": CLIENTS}
    found = PrivacyPlan.calibrate(**known, steps=200)
    assert found.unit == CLIENTS
    assert found.epsilon() <= 2.0
    alone = PrivacyPlan.calibrate(**(known | {"unit": User()}), steps=200)
    assert found.noise_multiplier == pytest.approx(2 * alone.noise_multiplier, abs=3e-4)
    assert PrivacyPlan.calibrate(**known, noise_multiplier=found.noise_multiplier).steps == 200


def test_losses_of_users_compose_however_they_are_drawn_and_not_with_those_of_examples():
    users, clients = (
        plan(mechanism=Gaussian(noise_multiplier=3.0)),
        plan(CLIENTS, mechanism=Gaussian(noise_multiplier=6.0)),
    )
    both = users.loss.composed_with(clients.loss)
    assert both.epsilon(1e-4) == pytest.approx(users.epsilon(steps=400), rel=1e-6)
    with pytest.raises(SfumatoError, match=r"\(user, add-or-remove\) and \(example, add-or-remove\) do not compose"):
        users.loss.composed_with(plan(Example()).loss)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: User(at_most=0), "at_most must be"),
        (lambda: User(per_step=0), "per_step must be"),
        (lambda: plan(User(at_most=3, per_step=4)), "per_step must be at most 3, got 4"),
        (
            lambda: PrivacyPlan.from_dict(plan(SHOWN).to_dict() | {"per_step": 11}),
            "per_step must be at most 10",
        ),
        (lambda: User(clients=True, per_step=1), "per_step is for users who are sampled"),
        (lambda: User(clients=1), "clients must be true or false"),
        (lambda: User(clients=True, grouped=True), "users must be a whole number"),
        (lambda: User(users=10), "users is for groups"),
        (lambda: User(grouped=True), "grouped is for virtual clients"),
        (lambda: User(clients=True, grouped=1, users=9), "grouped must be true or false"),
        (lambda: plan(User(clients=True, users=6799, grouped=True)), "users must be at least 6,800, got 6799"),
    ],
)
def test_bad_values_are_refused(make, words):
    with pytest.raises(SfumatoError, match=words):
        make()
