"""Each kind of search, called from Python."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato import SfumatoError, search, verify
from sfumato.data import SourceSpec
from sfumato.experiment import Experiment
from sfumato.privacy import PrivacyPlan, Search
from sfumato.randomness import Choice, LogUniform
from sfumato.runs.directory import RunDirectory
from sfumato.search import sweeping, workers

EXPERIMENT = Experiment(
    model="linear", noise_multiplier=8.0, batch_size=64, steps=2, delta=1e-5, learning_rate=0.5, ema=0.0, seed=3
)
PUBLIC = search.Trial(experiment=EXPERIMENT, source="digits", threads=1, device="cpu", micro_batch=64)
PRIVATE = replace(PUBLIC, source=SourceSpec(spec="digits", public=False))
RATES = {"learning_rate": Choice(values=(0.0001, 0.5))}


@pytest.fixture(autouse=True)
def no_images(monkeypatch) -> None:
    """Drawing takes longer than the small runs here; `tests/report` looks at what is drawn."""
    monkeypatch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "<svg></svg>")
    monkeypatch.setattr("sfumato.search.trials.sweep_panels", lambda rows, varied: f"<svg>{len(rows)} {varied}</svg>")
    monkeypatch.setattr("sfumato.search.trials.curve_of_budgets", lambda rows, plain: f"<svg>{len(rows)}</svg>")


class Lines:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, what: str, total: int, done: int = 0) -> None: ...

    def advance(self, done: int, note: str = "") -> None: ...

    def report(self, line: str) -> None:
        self.said.append(line)


def statement(place: Path) -> dict[str, Any]:
    return json.loads((place / "statement.json").read_text())


def test_an_open_search_ranks_its_runs(tmp_path):
    told, before = Lines(), torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        found = search.sweep(
            search.Grid(replace(PUBLIC, threads=before), RATES), directory=tmp_path / "s", progress=told
        )
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert sorted(found.changes, key=str) == [{"learning_rate": 0.0001}, {"learning_rate": 0.5}]
    assert [row["accuracy"] for row in found.rows] == sorted((row["accuracy"] for row in found.rows), reverse=True)
    assert found.best == {"learning_rate": found.rows[0]["learning_rate"]}
    assert found.uncovered is None
    assert [line.split(":")[0] for line in told.said] == ["learning rate 0.0001", "learning rate 0.5"]
    written = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert json.loads(json.dumps(found.to_dict())).items() <= written.items()
    assert all(verify(row["run"]).holds for row in found.rows)


def test_an_uncovered_search_counts_all_runs_and_those_behind_them(tmp_path):
    earlier = Search(runs=4, epsilon=0.5, delta=1e-6)
    place = tmp_path / "s"
    asked = replace(PRIVATE, earlier_search=lambda source: None if source.public else earlier)
    found = search.sweep(search.Grid(asked, RATES), directory=place, search="uncovered")
    plan = found.plans[0]
    assert found.uncovered is not None
    assert found.uncovered.runs == 6
    assert found.uncovered.epsilon == pytest.approx(0.5 + plan.epsilon(steps=2 * plan.steps), rel=1e-3)
    assert statement(place / "1")["circumstances"]["search"]["runs"] == 6
    with pytest.raises(SfumatoError, match="digits is private, but the search is public"):
        search.sweep(search.Grid(PRIVATE, RATES), directory=tmp_path / "t")


def test_single_changes_stand_beside_no_change(tmp_path):
    values = {"optimizer": Choice(values=("adam",)), "max_norm": Choice(values=(0.1,))}
    compared = search.sweep(search.SingleChanges(PUBLIC, values), directory=tmp_path / "f")
    assert [row["change"] for row in compared.rows] == [{}, {"optimizer": "adam"}, {"max_norm": 0.1}]
    assert [plan.max_norm for plan in compared.plans] == [1, 1, 0.1]
    assert compared.rows[0]["difference"] == 0


def test_seeds_count_on_and_cost_together(tmp_path):
    found = search.sweep(search.Seeds(PRIVATE, 2), directory=tmp_path / "n")
    seeds = [json.loads((tmp_path / "n" / str(n) / "settings.json").read_text())["settings"]["seed"] for n in (1, 2)]
    assert seeds == [3, 4]
    plan = found.runs[0].statement.plan
    assert found.cost.epsilon == pytest.approx(plan.epsilon(steps=2 * plan.steps), rel=1e-3)
    assert (found.cost.runs, found.median) == (2, sum(found.values) / 2)
    assert found.all_uses[0] == found.cost.epsilon
    again = search.sweep(search.Seeds(PRIVATE, 1), directory=tmp_path / "n")
    assert (again.values, again.cost.runs) == (found.values[:1], 2)


def test_budgets_have_a_run_each(tmp_path):
    trial = replace(PRIVATE, experiment=replace(EXPERIMENT, noise_multiplier=None))
    found = search.sweep(search.Budgets(trial, (8.0, 2.0)), directory=tmp_path / "b")
    assert found.changes == ({"epsilon": 2.0}, {"epsilon": 8.0})
    assert all(row["epsilon"] <= change["epsilon"] for row, change in zip(found.rows, found.changes, strict=True))
    plans = [
        PrivacyPlan.from_dict(json.loads((tmp_path / "b" / f"epsilon-{e}" / "plan.json").read_text())) for e in (2, 8)
    ]
    assert plans[0].noise_multiplier > plans[1].noise_multiplier
    assert found.cost.epsilon > plans[1].epsilon()
    assert found.without_privacy is None
    assert json.loads((tmp_path / "b" / "budgets.json").read_text()) == json.loads(json.dumps(found.to_dict()))


def test_what_a_search_shares_goes_to_other_processes():
    worker = workers.Worker(trial=PRIVATE, scoring=search.Scoring())
    assert pickle.loads(pickle.dumps(worker)) == worker
    (trial,) = sweeping._requested(search.Seeds(replace(PRIVATE, threads=None), 1), {"1": {}}, 1000).values()
    assert trial.threads == 1


def test_a_process_that_was_not_begun_trains_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="has not begun"):
        workers._train(PUBLIC, tmp_path)
    assert not RunDirectory(tmp_path / "0").exists


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda place: search.Grid(PUBLIC, {"zoom": RATES["learning_rate"]}),
            "cannot vary zoom",
        ),
        (
            lambda place: search.sweep(search.Grid(PUBLIC, RATES), directory=place, search="secret"),
            "search must be one of",
        ),
        (
            lambda place: search.sweep(
                search.SingleChanges(PUBLIC, {"ema": LogUniform(low=0.1, high=0.9)}), directory=place
            ),
            "ema varies over a range",
        ),
        (
            lambda place: search.Budgets(PUBLIC, (1, 2)),
            "several budgets and noise_multiplier are both given",
        ),
    ],
)
def test_what_no_search_can_be_is_refused(call: Callable[[Path], Any], words: str, tmp_path):
    with pytest.raises(SfumatoError, match=words):
        call(tmp_path / "place")
    assert not list(tmp_path.iterdir())
