"""Searches: on public data, and not covered."""

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from sfumato._checks import SfumatoError
from sfumato.cli import main
from sfumato.data.subsets import MARK
from sfumato.privacy import PrivacyPlan
from sfumato.search import workers
from sfumato.training import run

QUICK = "--model linear --steps 3 --noise-multiplier 8 --batch-size 64 --threads 1 --device cpu"


class StopError(BaseException):
    pass


@pytest.fixture
def spots(workplace) -> str:
    """A private archive of little images, four classes by where a bright spot is."""
    generator = np.random.default_rng(0)
    labels = np.arange(480) % 4
    images = generator.integers(0, 60, (480, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 150
    np.savez("spots.npz", x_train=images[:400], y_train=labels[:400], x_test=images[400:], y_test=labels[400:])
    return "npz:spots.npz"


def search_of(run: str) -> dict | None:
    """What a run's statement says of the search behind it."""
    return json.loads(Path(run, "statement.json").read_text())["circumstances"]["search"]


def files(place: str) -> set[str]:
    return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}


def test_a_grid_on_public_data(call, images):
    clear = QUICK.replace("--steps 3 --noise-multiplier 8", "--steps 10 --noise-multiplier 1")
    command = f"sweep digits {clear} --vary learning-rate=0.0001,0.5 ema=0,0.9 --seed 3 --output s --json"
    found = json.loads(call(command))
    assert len(found["rows"]) == 4
    assert found["epsilon_of_all"] is None
    accuracies = [row["accuracy"] for row in found["rows"]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert {name: found["rows"][0][name] for name in ("learning_rate", "ema")} == found["best"]
    plan = PrivacyPlan.from_dict(json.loads(Path("s/1/plan.json").read_text()))
    assert plan.population == round(0.9 * 1438)
    assert {"sweep.json", "sweep.svg", "best.toml"} <= files("s")
    assert json.loads(call(command)) == found, "finished runs are read, not trained again"
    call("sweep digits --vary learning-rate=0.1 --output s", status=1)
    assert f"learning-rate = {found['best']['learning_rate']}" in Path("s/best.toml").read_text()
    assert Path("s/sweep.svg").read_text().startswith("<?xml")
    call("train s/best.toml --output best")
    best = PrivacyPlan.from_dict(json.loads(Path("best/plan.json").read_text()))
    assert best.population == 1438
    assert "The data are public" in call(command.removesuffix(" --json"))


def test_draws_are_the_same_when_a_search_goes_on(call, monkeypatch):
    command = f"sweep digits {QUICK} --vary learning-rate=log:0.01..1 --candidates 3 --output s --json"
    real, taken = workers.Worker.train, []

    def dies(self, trial, *given):
        if len(taken) == 2:
            raise StopError
        taken.append(trial.experiment.learning_rate)
        return real(self, trial, *given)

    with monkeypatch.context() as patch:
        patch.setattr(workers.Worker, "train", dies)
        with pytest.raises(StopError):
            main(shlex.split(command))
    found = json.loads(call(command))
    assert {row["learning_rate"] for row in found["rows"]} >= set(taken)
    assert len({row["learning_rate"] for row in found["rows"]}) == 3
    assert all(0.01 <= row["learning_rate"] <= 1 for row in found["rows"])


class Here:
    """A pool of processes all of which are this one."""

    def __init__(self, processes, *, mp_context, initializer, initargs):
        self.begin = partial(initializer, *initargs)

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def submit(self, function, *arguments):
        self.begin()  # as if each job had another process
        job = Future()
        try:
            job.set_result(function(*arguments))
        except SfumatoError as error:
            job.set_exception(error)
        return job

    def shutdown(self, **_): ...


@pytest.fixture
def here(monkeypatch) -> None:
    """Several processes are this one."""
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(workers, "_WORKER", None)
    for name in ("_end_with_parent", "_devices.set_accelerator"):
        monkeypatch.setattr(f"sfumato.search.workers.{name}", lambda *_: None)


def several(call) -> None:
    command = f"sweep digits {QUICK} --seed 1 --vary learning-rate=0.1,0.5 --json"
    one = json.loads(call(f"{command} --output one"))
    two = json.loads(call(f"{command} --output two --processes 2"))
    assert [row["accuracy"] for row in one["rows"]] == [row["accuracy"] for row in two["rows"]]


def test_runs_in_several_processes_are_the_same_runs(call, here):
    several(call)


@pytest.mark.slow
def test_runs_in_real_processes_are_the_same_runs(call):
    several(call)


def test_a_search_that_is_not_covered_says_so_in_every_statement(call, spots):
    call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output s", status=1)
    told = call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output s --search uncovered")
    assert "None of the 2 guarantees covers the search" in told
    for number in (1, 2):
        statement = json.loads(Path(f"s/{number}/statement.json").read_text())
        plan = PrivacyPlan.from_dict(statement["plan"])
        together = plan.epsilon(steps=2 * plan.steps, delta=plan.delta)
        assert statement["circumstances"]["search"]["epsilon"] == pytest.approx(together, rel=1e-3)
        assert statement["not_covered"][0].startswith("The search for these settings. It has 2 runs")
        call(f"verify s/{number}")
    call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output t --search public", status=1)


def test_the_run_with_the_best_settings_tells_of_the_search_that_found_them(call, spots, monkeypatch):
    told = json.loads(call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output s --search uncovered --json"))
    with monkeypatch.context() as patch:
        patch.setattr(run, "take_steps", lambda *_, **__: (_ for _ in ()).throw(StopError))
        with pytest.raises(StopError):
            main(shlex.split("train s/best.toml --output best"))
    call("train best")
    statement = json.loads(Path("best/statement.json").read_text())
    search, plan = statement["circumstances"]["search"], PrivacyPlan.from_dict(statement["plan"])
    assert search["runs"] == 3
    assert search["epsilon"] == pytest.approx(told["epsilon_of_all"] + plan.epsilon())
    assert search["delta"] == pytest.approx(told["delta"] + plan.delta)
    assert statement["not_covered"][0].startswith("The search for these settings. It has 3 runs")
    call("verify best")
    assert "No epsilon covers the choice among them" in statement["not_covered"][0]
    call("train s/best.toml --source digits --output other")
    assert search_of("other") is None
    os.rename("spots.npz", "moved.npz")
    call("train s/best.toml --source npz:moved.npz --output moved")
    assert search_of("moved") == search, "the same records under another name"
    os.rename("moved.npz", "spots.npz")


def test_a_search_that_begins_where_another_one_ended_counts_both(call, spots):
    first = json.loads(call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output a --search uncovered --json"))
    second = "sweep a/best.toml --threads 1 --vary learning-rate=0.4,0.6,0.8"
    found = json.loads(call(f"{second} --output b --search uncovered --json"))
    plan = PrivacyPlan.from_dict(json.loads(Path("b/1/plan.json").read_text()))
    both = first["epsilon_of_all"] + plan.epsilon(steps=3 * plan.steps, delta=plan.delta)
    assert found["epsilon_of_all"] == pytest.approx(both, rel=1e-3)
    assert search_of("b/1")["runs"] == 5
    call("train b/best.toml --output best")
    assert search_of("best")["runs"] == 6


def test_a_search_on_data_that_were_public_then_is_told_of_when_they_are_private(call):
    call(f"sweep digits {QUICK} --vary learning-rate=0.1,0.5 --output s")
    call("train s/best.toml --output public")
    assert search_of("public") is None
    call("train s/best.toml --private --output private")
    assert search_of("private")["runs"] == 3


def test_a_run_that_diverges_is_the_worst_and_ends_no_search(call, capsys):
    diverging = QUICK.replace("--model linear", "--model lenet-300-100 --optimizer sgd")
    found = json.loads(call(f"sweep digits {diverging} --vary learning-rate=1e30,0.1 --output s --json"))
    assert found["best"]["learning_rate"] == 0.1
    assert [row["loss"] is None for row in found["rows"]] == [False, True]
    capsys.readouterr()
    call(f"train digits {diverging} --learning-rate 1e30 --output lost")
    assert not any("NaN" in Path("lost", name).read_text() for name in ("evaluation.json", "metrics.jsonl"))
    assert "mean loss on them is not a number" in Path("lost/report.html").read_text()
    assert json.loads(call("evaluate lost digits --json"))["loss"] is None


def test_what_all_runs_cost_is_told_at_the_delta_it_holds_at(call, spots):
    command = f"sweep {spots} {QUICK} --vary delta=1e-5,1e-3 --search uncovered"
    found = json.loads(call(f"{command} --output s --json"))
    told = json.loads(call(f"{command} --output t --dry-run --json"))["together"]
    assert (found["epsilon_of_all"], found["delta"]) == (told["epsilon"], told["delta"])
    assert found["delta"] == 1e-3
    assert 20 < found["scored_on"] < 70, "a tenth of 400, by the hash of each"


UNCOVERED = "--vary learning-rate=0.1,0.5 --search uncovered --output s"


def test_scores_may_be_taken_on_public_data(call, spots):
    np.savez("other.npz", **np.load("spots.npz"))
    told = call(f"sweep {spots} {QUICK} {UNCOVERED} --score-on npz:other.npz", status=1)
    assert "--score-on npz:other.npz is private" in told
    call("pretrain digits --model lenet-300-100 --steps 2 --batch-size 64 --threads 1 --device cpu --output wrn")
    call(f"features {spots} --backbone wrn --channels 1 --output mine")
    upside_down = {name: value[:, ::-1] if name[0] == "x" else value for name, value in np.load("spots.npz").items()}
    np.savez("public.npz", **upside_down)
    call("features npz:public.npz --backbone wrn --channels 1 --output shown --public")
    call(f"features {spots} --backbone wrn --channels 1 --test-fraction 0.5 --output same --public")
    on_features = f"sweep features:mine {QUICK.replace('--model linear', '--model head')} {UNCOVERED}"
    told = call(f"{on_features} --score-on digits --dry-run", status=1)
    assert "--score-on digits holds other inputs than features:mine" in told
    assert "holds other inputs" in call(f"sweep {spots} {QUICK} {UNCOVERED} --score-on features:shown", status=1)
    told = call(f"{on_features} --score-on features:same", status=1)
    assert "--score-on features:same holds records of features:mine, which are private" in told
    np.savez("filtered.npz", **upside_down, **{MARK: np.array(True)})
    call("features npz:filtered.npz --backbone wrn --channels 1 --output filtered --public")
    told = call(f"{on_features} --score-on features:filtered", status=1)
    assert "--score-on features:filtered was filtered by looking at private data, so it is not public" in told
    call(f"{on_features} --score-on features:shown")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "sweep npz:spots.npz QUICK --vary learning-rate=1",
            "a search on private data costs privacy, but --search is not given",
        ),
        (
            "sweep digits QUICK --vary ema=0 --one-at-a-time --candidates 2",
            "--candidates 2 draws some values, but --one-at-a-time tries each",
        ),
        ("sweep digits QUICK --vary ema=0..0.9", "ema varies over a range, of which there is no grid"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, spots, command, words):
    assert words in call(command.replace("QUICK", QUICK), status=1)


def test_the_best_settings_are_taken_to_private_data_as_private(call, spots):
    call(f"sweep digits {QUICK} --public --vary learning-rate=0.1,0.5 --output s")
    assert "public" not in Path("s/best.toml").read_text()
    Path("p.toml").write_text("public = true\n" + Path("s/best.toml").read_text())
    for recipe in ("s/best.toml", "p.toml"):
        call(f"train {recipe} --source {spots} --output {recipe[0]}-run")
        statement = json.loads(Path(f"{recipe[0]}-run/statement.json").read_text())
        assert not statement["circumstances"]["data_public"]
    call("train p.toml --private --output q-run")
    assert not json.loads(Path("q-run/statement.json").read_text())["circumstances"]["data_public"]


def test_open_draws_do_not_repeat(call):
    told = json.loads(
        call(f"sweep digits {QUICK} --vary ema=0,0.9 schedule=constant,cosine --candidates 4 --dry-run --json")
    )
    assert len({(run["ema"], run["schedule"]) for run in told["runs"]}) == 4
    more = json.loads(call(f"sweep digits {QUICK} --vary ema=0,0.9 --candidates 9 --dry-run --json"))
    assert len(more["runs"]) == 2


def test_a_typo_is_refused_before_anything_is_trained(call):
    assert "linaer" in call(f"sweep digits {QUICK} --vary model=linear,linaer --dry-run", status=1)
    command = f"sweep digits {QUICK} --vary ema=0,0.9 schedule=constant,cosine --dry-run"
    assert call(command) == call(command.replace(" schedule=", " --vary schedule=")), "--vary repeatable"
    assert not Path("runs").exists()


@pytest.mark.slow
def test_processes_of_a_killed_search_end(workplace):
    command = [
        sys.executable,
        "-m",
        "sfumato",
        "sweep",
        "digits",
        *shlex.split(QUICK.replace("--steps 3", "--steps 90000")),
    ]
    command += ["--noise-multiplier", "400", "--vary", "ema=0,0.9", "--processes", "2", "--output", "s"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own = psutil.Process(killed.pid)
    while not (Path("s/1/ledger.jsonl").exists() and Path("s/2/ledger.jsonl").exists()):
        assert killed.poll() is None
        time.sleep(0.2)
    children = own.children(recursive=True)
    killed.kill()
    killed.wait()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert not alive


def test_a_recipe_that_says_private_is_private(call):
    Path("r.toml").write_text(
        'source = "digits"\nprivate = true\nsteps = 3\nbatch-size = 64\nnoise-multiplier = 8.0\nmodel = "linear"\n'
        "[sweep]\nlearning-rate = [0.1, 0.5]\n"
    )
    assert "a search on private data costs privacy" in call("sweep r.toml", status=1)
    assert "covers the search" in call("sweep r.toml --search uncovered --output s")


def test_a_value_that_no_run_could_have_is_refused_beforehand(call, spots):
    command = f"sweep {spots} {QUICK} --search uncovered --output s --vary model=linear,lenet5"
    assert "side in pixels for lenet5 must be at least 12" in call(command, status=1)
    assert files(".") == {"spots.npz"}


@pytest.mark.parametrize(
    ("mode", "varied", "words"),
    [
        ("uncovered --candidates 3", "optimizer=sgd,sdg", "optimizer must be one of"),
        ("uncovered", "views=1,four", "views must be a number, got 'four'"),
        ("uncovered", "warmup=0,99", "warmup must be a whole number from 0 to steps - 1 = 2"),
        ("uncovered --one-at-a-time", "model=3", "model must be a string in quotation marks, got 3"),
    ],
)
def test_a_misspelt_value_is_refused_before_anything_is_spent(call, spots, mode, varied, words):
    command = f"sweep {spots} {QUICK} --search {mode} --output won --vary {varied}"
    assert words in call(command, status=1)
    assert words in call(f"{command} --dry-run", status=1)
    assert files(".") == {"spots.npz"}
    assert not (Path(os.environ["SFUMATO_HOME"]) / "uses.jsonl").exists()


def test_delta_by_rule_is_that_of_the_run_with_the_best_settings(call):
    generator = np.random.default_rng(0)
    labels = np.arange(10_950) % 2
    images = generator.integers(0, 99, (10_950, 8, 8), dtype=np.uint8) + 100 * labels[:, None, None].astype(np.uint8)
    np.savez(
        "many.npz", x_train=images[:10_900], y_train=labels[:10_900], x_test=images[10_900:], y_test=labels[10_900:]
    )
    call(f"sweep npz:many.npz {QUICK} --search uncovered --vary learning-rate=0.1 --output s")
    call("train s/best.toml --output best")
    deltas = {json.loads(Path(run, "plan.json").read_text())["delta"] for run in ("s/1", "best")}
    assert deltas == {1e-6}, "0.9 times 10,900 examples alone would have had 1e-5"


def test_changed_data_end_a_search(call, spots, here, monkeypatch):
    """Every process reads them anew."""
    real, arrays = workers.Worker.in_processes, dict(np.load("spots.npz"))

    def changed(*given, **named):
        np.savez("spots.npz", **{**arrays, "y_train": arrays["y_train"][::-1]})
        return real(*given, **named)

    monkeypatch.setattr(workers.Worker, "in_processes", changed)
    assert "the data have changed" in call(f"sweep {spots} {QUICK} {UNCOVERED} --processes 2", status=1)


def test_a_machine_that_does_not_fit_is_refused_beforehand(call, spots):
    call(f"sweep {spots} {QUICK.replace('--device cpu', '')} {UNCOVERED} --device cuda:9", status=1)
    assert files(".") == {"spots.npz"}
