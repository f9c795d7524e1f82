"""A search by simulation: small runs say their own epsilon, and what they predict is compared with larger runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato import PrivacyPlan, SfumatoError, search, verify
from sfumato.data import SourceSpec
from sfumato.experiment import Experiment
from sfumato.randomness import Choice
from sfumato.training.run import execute
from studies import simulation
from studies.simulation import LargerRuns, Simulation

EXPERIMENT = Experiment(
    model="linear", noise_multiplier=16.0, batch_size=256, steps=5, delta=1e-5, ema=0.0, max_norm=1.0, seed=3
)
TRIAL = search.Trial(experiment=EXPERIMENT, source="digits", threads=1, device="cpu", micro_batch=256)
RATES = {"learning_rate": Choice(values=(0.001, 0.1))}


def fixed_records_and_no_images(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than the small runs here."""
    (home / "owner.key").write_text("11" * 32)  # the same records are scored on each time
    (home / "owner.key").chmod(0o600)
    patch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "<svg></svg>")
    patch.setattr("studies.simulation.sweep_panels", lambda rows, varied: f"<svg>{len(rows)} {varied}</svg>")


@pytest.fixture(autouse=True)
def in_each_test(home, monkeypatch) -> None:
    fixed_records_and_no_images(home, monkeypatch)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> tuple[Simulation, Path]:
    """A search that is over, and where it is; to be read alone."""
    home, place = (tmp_path_factory.mktemp(name) for name in ("home", "simulated"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(home))
        fixed_records_and_no_images(home, patch)
        return simulation.simulate(TRIAL, RATES, 8, directory=place / "s", confirm=2), place


def plan_of(run: str | Path) -> PrivacyPlan:
    return PrivacyPlan.from_dict(json.loads(Path(run, "plan.json").read_text()))


def statement(run: str | Path) -> dict:
    return json.loads(Path(run, "statement.json").read_text())


def test_every_run_has_its_own_plan_and_promise(simulated):
    found, place = simulated
    full = plan_of(place / "s/full-size/1")
    assert (full.expected_batch_size, full.noise_multiplier, full.steps) == (256, 16.0, 5)
    assert full == found.full_plan
    sizes = {"": (32, 2.0), "simulated-4": (64, 4.0), "full-size": (256, 16.0)}
    for folder, (batch, noise) in sizes.items():
        runs = [path for path in (place / "s" / folder).iterdir() if path.name.isdigit()]
        assert len(runs) == 2
        for run in runs:
            plan, said = plan_of(run), statement(run)
            epsilon = said["planned"]["epsilon"]
            assert (plan.expected_batch_size, plan.noise_multiplier, plan.steps) == (batch, noise, 5)
            assert epsilon == pytest.approx(plan.epsilon(), abs=1e-3)
            assert said["plan"] == plan.to_dict()
            assert (epsilon > full.epsilon() + 0.001) == (folder != "full-size")
            assert verify(run).holds
    settings = [json.loads((place / f"s/{folder}/1/settings.json").read_text()) for folder in (".", "full-size")]
    assert settings[0]["settings"] == settings[1]["settings"], "what is learnt by is that of the full size"
    assert settings[0]["request"]["simulates"] == 8
    assert "simulates" not in settings[1]["request"]


def test_what_was_predicted_is_compared_with_what_was_found(simulated):
    found, place = simulated
    predicted = {row["change"]["learning_rate"]: row["accuracy"] for row in found.rows}
    assert [row["accuracy"] for row in found.rows] == sorted(predicted.values(), reverse=True)
    twice, full = found.larger_runs
    assert (twice.simulate, full.simulate) == (4, 1)
    assert [row["change"] for row in twice.rows] == [row["change"] for row in found.rows[:2]]
    for row in full.rows:
        assert row["predicted"] == predicted[row["change"]["learning_rate"]]
        evaluation = json.loads(Path(row["run"], "evaluation.json").read_text())
        assert row["accuracy"] == evaluation["accuracy"]
    best = max(full.rows, key=lambda row: row["accuracy"])
    assert found.best == best["change"], "several full runs say more than the simulation"
    assert found.predicted == predicted[found.best["learning_rate"]]
    held = [abs(row["accuracy"] - row["predicted"]) for row in full.rows]
    assert full.largest_difference == pytest.approx(max(held))
    kept = json.loads((place / "s/sweep.json").read_text())
    assert kept["larger_runs"] == json.loads(json.dumps([larger.to_dict() for larger in found.larger_runs]))
    assert kept["full_size"]["noise_multiplier"] == 16.0
    assert found.cost.runs == 6


def test_a_search_goes_on_and_confirms_more(tmp_path, monkeypatch):
    first = simulation.simulate(TRIAL, RATES, 8, directory=tmp_path / "s")
    assert [larger.simulate for larger in first.larger_runs] == [4]
    trained = []
    monkeypatch.setattr(
        "sfumato.training.trial.execute",
        lambda job, run, **how: trained.append(run.path) or execute(job, run),
    )
    again = simulation.simulate(TRIAL, RATES, 8, directory=tmp_path / "s", confirm=1)
    assert again.rows == first.rows
    assert [path.parent.name for path in trained] == ["full-size"]
    assert again.best == first.best
    assert again.cost.runs == 5
    fewer = simulation.simulate(TRIAL, RATES, 8, directory=tmp_path / "s")
    assert len(trained) == 1
    assert fewer.cost.runs == 5, "what was trained counts, however few are asked for"
    with pytest.raises(SfumatoError, match="simulate"):
        simulation.simulate(TRIAL, RATES, 4, directory=tmp_path / "s")
    with pytest.raises(SfumatoError, match="plan"):
        search.sweep(search.Grid(TRIAL, RATES), directory=tmp_path / "s")


def test_private_data_are_refused(tmp_path):
    private = replace(TRIAL, source=SourceSpec(spec="digits", public=False))
    with pytest.raises(SfumatoError, match="is private, and a simulated run spends far more"):
        simulation.simulate(private, RATES, 8, directory=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("changed", "factor", "confirm", "words"),
    [
        ({}, 1, 0, "factor must be at least 2"),
        ({}, 300, 0, "give at most 256"),
        ({"mechanism": "banded"}, 8, 0, "the mechanism is banded"),
    ],
)
def test_what_is_no_simulation_is_refused_before_anything_is_spent(tmp_path, changed, factor, confirm, words):
    trial = replace(TRIAL, experiment=replace(EXPERIMENT, **changed))
    with pytest.raises(SfumatoError) as refused:
        simulation.simulate(trial, RATES, factor, directory=tmp_path / "s", confirm=confirm)
    assert words in str(refused.value)
    assert not (tmp_path / "s").exists()


def test_figures_of_larger_runs():
    pairs = [(0.5, 0.65), (0.7, 0.6), (0.9, 0.95), (0.8, 0.8)]
    larger = LargerRuns(
        simulate=1, rows=tuple({"predicted": one, "accuracy": other} for one, other in pairs), scored_on=1000
    )
    assert larger.difference == pytest.approx(0.025)
    assert larger.largest_difference == pytest.approx(0.15)
    assert larger.rank_correlation == pytest.approx(0.8), "1 - 6 (1 + 1) / (4 (16 - 1))"
    swapped = replace(larger, rows=tuple({"predicted": one, "accuracy": -one} for one, _ in pairs))
    assert swapped.rank_correlation == pytest.approx(-1)
    level = replace(larger, rows=tuple({"predicted": 0.5, "accuracy": 0.5} for _ in range(4)), scored_on=200)
    assert level.standard_error == pytest.approx((2 * 0.25 / 200) ** 0.5)
    assert level.rank_correlation is None
    assert replace(larger, rows=larger.rows[:2]).rank_correlation is None
