"""Searches: on public data, not covered, and as a private selection."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest

from sfumato import randomness
from sfumato._checks import SfumatoError
from sfumato.cli import main
from sfumato.data.paths import place_of
from sfumato.data.subsets import MARK
from sfumato.privacy import PrivacyPlan, PrivateSelection
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import uses
from sfumato.runs.owner.data_identity import DataIdentity
from sfumato.search import selection as selecting
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
    real, taken = workers.Worker.run_trial, []

    def dies(self, number, change, place):
        if len(taken) == 2:
            raise StopError
        taken.append(change["learning_rate"])
        return real(self, number, change, place)

    with monkeypatch.context() as patch:
        patch.setattr(workers.Worker, "run_trial", dies)
        with pytest.raises(StopError):
            main(shlex.split(command))
    found = json.loads(call(command))
    assert {row["learning_rate"] for row in found["rows"]} >= set(taken)
    assert len({row["learning_rate"] for row in found["rows"]}) == 3
    assert all(0.01 <= row["learning_rate"] <= 1 for row in found["rows"])


@pytest.fixture
def served(monkeypatch) -> Iterator[None]:
    """Processes of a search are forked by one that has imported everything once; a slow test below starts each anew."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sfumato.training.run", "torch._dynamo", "sklearn.datasets", "dp_accounting.pld"])
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: context)
    yield
    forkserver._forkserver._stop()  # the next one has the environment of another test


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
def test_runs_in_real_processes_are_the_same_runs(call, served):
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


def test_a_search_that_begins_where_another_one_ended_counts_both(call, spots, three):
    first = json.loads(call(f"sweep {spots} {QUICK} --vary learning-rate=0.1,0.5 --output a --search uncovered --json"))
    second = "sweep a/best.toml --threads 1 --vary learning-rate=0.4,0.6,0.8"
    found = json.loads(call(f"{second} --output b --search uncovered --json"))
    plan = PrivacyPlan.from_dict(json.loads(Path("b/1/plan.json").read_text()))
    both = first["epsilon_of_all"] + plan.epsilon(steps=3 * plan.steps, delta=plan.delta)
    assert found["epsilon_of_all"] == pytest.approx(both, rel=1e-3)
    assert search_of("b/1")["runs"] == 5
    call("train b/best.toml --output best")
    assert search_of("best")["runs"] == 6
    call("sweep b/best.toml --threads 1 --vary learning-rate=0.4,0.6 --output won --search private")
    told = search_of("won")
    assert told["runs"] == 6
    statement = json.loads(Path("won/statement.json").read_text())
    assert told["epsilon"] == pytest.approx(found["epsilon_of_all"] + statement["epsilon"], rel=1e-3)
    call("verify won")


def test_a_search_on_data_that_were_public_then_is_told_of_when_they_are_private(call):
    call(f"sweep digits {QUICK} --vary learning-rate=0.1,0.5 --output s")
    call("train s/best.toml --output public")
    assert search_of("public") is None
    call("train s/best.toml --private --output private")
    assert search_of("private")["runs"] == 3


def test_a_run_that_diverges_is_the_worst_and_ends_no_search(call, spots, three, monkeypatch, capsys):
    diverging = QUICK.replace("--model linear", "--model lenet-300-100 --optimizer sgd")
    found = json.loads(call(f"sweep digits {diverging} --vary learning-rate=1e30,0.1 --output s --json"))
    assert found["best"]["learning_rate"] == 0.1
    assert [row["loss"] is None for row in found["rows"]] == [False, True]
    capsys.readouterr()
    call(f"train digits {diverging} --learning-rate 1e30 --output lost")
    assert not any("NaN" in Path("lost", name).read_text() for name in ("evaluation.json", "metrics.jsonl"))
    assert "mean loss on them is not a number" in Path("lost/report.html").read_text()
    assert json.loads(call("evaluate lost digits --json"))["loss"] is None
    rates = {0: 1e30, 1: 0.1, 2: 1e30}
    monkeypatch.setattr(randomness, "draw_settings", lambda number, rules, key: {"learning_rate": rates[number]})
    monkeypatch.setattr(randomness, "noisy_score", lambda right, *_: right)
    won = json.loads(call(f"sweep {spots} {diverging} {SELECTED} --json"))
    assert won["settings"] == {"learning_rate": 0.1}


def test_a_candidate_ends_as_nothing_but_the_winner_of_its_search(call, spots, three, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(selecting, "_choose", lambda *_: (_ for _ in ()).throw(StopError))
        with pytest.raises(StopError):
            main(shlex.split(f"sweep digits --private {QUICK} {SELECTED}"))
    os.rename(".won.search/0", "mine")
    record = json.loads(Path("mine/settings.json").read_text())
    plan, settings = PrivacyPlan.from_dict(json.loads(Path("mine/plan.json").read_text())), record["settings"]
    told = call(
        f"train digits --private {QUICK.replace('8', str(plan.noise_multiplier), 1)} --delta {plan.delta} "
        f"--learning-rate {settings['learning_rate']} --output mine",
        status=1,
    )
    assert "is candidate of a private selection" in told
    assert not Path("mine/statement.json").exists()


def test_what_all_runs_cost_is_told_at_the_delta_it_holds_at(call, spots):
    command = f"sweep {spots} {QUICK} --vary delta=1e-5,1e-3 --search uncovered"
    found = json.loads(call(f"{command} --output s --json"))
    told = json.loads(call(f"{command} --output t --dry-run --json"))["together"]
    assert (found["epsilon_of_all"], found["delta"]) == (told["epsilon"], told["delta"])
    assert found["delta"] == 1e-3
    assert 20 < found["scored_on"] < 70, "a tenth of 400, by the hash of each"


SELECTED = "--vary learning-rate=log:0.05..1 ema=0,0.9 --search private --candidates 3 --shape 1 --output won"


def test_a_private_selection_releases_the_winner_alone(call, spots):
    found = json.loads(call(f"sweep {spots} {QUICK} {SELECTED} --json"))
    assert files(".") == {"spots.npz"} | {f"won/{name}" for name in files("won")}
    statement = json.loads(Path("won/statement.json").read_text())
    selection = PrivateSelection.from_dict(statement["selection"])
    assert found["epsilon"] == statement["epsilon"] == pytest.approx(selection.epsilon(), abs=1e-6)
    assert found["epsilon"] > selection.plan.epsilon()
    assert selection.score_noise > 0
    assert "the best of K candidates" in found["statement"]
    assert not {"candidates", "rows", "candidate"} & set(found)
    assert [json.loads(line) for line in Path("won/metrics.jsonl").read_text().splitlines()] == []
    call("verify won")
    call("report won")
    assert "accuracy" in call(f"evaluate won {spots} --json")
    call(f"sweep {spots} {QUICK} {SELECTED}", status=1)
    assert (
        len(
            uses.earlier_uses(
                DataIdentity((json.loads(Path("won/settings.json").read_text())["data"]["material"],))
            ).plans
        )
        == 1
    )


@pytest.fixture
def drawn(monkeypatch):
    """Which candidates were trained, as (learning rate, place)."""
    seen = []
    real = workers.Worker.run_trial

    def trial(self, number, change, place):
        seen.append((change["learning_rate"], place.name))
        return real(self, number, change, place)

    monkeypatch.setattr(workers.Worker, "run_trial", trial)
    return seen


def dying(real, survived):
    """The function for so many calls, then a kill."""
    calls = []

    def dies(*arguments, **named):
        if len(calls) == survived:
            raise StopError
        calls.append(arguments)
        return real(*arguments, **named)

    return dies


def test_a_selection_that_was_cut_has_the_same_candidates_and_winner(call, spots, drawn, monkeypatch):
    monkeypatch.setattr(randomness, "number_of_candidates", lambda *_: 3)
    command = f"sweep {spots} {QUICK} {SELECTED} --seed 8 --json"
    whole = json.loads(call(command))
    first, drawn[:] = list(drawn), []
    assert len(first) == 3
    os.rename("won", "before")
    for place, function, survived in ((workers, "count_correct", 1), (selecting.finish, "conclude", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(place, function, dying(getattr(place, function), survived))
            with pytest.raises(StopError):
                main(shlex.split(command))
        assert not Path("won").exists()
    assert json.loads(call(command)) == whole
    assert set(drawn) == set(first)
    for name in ("model.safetensors", "statement.json"):
        assert Path("won", name).read_bytes() == Path("before", name).read_bytes()


def test_a_selection_goes_on_only_as_what_it_was(call, spots, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(selecting, "run_all", lambda *_, **__: (_ for _ in ()).throw(StopError))
        with pytest.raises(StopError):
            main(shlex.split(f"sweep {spots} {QUICK} {SELECTED}"))
    told = call(f"sweep {spots} {QUICK} {SELECTED.replace('0.05..1', '0.05..2')}", status=1)
    assert " differs in its search: space learning_rate was" in told
    told = call(f"sweep {spots} {QUICK} {SELECTED.replace('--candidates 3', '--candidates 4')}", status=1)
    assert " differs in its search: selection draws mean was 3.0 and is 4.0," in told


def test_a_selection_goes_on_with_its_own_key_alone(call, spots, monkeypatch):
    """By another key another number of candidates would be drawn: a search that was begun again is another law."""
    key, record = Path(".won.search/search.key"), Path(".won.search/search.json")
    with monkeypatch.context() as patch:
        patch.setattr(selecting, "run_all", lambda *_, **__: (_ for _ in ()).throw(StopError))
        for _ in range(2):  # begun, and gone on with
            with pytest.raises(StopError):
                main(shlex.split(f"sweep {spots} {QUICK} {SELECTED}"))
    own = key.read_bytes()
    key.unlink()
    randomness.RunKey.fresh().save(key)
    assert "is not the one that the search began with" in call(f"sweep {spots} {QUICK} {SELECTED}", status=1)
    key.write_bytes(own)
    begun = json.loads(record.read_text())
    record.write_text(json.dumps({name: begun[name] for name in begun if name != "key_check"}))
    assert "is not the one that the search began with" in call(f"sweep {spots} {QUICK} {SELECTED}", status=1)
    assert files(".") == {"spots.npz", str(key), str(record)}, "nothing was trained"


def test_scores_may_be_taken_on_public_data(call, spots):
    np.savez("other.npz", **np.load("spots.npz"))
    told = call(f"sweep {spots} {QUICK} {SELECTED} --score-on npz:other.npz", status=1)
    assert "--score-on npz:other.npz is private" in told
    call("pretrain digits --model lenet-300-100 --steps 2 --batch-size 64 --threads 1 --device cpu --output wrn")
    call(f"features {spots} --backbone wrn --channels 1 --output mine")
    upside_down = {name: value[:, ::-1] if name[0] == "x" else value for name, value in np.load("spots.npz").items()}
    np.savez("public.npz", **upside_down)
    call("features npz:public.npz --backbone wrn --channels 1 --output shown --public")
    call(f"features {spots} --backbone wrn --channels 1 --test-fraction 0.5 --output same --public")
    on_features = f"sweep features:mine {QUICK.replace('--model linear', '--model head')} {SELECTED}"
    told = call(f"{on_features} --score-on digits --dry-run", status=1)
    assert "--score-on digits holds other inputs than features:mine" in told
    assert "holds other inputs" in call(f"sweep {spots} {QUICK} {SELECTED} --score-on features:shown", status=1)
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
            "sweep npz:spots.npz QUICK --vary steps=3,4 --search private",
            "a private selection cannot vary steps: all of its candidates have the same plan",
        ),
        (
            "sweep npz:spots.npz QUICK --vary ema=0 --search secret",
            "--search must be one of public, private, uncovered",
        ),
        ("sweep digits QUICK --vary ema=0 --shape 0", "--shape and --score-noise are for a private selection"),
        ("sweep digits QUICK --vary ema=0..0.9", "ema varies over a range, of which there is no grid"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, spots, command, words):
    assert words in call(command.replace("QUICK", QUICK), status=1)


def test_the_number_of_candidates_follows_the_law_of_the_statement(call, spots, drawn, monkeypatch):
    asked = []

    def number(draws, key):
        asked.append(draws)
        return 2

    monkeypatch.setattr(randomness, "number_of_candidates", number)
    call(f"sweep {spots} {QUICK} {SELECTED.replace('--shape 1', '--shape 0')}")
    selection = PrivateSelection.from_dict(json.loads(Path("won/statement.json").read_text())["selection"])
    assert asked == [selection.draws]
    assert (selection.draws.mean, selection.draws.shape) == (3, 0)
    assert len(drawn) == 2


def test_the_winner_is_the_best_by_its_noisy_score(call, spots, monkeypatch):
    scores = {0: 11, 1: 50, 2: 40}
    monkeypatch.setattr(randomness, "number_of_candidates", lambda *_: 3)
    monkeypatch.setattr(randomness, "noisy_score", lambda right, noise, number, key: scores[number])
    rates = {0: 0.1, 1: 0.2, 2: 0.3}
    monkeypatch.setattr(randomness, "draw_settings", lambda number, rules, key: {"learning_rate": rates[number]})
    found = json.loads(call(f"sweep {spots} {QUICK} {SELECTED} --json"))
    assert found["settings"] == {"learning_rate": 0.2}
    assert found["score"] == 50
    settings = json.loads(Path("won/settings.json").read_text())["settings"]
    assert settings["learning_rate"] == 0.2


def test_candidates_of_equal_settings_have_randomness_of_their_own(call, spots, monkeypatch):
    keys = []

    def choose(place, *_):
        keys.extend((path / "dice.key").read_text() for path in Path(place).iterdir() if path.is_dir())
        raise StopError

    monkeypatch.setattr(randomness, "number_of_candidates", lambda *_: 3)
    monkeypatch.setattr(selecting, "_choose", choose)
    monkeypatch.setattr(randomness, "draw_settings", lambda *_: {"learning_rate": 0.5})
    for seed in ("", " --seed 1"):
        with pytest.raises(StopError):
            main(shlex.split(f"sweep {spots} {QUICK} {SELECTED}{seed}".replace("won", f"won{len(seed)}")))
    assert len(keys) == len(set(keys)) == 6


def test_an_empty_search_releases_nothing(call, spots, monkeypatch):
    monkeypatch.setattr(randomness, "number_of_candidates", lambda *_: 0)
    told = call(f"sweep {spots} {QUICK} {SELECTED.replace('--shape 1', '--shape inf')}")
    assert "nothing is released" in told
    assert files(".") == {"spots.npz"}


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


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(randomness, "number_of_candidates", lambda *_: 3)


def test_the_noise_of_a_score_is_that_of_the_statement(call, spots, three, monkeypatch):
    real, noises = randomness.noisy_score, []

    def noisy(right, noise, number, key):
        noises.append(noise)
        return real(right, noise, number, key)

    monkeypatch.setattr(randomness, "noisy_score", noisy)
    call(f"sweep {spots} {QUICK} {SELECTED} --score-noise 4.5")
    statement = json.loads(Path("won/statement.json").read_text())
    assert noises == [4.5] * 3
    assert statement["selection"]["score_noise"] == 4.5
    told = call(f"sweep {spots} {QUICK} {SELECTED.replace('won', 'other')} --score-noise 0", status=1)
    assert "--score-noise must be positive, got 0" in told


def test_epsilon_is_that_of_the_whole_search_and_its_plan_trains_all_candidates(call, spots, three, monkeypatch):
    plans = []

    def choose(place, *_):
        plans.extend(json.loads((path / "plan.json").read_text()) for path in Path(place).iterdir() if path.is_dir())
        raise StopError

    monkeypatch.setattr(selecting, "_choose", choose)
    quick = QUICK.replace("--noise-multiplier 8", "--epsilon 4 --delta 1e-3")
    many = SELECTED.replace("--candidates 3", "--candidates 20")
    told = json.loads(call(f"sweep {spots} {quick} {many} --dry-run --json"))
    assert told["epsilon"] <= 4
    assert told["epsilon"] == pytest.approx(4, rel=1e-3)
    assert told["epsilon_of_one_run"] < 4 < told["epsilon_of_as_many_released"]
    assert files(".") == {"spots.npz"}
    with pytest.raises(StopError):
        main(shlex.split(f"sweep {spots} {quick} {many}"))
    assert {plan["noise_multiplier"] for plan in plans} == {told["noise_multiplier"]}
    assert len(plans) == 3


def test_nothing_tells_how_many_candidates_there_were(call, spots, three, capsys):
    assert main(shlex.split(f"sweep {spots} {QUICK} {SELECTED} --processes 1")) == 0
    printed = "".join(capsys.readouterr())
    assert "candidates" in printed
    assert not [words for words in ("3 candidates", "3 runs", "of 3", "candidate 0", "candidate 2") if words in printed]
    times = [path.stat().st_mtime for path in Path("won").iterdir()]
    assert max(times) - min(times) < 0.5
    settings = Path("won/settings.json").read_text()
    assert '"candidate' not in settings.replace('"candidate": true', "")


def test_the_candidates_are_for_nobody_elses_eyes(call, spots, three, monkeypatch):
    modes = []

    def choose(place, *_):
        modes.append(Path(place).stat().st_mode & 0o077)
        raise StopError

    monkeypatch.setattr(selecting, "_choose", choose)
    with pytest.raises(StopError):
        main(shlex.split(f"sweep {spots} {QUICK} {SELECTED}"))
    assert modes == [0]


def test_a_candidate_that_cannot_be_trained_counts_as_the_worst(call, spots, three, monkeypatch):
    rates = {0: 0.1, 1: 0.2, 2: 0.3}
    monkeypatch.setattr(randomness, "draw_settings", lambda number, rules, key: {"learning_rate": rates[number]})
    real = workers.job_for

    def fails(setting, data, number, change, run):
        if number != 1:
            raise SfumatoError("it does not fit", "choose another")
        return real(setting, data, number, change, run)

    monkeypatch.setattr(workers, "job_for", fails)
    monkeypatch.setattr(selecting, "job_for", fails)
    assert json.loads(call(f"sweep {spots} {QUICK} {SELECTED} --json"))["settings"] == {"learning_rate": 0.2}


def test_a_value_that_no_candidate_could_have_is_refused_beforehand(call, spots):
    command = f"sweep {spots} {QUICK} --search private --output won --vary model=linear,lenet5"
    assert "lenet5 needs images of at least 12" in call(command, status=1)
    assert files(".") == {"spots.npz"}


@pytest.mark.parametrize(
    ("mode", "varied", "words"),
    [
        ("private --candidates 3", "optimizer=sgd,sdg", "optimizer must be one of"),
        ("private --candidates 3", "views=1,four", "views must be a number, got 'four'"),
        ("uncovered", "warmup=0,99", "warmup must be a whole number from 0"),
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
    call(f"sweep npz:many.npz {QUICK} {SELECTED}")
    deltas = {json.loads(Path(run, "plan.json").read_text())["delta"] for run in ("s/1", "best", "won")}
    assert deltas == {1e-6}, "0.9 times 10,900 examples alone would have had 1e-5"


def test_a_search_that_goes_on_is_no_earlier_one_and_names_what_differs(call, spots, three, monkeypatch, capsys):
    command = f"sweep {spots} {QUICK} {SELECTED}"
    with monkeypatch.context() as patch:
        patch.setattr(selecting, "_choose", lambda *_: (_ for _ in ()).throw(StopError))
        with pytest.raises(StopError):
            main(shlex.split(command))
    told = call(f"{command} --seed 3", status=1)
    assert "differs in its options: seed was absent and is 3" in told
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    assert "earlier run" not in capsys.readouterr().err


def test_a_search_tells_of_earlier_ones_and_of_too_much_noise(call, spots, capsys):
    call(f"sweep {spots} {QUICK} {SELECTED}")
    assert len(uses.earlier_uses(DataIdentity(("others",), (place_of(spots),))).plans) == 1, (
        "known by its place where images are changed"
    )
    assert main(shlex.split(f"sweep {spots} {QUICK} {SELECTED.replace('won', 'again')} --dry-run")) == 0
    told = capsys.readouterr().err
    assert "note: 1 earlier run of yours used these data" in told
    assert "the choice is mostly chance" in told


def test_a_search_that_was_cut_in_its_last_moment_tells_its_result(call, spots, monkeypatch):
    command = f"sweep {spots} {QUICK} {SELECTED} --seed 2 --json"
    whole = json.loads(call(command))
    os.rename("won", "before")
    real = selecting.os.rename

    def renamed(*arguments):
        real(*arguments)
        if arguments[1] == Path("won"):
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(selecting.os, "rename", renamed)
        with pytest.raises(StopError):
            main(shlex.split(command))
    assert Path(".won.search").exists()
    assert not [path for path in Path(".won.search").iterdir() if path.is_dir()], "the others are gone before"
    assert json.loads(call(command)) == whole
    assert not Path(".won.search").exists()
    call(command, status=1)


def test_changed_data_end_a_search(call, spots, three, here, monkeypatch):
    """Every process reads them anew."""
    real, arrays = selecting.run_all, dict(np.load("spots.npz"))

    def changed(*given, **named):
        np.savez("spots.npz", **{**arrays, "y_train": arrays["y_train"][::-1]})
        return real(*given, **named)

    monkeypatch.setattr(selecting, "run_all", changed)
    assert "the data have changed" in call(f"sweep {spots} {QUICK} {SELECTED} --processes 2", status=1)


def test_a_winner_that_was_cut_before_its_key_was_deleted_keeps_no_key(call, spots, monkeypatch):
    calls = []

    def cut(run):
        calls.append(run)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "clean", cut)
        with pytest.raises(StopError):
            main(shlex.split(f"sweep {spots} {QUICK} {SELECTED}"))
    assert calls
    call(f"sweep {spots} {QUICK} {SELECTED}")
    assert not {"dice.key", "checkpoint.safetensors"} & files("won")
    call("verify won")


def test_no_file_of_the_winner_tells_when_it_was_trained(call, spots, three, monkeypatch):
    """Times of files would tell which of the candidates it was."""
    choose = selecting._choose

    def choosing(place, *given):
        choose(place, *given)
        for path in place.rglob("*"):
            os.utime(path, (1, 1))

    monkeypatch.setattr(selecting, "_choose", choosing)
    call(f"sweep {spots} {QUICK} {SELECTED}")
    paths = [Path("won"), *Path("won").iterdir()]
    assert all(path.stat().st_mtime > 1e6 for path in paths)


def test_warnings_do_not_count_the_candidates(call, spots, three):
    Path("branching.py").write_text(
        "from torch import nn\n\n\n"
        "class Branching(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(64, classes)\n\n"
        "    def forward(self, images):\n"
        "        return self.head(images.flatten(1)) * (2 if images.max() > 5 else 1)\n\n\n"
        "def build(classes, channels, size):\n"
        "    return Branching(classes)\n"
    )
    quick = QUICK.replace("linear", "branching:build")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call(f"sweep {spots} {quick} {SELECTED}")
    assert not [one for one in told if "vectorised" in str(one.message)]


def test_a_machine_that_does_not_fit_is_no_fault_of_the_candidates(call, spots):
    call(f"sweep {spots} {QUICK.replace('--device cpu', '')} {SELECTED} --device cuda:9", status=1)
    assert files(".") == {"spots.npz"}
