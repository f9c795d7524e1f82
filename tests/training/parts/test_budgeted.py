"""Runs under a budget: reserved whole, before their first step, and once."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sfumato import PrivacyPlan, SfumatoError, embed, open_source, read_budget, search, set_budget, train
from sfumato.data import SourceSpec
from sfumato.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.privacy import Ledger
from sfumato.randomness import Choice
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.search import Trial
from sfumato.training.conclusion.run_report import report
from tests.killed import StopError, before_line, killed

SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0)


@pytest.fixture(scope="module")
def private():
    return open_source("digits", owner_key=bytes(32), public=False)


@pytest.fixture
def plan(private) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=private.examples, batch_size=64, steps=3, noise_multiplier=4.0, delta=1e-5)


@pytest.fixture(autouse=True)
def faces():
    set_budget("faces", epsilon=1.5, delta=1e-5)


def trained(source, plan, place, **others):
    given = {"budget": "faces", "keep": 0} | others
    return train(None, source, plan, directory=place, settings=SETTINGS, threads=1, device="cpu", **given)


def reserved() -> list[str]:
    return [one.run for one in read_budget("faces").reservations]


def test_a_run_reserves_its_whole_plan_before_its_first_step(private, plan, tmp_path, monkeypatch):
    seen = []
    inner = Ledger.append

    def watched(self, kind, body):
        seen.append((kind, len(reserved())))
        return inner(self, kind, body)

    monkeypatch.setattr(Ledger, "append", watched)
    run = trained(private, plan, tmp_path / "run")
    assert [count for kind, count in seen if kind == "release"] == [1, 1, 1]
    (only,) = read_budget("faces").reservations
    assert (only.use, only.name, only.figures) == (plan, f"{tmp_path.name}/run", None)
    assert only.run == RunDirectory(run.directory).identity
    assert only.data == tuple(private.data_digests)
    assert only.cost == read_budget("faces").filter.cost(plan)
    assert "Budget faces: " in report(RunDirectory(run.directory))
    assert "faces" not in report(RunDirectory(run.directory), public=True), "linkage is the owner's own"
    for name in (names.STATEMENT, names.LEDGER, names.PLAN):
        assert "faces" not in (run.directory / name).read_text()


def test_a_run_that_does_not_fit_leaves_nothing_behind(private, plan, tmp_path):
    with pytest.raises(SfumatoError, match=r"the budget faces has epsilon 1\.5"):
        trained(private, plan.with_noise(0.5), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert reserved() == []
    assert uses.earlier_uses(DataIdentity(private.data_digests)).plans == []


def test_a_run_that_was_cut_after_its_line_counts_and_takes_no_step(private, plan, tmp_path, monkeypatch):
    inner = store.History.append

    def append(self, line):
        inner(self, line)
        if line.kind == "run":
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(store.History, "append", append)
        with pytest.raises(StopError):
            trained(private, plan, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert len(reserved()) == 1, "what is reserved is never given back"


def test_a_run_whose_line_was_lost_asks_its_budget_when_it_goes_on(private, plan, home, tmp_path):
    before = {name: (home / name).read_bytes() for name in (store.FILE, store.COUNT)}
    with killed(Ledger, "append", before_line(1)):
        trained(private, plan, tmp_path / "run")
    for name, content in before.items():  # an old copy is restored
        (home / name).write_bytes(content)
    set_budget("faces", epsilon=0.667)
    with pytest.raises(SfumatoError, match=r"the budget faces has epsilon 0\.667 .* this one needs"):
        trained(private, plan, tmp_path / "run")
    set_budget("faces", epsilon=1.5)
    trained(private, plan, tmp_path / "run")
    assert reserved() == [RunDirectory(tmp_path / "run").identity]


@pytest.mark.parametrize("step", [0, 1])
def test_a_run_that_was_cut_after_its_reservation_is_counted_once(private, plan, tmp_path, step):
    with killed(Ledger, "append", before_line(step)):
        trained(private, plan, tmp_path / "run")
    before = read_budget("faces")
    assert len(before.reservations) == 1, "the whole plan, whatever came of it"
    trained(private, plan, tmp_path / "run")
    assert read_budget("faces") == before


def test_a_run_goes_on_under_its_own_budget(private, plan, tmp_path):
    set_budget("letters", epsilon=8, delta=1e-5)
    with killed(Ledger, "append", before_line(0)):
        trained(private, plan, tmp_path / "run")
    with pytest.raises(SfumatoError, match="budget"):
        trained(private, plan, tmp_path / "run", budget="letters")
    with pytest.raises(SfumatoError, match="does not match this run"):
        trained(private, plan, tmp_path / "run", budget=None)
    assert read_budget("letters").reservations == ()


def test_figures_count_by_the_larger_of_the_two(private, plan, tmp_path):
    trained(private, plan.with_noise(40.0), tmp_path / "run", report_epsilon=0.5)
    own = read_budget("faces").filter
    (only,) = read_budget("faces").reservations
    assert only.figures == 0.5
    assert only.cost == own.cost_of_pure(0.5) > own.cost(plan.with_noise(40.0))


def test_a_run_by_a_seed_is_refused_and_leaves_nothing_behind(private, plan, trial, tmp_path):
    seeded = replace(trial, experiment=replace(trial.experiment, seed=1))
    space = {"learning_rate": Choice(values=(0.1, 0.5))}
    begun = [
        lambda: train(
            None, private, plan, directory=tmp_path / "run", settings=replace(SETTINGS, seed=1), budget="faces"
        ),
        lambda: search.sweep(search.Grid(seeded, space), directory=tmp_path / "open", search="uncovered"),
    ]
    for begin in begun:
        with pytest.raises(SfumatoError, match="seed is 1, but a seeded run has no guarantee, so it cannot count in"):
            begin()
    assert reserved() == []
    assert list(tmp_path.iterdir()) == []


def test_public_data_need_no_budget(tmp_path):
    with pytest.raises(SfumatoError, match="budget is faces, but the data are public and cost nothing"):
        train("linear", "digits", directory=tmp_path / "run", budget="faces", epsilon=1.0)


def test_a_budget_of_another_unit_is_refused_before_anything_is_built(private, plan, tmp_path):
    set_budget("people", epsilon=8, delta=1e-5, unit="user")
    with pytest.raises(SfumatoError, match="the budget is for each single user, but the plan for each single ex"):
        trained(private, plan, tmp_path / "run", budget="people")


@pytest.fixture
def trial() -> Trial:
    experiment = Experiment(model="linear", learning_rate=0.5, steps=2, batch_size=64, noise_multiplier=8.0)
    return Trial(
        experiment=experiment,
        source=SourceSpec(spec="digits", public=False),
        threads=1,
        device="cpu",
        options={"budget": "faces"},
    )


def test_each_run_of_an_uncovered_search_is_reserved(trial, tmp_path):
    space = {"learning_rate": Choice(values=(0.1, 0.5))}
    search.sweep(search.Grid(trial, space), directory=tmp_path / "sweep", search="uncovered")
    assert [one.name for one in read_budget("faces").reservations] == ["sweep/1", "sweep/2"]
    set_budget("little", epsilon=0.02, delta=1e-5)
    six = {"learning_rate": Choice(values=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6))}
    little = replace(trial, options={"budget": "little"})
    with pytest.raises(SfumatoError, match="the budget little has 100% left, and 6 runs need"):
        search.sweep(search.Grid(little, six), directory=tmp_path / "more", search="uncovered")
    assert not (tmp_path / "more" / "1").exists()


def test_embeddings_are_reserved_for_each_person(tmp_path):
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(12), 5)
    train = {"x": rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), "y": people, "users": people}
    test = {"x": train["x"][:10], "y": people[:10] + 12, "users": people[:10] + 12}
    parts = {"train": train, "test": test}
    arrays = {f"{name}_{part}": value for part, held in parts.items() for name, value in held.items()}
    np.savez(tmp_path / "people.npz", **arrays)
    set_budget("people", epsilon=100, delta=1e-5, unit="user")
    source = f"npz:{tmp_path / 'people.npz'}"
    quick = {"steps": 1, "batch_size": 12, "noise_multiplier": 4.0, "threads": 1, "device": "cpu", "budget": "people"}
    with killed(Ledger, "append", before_line(0)):
        embed(source, directory=tmp_path / "run", method="fedemb", clients=2, **quick)
    (only,) = read_budget("people").reservations
    assert only.plan.unit.name == "user"
    assert json.loads((tmp_path / "run" / names.SETTINGS).read_text())["budget"] == {"name": "people"}
    with killed(Ledger, "append", before_line(0)):
        embed(source, directory=tmp_path / "dpsgd", method="dpsgd", **quick)
    assert len(read_budget("people").reservations) == 2
    with pytest.raises(SfumatoError, match="method untrained spends nothing of it"):
        embed(source, directory=tmp_path / "other", method="untrained", budget="people")


def test_a_run_without_a_budget_on_data_that_have_one_says_so(private, plan, tmp_path, heard):
    trained(private, plan, tmp_path / "a")
    for budget, said in (("faces", False), (None, True)):
        trained(private, plan, tmp_path / f"{budget}", budget=budget, progress=heard)
        assert any("count in the budget faces, but this one does not" in line for line in heard.lines) == said
