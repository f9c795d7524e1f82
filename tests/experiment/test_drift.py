"""Training whose participants drift between two groups: whose group is what, who moves which step, what is told."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, SfumatoError, Source, open_source, train, verify
from sfumato.experiment import Experiment, Settings, drift
from sfumato.experiment.drift import second_group
from sfumato.privacy import DriftingPoisson
from sfumato.randomness import NoiseState
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import private_training_steps

STEPS, BATCH = 8, 50
SETTINGS = Settings(model="linear", optimizer="sgd", learning_rate=1.0, ema=0.0, seed=5)
DRIFT = {"drift": 4, "drift_groups": ("2", "3")}
SMALL = {"steps": 2, "batch_size": 50, "learning_rate": 0.5}


@cache
def drifting(named: tuple[str, ...] = ("2", "3"), examples: int = 200, second: int = 100) -> PrivacyPlan:
    rule = DriftingPoisson(batch_size=BATCH, period=4, sizes=(examples - second, second), named=named)
    return PrivacyPlan.calibrate(
        examples=examples, batch_size=BATCH, participation=rule, steps=STEPS, noise_multiplier=2.0, delta=1e-3
    )


def of(source: Source, records: np.ndarray, groups: np.ndarray | None = None) -> Source:
    """Some of the records, whatever N is declared."""
    part = source.train.select(records)
    return replace(source, train=replace(part, groups=None if groups is None else groups[records]), examples=200)


def gradients(source: Source, plan: PrivacyPlan) -> list[torch.Tensor]:
    """What each step would release, all at the same weights and with the same noise."""
    job = prepare(None, source, plan, SETTINGS, threads=1, key=RunKey.from_seed(0))
    steps = private_training_steps(job, job.key)
    found = [steps(step, NoiseState(step=step))[0] for step in range(STEPS)]
    return [torch.cat([value.flatten() for value in one.values()]) for one in found]


# -- one record's part -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [1, 2])
def test_a_record_moves_its_own_group_s_steps_alone_and_those_by_c_at_most(spots, last):
    """Steps in which its group has probability 0 are the same with and without it; nobody else comes or goes."""
    plan, moved = drifting(), []
    for seen in range(197 + last, 120, -24):  # several records of this class, each of them the last one
        both = np.arange(200) < seen
        with_it, without = gradients(of(spots, both), plan), gradients(of(spots, np.arange(200) < seen - 1), plan)
        lengths = [float((one - other).norm()) * BATCH for one, other in zip(with_it, without, strict=True)]
        assert max(lengths) <= plan.max_norm * (1 + 1e-4)
        moved += [step % 4 for step, length in enumerate(lengths) if length]
    never = 0 if last >= 2 else 2
    assert set(moved) == set(range(4)) - {never}


def test_the_own_class_decides_and_nothing_else(spots):
    labels = spots.train.labels
    assert second_group(spots, drifting()).tolist() == (labels >= 2).tolist()
    assert second_group(spots, drifting(("1",), second=50)).tolist() == (labels == 1).tolist()
    for seed in range(5):
        kept = np.random.default_rng(seed).random(200) < 0.5
        assert second_group(of(spots, kept), drifting()).tolist() == (labels[kept] >= 2).tolist()


def test_or_the_own_group_where_the_source_has_a_column_of_them(spots, arrays, tmp_path):
    groups = np.array(["night", "day", "noon"])[np.arange(200) % 3]
    source = of(spots, np.ones(200, bool), groups)
    assert second_group(source, drifting(("night", "noon"))).tolist() == (groups != "day").tolist()
    with pytest.raises(SfumatoError, match=r"drift_groups names 2, which is not a group of the source"):
        second_group(source, drifting())
    everyone = np.arange(240).astype(str)
    archive = tmp_path / "grouped.npz"
    columns = {"users_train": everyone[:200], "users_test": everyone[200:], "groups_train": groups}
    np.savez(archive, **np.load(arrays.removeprefix("npz:")), **columns, groups_test=np.resize(groups, 40))
    opened = open_source(f"npz:{archive}", owner_key=bytes(32))
    assert second_group(opened, drifting(("night",), second=67)).sum() == 67


def test_others_than_those_of_a_drift_have_no_groups(spots, plan):
    assert second_group(spots, plan) is None
    assert drift.size_note(spots, plan) is None
    assert drift.facts_read(spots, plan) == ()


# -- what is declared, counted and told --------------------------------------------------------------------------------


def test_sizes_are_counted_where_nothing_is_declared_and_the_statement_says_so(spots, tmp_path):
    run = train("linear", spots, directory=tmp_path / "run", noise_multiplier=9.0, threads=1, **DRIFT, **SMALL)
    rule = run.statement.plan.participation
    assert (rule.sizes, rule.named, rule.shape) == ((100, 100), ("2", "3"), "linear")
    assert verify(run.directory).holds
    assert any(
        "how many training examples each of the two alternating groups has" in line
        for line in run.statement.not_covered
    )
    assert "each of 100 examples (2, 3) drawn into step t with probability 0.5 s(t)" in run.statement.sentence
    assert any("for one of the other group counts as two" in line for line in run.statement.plain)
    page = (run.directory / "report.html").read_text()
    assert "linear, 4 steps" in page


def test_sizes_that_are_declared_are_not_read(arrays, tmp_path):
    source = open_source(arrays, owner_key=bytes(32), examples=200)
    asked = Experiment(**DRIFT, **SMALL, noise_multiplier=9.0, drift_size=120, drift_shape="cosine")
    plan, chosen, reasons = asked.decide(source)
    assert plan.participation.sizes == (80, 120)
    run = train(None, source, plan, directory=tmp_path / "run", settings=replace(chosen, seed=1), threads=1)
    assert not any("each of the two alternating groups has" in line for line in run.statement.not_covered)
    assert not any("declared to have" in line for line in reasons)
    far = replace(asked, drift_size=140).decide(source).reasons
    assert any("declared to have 60 and 140 examples, but the data hold 100 and 100" in line for line in far)


@pytest.mark.parametrize(
    ("asked", "examples", "problem"),
    [
        ({"drift_groups": None}, None, "the drift's second group has no name"),
        ({"drift_groups": ("2", "7")}, None, "drift_groups names 7, which is not a class of the source"),
        ({"drift_groups": ("0", "1", "2", "3")}, None, "drift_groups names all of the training records"),
        ({}, 200, "drift_size is missing, and the number of examples is declared as 200"),
        ({"drift_size": 200}, 200, "drift_size must be at most 199, got 200"),
        ({"drift_size": 40}, 200, "batch_size must be at most 40, got 50; give at most the smaller of the two groups"),
        ({"mechanism": "banded"}, None, "no theorem here covers banded noise under drifting participation"),
        ({"participation": "poisson"}, None, "drift 4 is for participation drifting, but participation is poisson"),
        ({"drift": None}, None, r"drift_groups \('2', '3'\) is for participation drifting"),
    ],
)
def test_what_cannot_be_is_refused(arrays, asked, examples, problem):
    source = open_source(arrays, owner_key=bytes(32), examples=examples)
    with pytest.raises(SfumatoError, match=problem):
        Experiment(**{**DRIFT, **SMALL, **asked}).decide(source)


def test_a_plan_that_names_no_group_trains_nobody(spots):
    with pytest.raises(SfumatoError, match="the drift's second group has no name"):
        prepare(None, spots, drifting(()), SETTINGS, threads=1)
