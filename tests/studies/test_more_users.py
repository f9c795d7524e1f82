"""Rounds among more users: what is met, by which accountant, at the simulated run's signal-to-noise."""

import json
from dataclasses import replace

import dp_accounting
import pytest

from sfumato import FullBatch, PrivacyPlan, SfumatoError
from sfumato.privacy import User
from studies.extrapolation import epsilon_of_rounds, extrapolate

SIMULATED = PrivacyPlan.calibrate(
    examples=6800, batch_size=256, steps=200, noise_multiplier=0.62, delta=1e-4, unit=User(clients=True)
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


def test_rounds_of_a_size_come_to_what_an_accountant_elsewhere_says():
    """Participants and noise grow in proportion; one user moves the sum by twice the norm."""
    sizes, populations = (512, 4096), (3_000_000, 10_000_000)
    rows = epsilon_of_rounds(SIMULATED, batch_sizes=sizes, populations=populations, delta=1e-8, accountants=("rdp",))
    assert [(row.population, row.batch_size) for row in rows] == [(n, size) for n in populations for size in sizes]
    for row in rows:
        one = dp_accounting.GaussianDpEvent(0.62 * row.batch_size / 256 / 2)
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(dp_accounting.PoissonSampledDpEvent(row.batch_size / row.population, one), 200)
        assert row.epsilon == pytest.approx(accountant.get_epsilon(1e-8), rel=1e-3)
        assert row.plan.delta == 1e-8
    few, many = rows[:2]
    assert many.epsilon < few.epsilon


def test_rounds_that_cannot_be_are_refused():
    with pytest.raises(SfumatoError, match="a round of 7,000 is larger than the 6,999"):
        epsilon_of_rounds(SIMULATED, batch_sizes=(7000,), populations=(7000,), delta=1e-6)
    with pytest.raises(SfumatoError, match="everybody takes part in each round"):
        epsilon_of_rounds(
            replace(SIMULATED, participation=FullBatch()), batch_sizes=(7,), populations=(7000,), delta=1e-6
        )


RUN = "more_users --users 300 --clients --batch-size 60 --steps 5 --noise-multiplier 1"


def test_a_budget_among_more_users(study, tmp_path, once):
    once("studies.more_users.extrapolate")
    command = f"{RUN} --epsilon 4 --populations 2e3 --plot {tmp_path}/plot.svg"
    found = json.loads(study(f"{command} --json"))
    assert found["delta"] == 1e-5
    rows = [(row["users"], row["epsilon"], row["accountant"]) for row in found["rows"]]
    assert rows == [(2000, 4, "pld"), (2000, 4, "rdp")]
    for row in found["rows"]:
        assert row["batch_size"] is None or abs(row["noise_multiplier"] / row["batch_size"] - 1 / 60) < 1e-12
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    assert "accountant" in study(command)


def test_what_rounds_of_a_size_come_to_among_more_users(study, tmp_path):
    command = f"{RUN} --populations 2e3 --round-sizes 1,120,600 --plot {tmp_path}/plot.svg"
    found = json.loads(study(f"{command} --json"))["rows"]
    assert [(row["norms"], row["accountant"], row["batch_size"]) for row in found] == [
        (norms, name, size) for norms in (2, 1) for name in ("pld", "rdp") for size in (1, 120, 600)
    ]
    assert found[0]["epsilon"] is None
    assert found[1]["epsilon"] > found[2]["epsilon"] > 0
    assert [row["noise_multiplier"] for row in found[1:3]] == [2, 10]
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    shown = study(command)
    assert f"{-(-found[1]['epsilon'] * 1000 // 1) / 1000:.3f}" in shown
    assert " inf " in shown
    assert shown.count(" 2C ") == 6
    one = dp_accounting.rdp.RdpAccountant()
    one.compose(dp_accounting.PoissonSampledDpEvent(600 / 2000, dp_accounting.GaussianDpEvent(10)), 5)
    assert found[11]["epsilon"] == pytest.approx(one.get_epsilon(1e-5), rel=1e-3)


def test_a_person_who_is_drawn_with_an_own_update_counts_for_one_norm(study):
    found = json.loads(study(f"{RUN.replace('--clients ', '')} --populations 2e3 --round-sizes 600 --json"))["rows"]
    assert [row["norms"] for row in found] == [1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "error: --round-sizes and --epsilon are not given; give one: "),
        ("--epsilon 3 --round-sizes 9", "error: --round-sizes and --epsilon are both given; give one: "),
    ],
)
def test_a_budget_or_sizes_of_rounds_must_be_given(study, options, words):
    assert words in study(f"{RUN} --populations 1e6 {options}", status=2)
