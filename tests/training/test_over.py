"""Training over aggregates: where gradients are taken, what is moved and released, and what a kill leaves of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, SfumatoError, load, open_source, pretrain, train
from sfumato._choices import choices_of
from sfumato.averaging import EMA
from sfumato.data import Source
from sfumato.experiment import Settings
from sfumato.experiment.experiment import Experiment
from sfumato.privacy import Tree, User
from sfumato.privacy.participation import FixedOrder
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs.checkpoint import Checkpoint, read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop, pretraining
from sfumato.training.job import Job, PublicTraining
from sfumato.training.preparation.estimate import average_bytes
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.preparation.prepare import prepare
from sfumato.training.step import PrivateStep
from sfumato.training.steps import PublicSteps, private_training_steps
from tests.killed import killed

STEPS = 7
PLAIN = {"model": "linear", "optimizer": "sgd", "learning_rate": 2.0, "ema": 0.0}
EMAS = {"aggregate": "ema", "ema": 0.7}
UTA = {"aggregate": "uta", "aggregate_last": 3}
KEY = RunKey.from_seed(11)
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def plan() -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=200, batch_size=40, steps=STEPS, noise_multiplier=1.0, delta=1e-3)


def settings(**choices: Any) -> Settings:
    return Settings(**{**PLAIN, **choices})


def job_for(source: Source, plan: PrivacyPlan, chosen: Settings, **how: Any) -> Job:
    return prepare(None, source, plan, chosen, device="cpu", threads=1, key=KEY, **how)


class Watched:
    """A run's steps, with what the trained parameters held in each, and what came of it."""

    def __init__(self, steps: Any, module: nn.Module):
        self.steps, self.module, self.points, self.gradients = steps, module, [], []

    def __call__(self, step: int, state: NoiseState) -> Any:
        self.points.append(copied(self.module))
        gradient, following = self.steps(step, state)
        self.gradients.append({name: None if g is None else g.clone() for name, g in gradient.items()})
        return gradient, following

    def figures(self, step: int) -> dict[str, Any]:
        return {}


def copied(module: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in module.named_parameters() if value.requires_grad}


def taken(job: Job, place: Path, monkeypatch: pytest.MonkeyPatch, kind: Any = private_training_steps) -> Any:
    """All steps of a job: what it released, the weights after each step from theta_0 on, and its watched steps."""
    thetas, descend = [copied(job.module)], loop.descend

    def descending(optimizer, parameters, gradient):
        descend(optimizer, parameters, gradient)
        thetas.append(copied(job.module))

    place.mkdir(exist_ok=True)
    watched = Watched(kind(job, KEY), job.module)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", descending)
        outcome = loop.take_steps(job, RunDirectory(place), watched, job.first_checkpoint("r"))
    return outcome.weights, thetas, watched


def aggregate(thetas: list[Weights], chosen: Settings) -> Weights:
    """f_agg(theta_t, ..., theta_0) from all of these, written out."""
    if chosen.averages.aggregate == "uta":
        last = thetas[-(chosen.averages.aggregate_last or 0) :]
        return {name: torch.stack([one[name].double() for one in last]).mean(0).float() for name in thetas[0]}
    average = dict(thetas[0])
    for step, theta in enumerate(thetas[1:]):
        decay = (
            chosen.averages.ema
            if chosen.averages.ema_form == "constant"
            else min(chosen.averages.ema, (1 + step) / (10 + step))
        )
        average = {name: decay * average[name] + (1 - decay) * theta[name] for name in average}
    return average


def near(found: Weights, expected: Weights, **tolerance: float) -> None:
    assert expected
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **(tolerance or {"rtol": 1e-4, "atol": 1e-5}))


@pytest.mark.parametrize(
    "choices",
    [
        EMAS,
        {**EMAS, "ema_form": "constant", "aggregate_from": 3},
        {**UTA, "aggregate_from": 2, "optimizer": "momentum", "learning_rate": 1.0},
        {**UTA, "aggregate_restart": False, "aggregate_from": 2},
    ],
    ids=str,
)
def test_it_is_algorithm_1(spots, plan, choices, tmp_path, monkeypatch):
    """Against a plain loop: each example's gradient by itself, at the aggregate; the same noise and participants."""
    chosen = settings(**choices)
    job = job_for(spots, plan, chosen)
    first = copied(job.module)
    images = job.transform(torch.from_numpy(spots.train.take(np.arange(200)))).flatten(1)
    labels = torch.from_numpy(spots.train.labels)
    noise = Noise(plan.mechanism, max_norm=1.0, key=KEY)
    sampler = Sampler(plan, KEY, records=200)
    thetas, velocity = [first], {name: torch.zeros_like(value) for name, value in first.items()}
    weight, bias = sorted(first, key=lambda name: -first[name].dim())
    for step in range(STEPS):
        over = step >= chosen.averages.aggregate_from
        point = aggregate(thetas, chosen) if over else thetas[-1]
        total = {name: torch.zeros_like(value) for name, value in point.items()}
        for row in sampler.draw(step):
            probabilities = (point[weight] @ images[row] + point[bias]).softmax(0)
            error = probabilities - nn.functional.one_hot(labels[row], 4)
            one = {weight: error[:, None] * images[row], bias: error}
            norm = sum((value**2).sum() for value in one.values()) ** 0.5
            for name, value in one.items():
                total[name] += value * min(1.0, 1.0 / float(norm))
        noisy = noise.add(total, step)
        rate = chosen.descent.learning_rate * (
            0.5 * (1 + np.cos(np.pi * step / STEPS)) if chosen.descent.schedule == "cosine" else 1
        )
        coefficient = 0.9 if chosen.descent.optimizer == "momentum" else 0.0
        velocity = {name: coefficient * velocity[name] + noisy[name] / 40 for name in velocity}
        begins = point if chosen.averages.aggregate_restart else thetas[-1]
        thetas.append({name: value - rate * velocity[name] for name, value in begins.items()})
    released, found, _ = taken(job, tmp_path / "run", monkeypatch)
    near(found[-1], thetas[-1])
    near(released, aggregate(thetas, chosen))
    plain = taken(job_for(spots, plan, replace(chosen, **NOTHING)), tmp_path / "plain", monkeypatch)[1]
    assert (plain[-1][weight] - found[-1][weight]).abs().max() > 1e-2, "or the aggregate would not matter here"


NOTHING = {"aggregate": None, "aggregate_from": 0, "aggregate_last": None, "aggregate_restart": None}


def of_users(arrays: str, place: Path) -> Source:
    content = dict(np.load(arrays.removeprefix("npz:")))
    for part in ("train", "test"):
        records = len(content[f"y_{part}"])
        content[f"users_{part}"] = np.array([f"{part} {number // 5}" for number in range(records)])
    np.savez(place / "people.npz", **content)
    return open_source(f"npz:{place / 'people.npz'}", owner_key=bytes(32))


def example_plan(**choices: Any) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        **{"examples": 200, "batch_size": 40, "steps": STEPS, "noise_multiplier": 2.0, "delta": 1e-3, **choices}
    )


LATER = {**UTA, "aggregate_from": 2}


@pytest.mark.parametrize(
    ("what", "choices"),
    [("network", EMAS), ("users", EMAS), ("tree", LATER), ("fixed beginning", LATER), ("public", EMAS)],
    ids=str,
)
def test_every_kind_of_step_is_taken_at_the_aggregate(what, choices, arrays, spots, tmp_path, monkeypatch):
    """The gradient of step t is what a run without aggregates computes at f_agg, to the bit."""
    source, kind, chosen = spots, private_training_steps, settings(model="lenet-300-100", views=2, shift=1, **choices)
    plan = example_plan()
    if what == "tree":
        plan = example_plan(mechanism=Tree(noise_multiplier=1.0), participation=FixedOrder(batch_size=40))
    elif what == "users":
        source = of_users(arrays, tmp_path)
        plan = example_plan(examples=40, batch_size=10, unit=User())
    elif what == "fixed beginning":
        chosen = replace(chosen, trainable=("classifier",), views=1, shift=0)
    if what == "public":
        kind = PublicSteps
        training = PublicTraining(settings=chosen, steps=STEPS, batch_size=50)
        job, twin = (pretraining.prepare(replace(spots, public=True), training, threads=1, key=KEY) for _ in range(2))
    else:
        job, twin = (job_for(source, plan, chosen) for _ in range(2))
    released, thetas, watched = taken(job, tmp_path / "run", monkeypatch, kind)
    plainly, state = kind(twin, KEY), NoiseState(step=0)
    for step in range(STEPS):
        expected = aggregate(thetas[: step + 1], chosen) if step >= chosen.averages.aggregate_from else thetas[step]
        near(watched.points[step], expected, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for name, value in twin.module.named_parameters():
                if value.requires_grad:
                    value.copy_(watched.points[step][name])
                    value.grad = None
        gradient, state = plainly(step, state)
        for name, value in gradient.items():
            assert torch.equal(value, watched.gradients[step][name])
    near(released, aggregate(thetas, chosen), rtol=1e-5, atol=1e-6)


TRAINED = {"learning_rate": 0.5, "threads": 1, "seed": 3, "device": "cpu", "aggregate_from": 3}
FORMS = {
    "ema": {"aggregate": "ema", "averaging": EMA(0.8)},
    "uta": {"aggregate": "uta", "aggregate_last": 3},
    "no restart": {"aggregate": "uta", "aggregate_last": 2, "aggregate_restart": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_killed_and_resumed_it_ends_with_the_same_bytes(spots, plan, form, tmp_path, monkeypatch):
    def run(place):
        return train("linear", spots, plan, directory=tmp_path / place, **TRAINED, **FORMS[form])

    whole = (run("whole").directory / "model.safetensors").read_bytes()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed(PrivateStep, "__call__", lambda _, at, *rest: at == 4):
        run("killed")
    assert (run("killed").directory / "model.safetensors").read_bytes() == whole


def test_a_run_that_ends_early_releases_the_mean_of_its_last_weights(spots, plan, tmp_path, monkeypatch):
    choices = {**TRAINED, **FORMS["uta"]}
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed(PrivateStep, "__call__", lambda _, at, *rest: at == 5):
        train("linear", spots, plan, directory=tmp_path / "run", **choices)
    kept = Checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    assert kept.step == 5
    assert {name.partition(".")[0] for name in kept.average} == {"0", "1", "2"}
    of_run = RunDirectory(tmp_path / "run")
    record = of_run.read_json("settings.json")
    job = job_for(spots, plan, Settings.from_dict(record["settings"]))
    job = replace(job, performance=replace(job.performance, **record["performance"]))
    done = finish_early(job, of_run)
    weights, _ = read_safetensors(done.directory / "model.safetensors")
    for name, value in weights.items():
        mean = torch.stack([kept.average[f"{slot}.{name}"] for slot in range(3)]).double().mean(0).float()
        assert torch.equal(value, mean)
        assert not torch.equal(value, kept.model[name])


class Normalised(nn.Module):
    """A model with batch norm, for public data alone."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 4)

    def forward(self, images):
        return self.head(self.norm(images.flatten(1)))


def test_buffers_are_not_averaged(spots, tmp_path):
    shown = replace(spots, public=True)
    choices = {"steps": 9, "batch_size": 50, "learning_rate": 0.5, "threads": 1, "seed": 1}
    run = pretrain(Normalised(), shown, directory=tmp_path / "run", **choices, aggregate="uta", aggregate_last=4)
    mean, last = (read_safetensors(run.directory / name)[0] for name in ("model.safetensors", "model-last.safetensors"))
    for name in mean:
        assert torch.equal(mean[name], last[name]) == name.startswith(("norm.running", "norm.num")), name


def test_every_choice_is_in_the_record():
    """Keys of seeded runs and commitments of ledgers are made of it."""
    plain = settings()
    assert plain.to_dict().keys() == choices_of(Settings).keys()
    for chosen in (plain, settings(**EMAS, ema_form="constant"), settings(**UTA, aggregate_restart=False)):
        assert Settings.from_dict(chosen.to_dict()) == chosen
    assert settings(aggregate="uta").to_dict()["aggregate_last"] == 5
    assert settings(aggregate="uta").to_dict()["aggregate_restart"] is True
    assert settings(**EMAS).to_dict()["aggregate_restart"] is False
    short = plain.to_dict()
    del short["momentum"]
    with pytest.raises(SfumatoError, match="missing or unknown fields: momentum"):
        Settings.from_dict(short)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"aggregate": "opa"}, "aggregate must be"),
        ({"aggregate": "ema"}, r"ema is 0 \(no moving average\)"),
        ({"aggregate": "uta", "ema": 0.9}, "aggregate is uta, but ema is 0.9"),
        ({"aggregate": "ema", "ema": 0.9, "aggregate_last": 3}, "aggregate_last is 3, but a moving average covers all"),
        ({"aggregate_last": 3}, "aggregate_last given, but gradients are not taken at an average"),
        ({"aggregate_from": 3, "aggregate_restart": True}, "aggregate_from and aggregate_restart given, but"),
        ({"aggregate": "uta", "aggregate_last": 0}, "aggregate_last must be"),
        ({"aggregate": "uta", "aggregate_from": -1}, "aggregate_from must be a step number, got -1"),
        ({"aggregate": "uta", "aggregate_from": 1.5}, "aggregate_from must be a step number, got 1.5"),
        ({"ema_form": "constant"}, "there is no moving average"),
        ({"ema_form": "cold", "ema": 0.9}, "ema_form must be"),
    ],
)
def test_what_would_come_to_nothing_is_refused(spots, plan, choices, words):
    with pytest.raises(SfumatoError, match=words):
        job_for(spots, plan, settings(**choices))


def test_a_beginning_beyond_the_last_step_is_refused(spots, plan):
    with pytest.raises(SfumatoError, match=f"aggregate_from is {STEPS}, but the run has only {STEPS} steps"):
        job_for(spots, plan, settings(**UTA, aggregate_from=STEPS))


def test_the_rules_leave_the_moving_average_out_beside_uta(spots, tmp_path):
    decided = Experiment(aggregate="uta", model="linear", epsilon=8.0).decide(spots)
    assert (decided.settings.averages.ema, decided.settings.averages.aggregate_last) == (0.0, 5)
    assert any(line.startswith("aggregate last 5 (by rule") for line in decided.reasons)
    assert any(line.startswith("aggregate restart True (by rule") for line in decided.reasons)
    assert decided.settings.averages.aggregate_restart
    assert Experiment(aggregate="ema", model="linear", epsilon=8.0).decide(spots).settings.averages.ema == 0.9999
    with pytest.raises(SfumatoError, match=r"but ema is 0\.9"):
        Experiment(aggregate="uta", ema=0.9, model="linear", epsilon=8.0).decide(spots)
    with pytest.raises(SfumatoError, match=r"but ema is 0\.9"):
        train("linear", spots, epsilon=8.0, directory=tmp_path / "a", averaging=EMA(0.9), aggregate="uta")
    choices = {"epsilon": 8.0, "delta": 1e-3, "steps": 3, "threads": 1, "seed": 1}
    run = train("linear", spots, directory=tmp_path / "b", aggregate="uta", **choices)
    record = RunDirectory(run.directory).read_json("settings.json")["settings"]
    assert (record["ema"], record["aggregate"], record["aggregate_last"]) == (0.0, "uta", 5)
    assert load(run.directory).module is not None


def test_a_dry_run_knows_the_copies(spots, plan):
    one = sum(value.nbytes for value in copied(job_for(spots, plan, settings()).module).values())
    for choices, copies in [
        ({}, 0),
        ({"ema": 0.9}, 1),
        (EMAS, 2),
        ({**EMAS, "aggregate_restart": True}, 1),
        (UTA, 3 + 1),
        ({**UTA, "aggregate_restart": False}, 3 + 2),
    ]:
        assert average_bytes(job_for(spots, plan, settings(**choices))) == copies * one, choices


def test_every_choice_has_a_key_of_its_own(spots, plan):
    """Runs that share their noise would show the gradient without it in their difference."""
    chosen = [
        *(settings(seed=5, ema=0.7, **more) for more in ({}, {"ema_form": "constant"}, {"aggregate": "ema"})),
        *(settings(seed=5, **UTA, **more) for more in ({}, {"aggregate_from": 1}, {"aggregate_restart": False})),
        settings(seed=5, aggregate="uta", aggregate_last=4),
    ]
    keys = {prepare(None, spots, plan, one, device="cpu", threads=1).key.check_value("0" * 64) for one in chosen}
    assert len(keys) == len(chosen)
