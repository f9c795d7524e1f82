"""Steps of one fixed shape: padding of weight 0 fills up what truncated Poisson sampling draws."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, PrivateStep, RunKey, Sampler, train, verify
from sfumato.data import open_source
from sfumato.experiment import Settings
from sfumato.privacy import FixedClipping, Gaussian, Poisson, TruncatedPoisson
from sfumato.training.inputs import Inputs
from sfumato.training.preparation.estimate import estimate
from sfumato.training.preparation.prepare import prepare

KEY = RunKey.from_seed(0)
OPTIONS = {"optimizer": "sgd", "learning_rate": 1.0}
MODELS = {
    "images": {"model": "cnn"},
    "views": {"model": "cnn", "views": 3, "shift": 2, "flip": True},
    "zoom": {"model": "cnn", "views": 2, "zoom": 1.5},
    "trunk": {"model": "scattering"},
    "mirrored trunk": {"model": "scattering", "views": 2, "flip": True},
    "dropout": {"model": "module"},
}
PARTICIPANTS = [np.arange(0), np.array([17]), np.arange(3, 170, 13), np.arange(40, 67), np.arange(0, 200, 7)[:28]]


def plan_of(*, batch: int = 20, largest: int = 28) -> PrivacyPlan:
    return PrivacyPlan(
        population=200,
        participation=TruncatedPoisson(batch_size=batch, largest=largest),
        mechanism=Gaussian(noise_multiplier=2.0),
        steps=6,
        delta=1e-3,
        clipping=FixedClipping(0.5),
        adjacency="zero-out",
    )


def job_of(source, model: str, plan: PrivacyPlan, micro_batch: int):
    torch.manual_seed(0)
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4)) if model == "dropout" else None
    return prepare(dropping, source, plan, Settings(**MODELS[model], **OPTIONS, seed=0), micro_batch=micro_batch)


def unpadded(plan: PrivacyPlan) -> PrivacyPlan:
    """The same with steps of the size that they have."""
    return PrivacyPlan(
        population=plan.population,
        participation=Poisson(batch_size=plan.expected_batch_size),
        mechanism=plan.mechanism,
        steps=plan.steps,
        delta=plan.delta,
        clipping=plan.clipping,
    )


@pytest.mark.parametrize("micro_batch", [10, 1000])
@pytest.mark.parametrize("model", ["views", "trunk", "dropout"])
def test_every_step_has_the_same_shapes_whoever_takes_part(spots, model, micro_batch):
    job = job_of(spots, model, plan_of(), micro_batch)
    made, size = Inputs(job), min(micro_batch, 28)
    shapes = set()
    for participants in PARTICIPANTS:
        pieces = list(made.micro_batches(KEY, 3, participants))
        shapes.add(tuple(tuple((t.shape, t.dtype) for t in piece if t is not None) for piece in pieces))
        assert [len(inputs) for inputs, *_ in pieces] == [size] * -(-28 // size)
        assert sum(int(weights.sum()) for *_, weights in pieces) == len(participants)
    assert len(shapes) == 1


@pytest.mark.parametrize("model", MODELS)
def test_participants_have_the_inputs_that_they_have_without_padding(spots, model):
    job, plain = (job_of(spots, model, plan, 10) for plan in (plan_of(), unpadded(plan_of())))
    made, truth = Inputs(job), Inputs(plain)
    for participants in PARTICIPANTS:
        found = [
            [part[piece[3]] for part in piece[:3] if part is not None]
            for piece in made.micro_batches(KEY, 3, participants)
        ]
        expected = list(truth.micro_batches(KEY, 3, participants))
        for ours, theirs in zip(found, expected, strict=False):
            assert all(torch.equal(*pair) for pair in zip(ours, filter(torch.is_tensor, theirs), strict=True))
        assert not any(len(part) for ours in found[len(expected) :] for part in ours)


@pytest.mark.parametrize("model", MODELS)
def test_padding_holds_zeros_and_nobody_s_record(spots, model):
    made = Inputs(job_of(spots, model, plan_of(), 10))
    for shown, targets, _, weights in made.micro_batches(KEY, 3, np.arange(1, 8)):
        assert not shown[~weights].any()
        assert not targets[~weights].any()


@pytest.mark.parametrize("model", ["views", "trunk", "dropout"])
def test_the_sum_is_that_of_the_participants_to_the_rounding_of_float32(spots, model):
    """Not to the last bit: a kernel adds up a batch of another length in another order."""
    job, plain = (job_of(spots, model, plan, 10) for plan in (plan_of(), unpadded(plan_of())))
    noise = Noise(job.plan.mechanism, max_norm=job.plan.max_norm, key=KEY)
    steps = [PrivateStep(plan=each.plan, gradient=each.gradient, noise=noise) for each in (job, plain)]
    made = [Inputs(each) for each in (job, plain)]
    for participants in PARTICIPANTS:
        padded, expected = (
            step(3, own.micro_batches(KEY, 3, participants)) for step, own in zip(steps, made, strict=True)
        )
        for name, value in expected.items():
            assert torch.allclose(padded[name], value, rtol=0, atol=3e-7 * float(value.abs().max()))


def test_another_step_is_padded_by_other_draws_and_a_replay_by_the_same(spots):
    made = Inputs(job_of(spots, "dropout", plan_of(), 28))
    keys = [next(made.micro_batches(KEY, step, np.arange(3)))[2][3:] for step in (1, 1, 2)]
    assert torch.equal(keys[0], keys[1])
    assert not torch.equal(keys[0], keys[2])


def test_draws_of_any_size_are_filled_up_by_the_sampler_s_own_cut(spots):
    plan = plan_of(batch=20, largest=20)
    made, sampler = Inputs(job_of(spots, "images", plan, 8)), Sampler(plan, KEY, records=200)
    sizes = set()
    for step in range(6):
        pieces = list(made.micro_batches(KEY, step, sampler.draw(step)))
        assert [len(x) for x, *_ in pieces] == [8, 8, 8]
        sizes.add(sum(int(weights.sum()) for *_, weights in pieces))
    assert len(sizes) > 2
    assert 20 in sizes, "one of them was cut"


def test_a_run_pays_for_padding_and_says_so(spots):
    found, plain = (estimate(job_of(spots, "images", plan, 10)) for plan in (plan_of(), unpadded(plan_of())))
    assert (found.micro_batches, plain.micro_batches) == (3, 2)


def test_a_run_in_steps_of_one_shape_says_that_it_zeroes_one_example_out(tmp_path):
    source = open_source("digits", owner_key=bytes(32))
    plan = PrivacyPlan(
        population=source.examples,
        participation=TruncatedPoisson(batch_size=64, largest=72),
        mechanism=Gaussian(noise_multiplier=1.0),
        steps=6,
        delta=1e-5,
        adjacency="zero-out",
    )
    run = train("linear", source, plan, directory=tmp_path / "run", learning_rate=0.5, threads=1, micro_batch=40)
    assert run.steps == 6
    assert run.statement.plan == plan
    assert "under zero-out adjacency" in run.statement.sentence
    assert "at most 72 of them" in run.statement.sentence
    assert verify(run.directory).holds
