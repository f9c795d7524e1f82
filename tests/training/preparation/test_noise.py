"""Runs with secure noise: what they record and promise, that their sums are exact, and what cannot have it."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, Noise, PrivacyPlan, PrivateStep, RunKey, SfumatoError, load, train
from sfumato.experiment.settings import Settings
from sfumato.gradients import GridSum
from sfumato.gradients.grid import STEP
from sfumato.privacy import Circumstances, FixedOrder
from sfumato.privacy.clipping import NoiseGrid
from sfumato.privacy.mechanism import Tree
from sfumato.randomness.noise.secure import SecureNoise, grid_of, rounded_gaussians, scale_of
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.job import PublicTraining

pytestmark = pytest.mark.usefixtures("one_secret")

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=4, noise_multiplier=2.0, delta=1e-3)
PLAIN = {"learning_rate": 0.5, "averaging": None, "threads": 1, "device": "cpu", "noise": "secure"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, spots):
    return train("linear", spots, PLAN, directory=tmp_path_factory.mktemp("secure") / "run", **PLAIN)


def record(run, name: str = "settings.json") -> dict:
    return json.loads((run.directory / name).read_text("utf-8"))


def weights(run) -> dict:
    return load(run.directory).module.state_dict()


def test_a_run_records_its_noise_and_the_statement_says_that_it_holds(run):
    settings, elements = record(run), sum(value.numel() for value in weights(run).values())
    assert settings["settings"]["noise"] == "secure"
    assert settings["performance"]["micro_batch"] == 1
    grid = NoiseGrid(exponent=grid_of(2.0, elements).exponent, elements=elements, alone=True)
    assert run.statement.circumstances.noise_grid == grid
    assert any("correctly to multiples of 2^-31 of the clipping norm" in line for line in run.statement.plain)
    assert not any("Floating-point" in line for line in run.statement.not_covered)
    assert any("SHAKE-256 and Philox" in line for line in run.statement.not_covered)
    again = Circumstances.from_dict(json.loads(json.dumps(run.statement.circumstances.to_dict())))
    assert again == run.statement.circumstances
    assert run.statement.epsilon == PLAN.epsilon(), "the plan's noise multiplier is kept"


def test_standard_noise_has_no_grid(tmp_path, spots):
    run = train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN | {"noise": "standard"})
    assert record(run)["settings"]["noise"] == "standard"
    assert record(run, "statement.json")["circumstances"]["noise_grid"] is None
    assert any("Floating-point artefacts of the noise" in line for line in run.statement.not_covered)


def test_gradients_that_are_computed_together_are_named_as_not_covered(tmp_path, spots, run):
    together = train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN, micro_batch=8)
    assert not together.statement.circumstances.noise_grid.alone
    assert any("Floating-point artefacts inside a sum" in line for line in together.statement.not_covered)
    assert together.statement.sentence == run.statement.sentence


def test_each_step_of_a_run_has_the_noise_that_was_asked_for(tmp_path, spots, monkeypatch):
    drawn = {Noise: [], SecureNoise: []}
    for kind, steps in drawn.items():

        def ahead(self, like, step, *given, ahead=kind.prepare, steps=steps, **known):
            steps.append(step)
            return ahead(self, like, step, *given, **known)

        monkeypatch.setattr(kind, "prepare", ahead)
    train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN)
    assert drawn == {Noise: [], SecureNoise: list(range(PLAN.steps))}


def test_a_run_that_was_killed_goes_on_with_the_same_noise(tmp_path, spots, run, monkeypatch):
    descend, steps = loop.descend, []

    def killed(*given):
        steps.append(given)
        if len(steps) == 3:
            raise KeyboardInterrupt
        descend(*given)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", killed)
        with pytest.raises(KeyboardInterrupt):
            train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN)
    assert not RunDirectory(tmp_path / "run").finished
    with pytest.raises(SfumatoError, match="noise was secure"):
        train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN | {"noise": "standard", "micro_batch": 1})
    on = train("linear", spots, PLAN, directory=tmp_path / "run", **PLAIN)
    for name, value in weights(run).items():
        assert torch.equal(value, weights(on)[name])


SMALL = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=4, noise_multiplier=1.5, delta=1e-4)


def one_by_one(count: int = 12) -> tuple[ClippedGradient, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    gradient = ClippedGradient(module, functional.cross_entropy, max_norm=1.0)
    return gradient, list(zip((3 * torch.randn(count, 6)).split(1), (torch.arange(count) % 3).split(1), strict=True))


def test_one_example_moves_the_sum_by_its_own_vector_alone_and_by_no_more_than_the_norm():
    gradient, examples = one_by_one()

    def total(some) -> dict[str, torch.Tensor]:
        found = GridSum(gradient.zeros(), max_norm=1.0)
        for one in some:
            found.add(gradient(*one).gradients)
        return found.integers

    whole = total(examples)
    for place, one in enumerate(examples):
        without, own = total(examples[:place] + examples[place + 1 :]), total([one])
        assert all(torch.equal(whole[name] - without[name], own[name]) for name in whole)
        assert sum(float(value.double().square().sum()) for value in own.values()) ** 0.5 <= 1 / STEP


def test_a_step_releases_the_rounded_sum_plus_rounded_gaussians_over_the_divisor():
    gradient, examples = one_by_one()
    key = RunKey.from_seed(4)
    step = PrivateStep(plan=SMALL, gradient=gradient, noise=SecureNoise(SMALL.mechanism, max_norm=1.0, key=key))
    found = step(1, examples)
    elements = sum(value.numel() for value in found.values())
    exponent = grid_of(1.5, elements).exponent
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in found.items()}
    for one in examples:
        for name, value in gradient(*one).gradients.items():
            total[name] += (value.double() / STEP).round() * STEP
    for name, value in total.items():
        drawn = rounded_gaussians(key.xof_seed("secure noise 0", 1, name), value.numel(), scale_of(1.5, elements))
        rounded = (value / 2.0**exponent + 0.5).floor() + torch.from_numpy(drawn).view(value.shape)
        assert torch.equal(found[name], (rounded * 2.0**exponent).float() / 20)


def test_what_cannot_have_it_is_refused_before_anything_is_spent(tmp_path, spots):
    where = {"directory": tmp_path / "run"}
    correlated = replace(PLAN, participation=FixedOrder(batch_size=50), mechanism=Tree(noise_multiplier=2.0), steps=4)
    with pytest.raises(SfumatoError, match="noise is secure, but the mechanism adds up noise of several steps"):
        train("linear", spots, correlated, **where, **PLAIN)
    asked = {**PLAIN, "noise_multiplier": 4.0, "steps": 2, "batch_size": 100}
    with pytest.raises(SfumatoError, match="noise is secure, but the mechanism adds up noise of several steps"):
        train("linear", spots, mechanism="tree", **where, **asked)
    with pytest.raises(SfumatoError, match="noise must be one of standard, secure"):
        train("linear", spots, PLAN, **where, **PLAIN | {"noise": "sure"})
    with pytest.raises(SfumatoError, match="noise is secure, but training without privacy has no noise"):
        PublicTraining(settings=Settings(model="linear", learning_rate=1.0, noise="secure"), steps=2, batch_size=4)
    assert not (tmp_path / "run").exists()
