"""Many models at once take the steps that one model takes: the same clipped sums, the same noise, the same coins."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, Sampler, SfumatoError
from sfumato.averaging.choices import Averages
from sfumato.gradients import ClippedGradient
from sfumato.models.losses import LOSSES
from sfumato.optim.descent import Descent
from sfumato.privacy import User
from sfumato.training.step import PrivateStep, descend
from sfumato.training.weights import optimizer_for
from studies import many_models
from studies.many_models import Layer, Training, clipped_sum
from studies.worlds import init_layers, losses_at

EXAMPLES, WIDTH, CLASSES = 12, 5, 3
SGD = Descent(optimizer="sgd", learning_rate=0.5, momentum=0.0)


def a_plan(**given):
    asked = {"batch_size": 5, "steps": 4, "noise_multiplier": 1.3, "delta": 1e-3, "max_norm": 0.4}
    return PrivacyPlan.calibrate(examples=EXAMPLES, **asked | given)


def some_records(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=generator) * torch.logspace(-3, 1, EXAMPLES)[:, None]
    inputs[3] = 0
    return inputs, torch.arange(EXAMPLES) % CLASSES


def some_layers(hidden, models=3, seed=1):
    """Layers of models that differ."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, WIDTH), (CLASSES, 4)] if hidden else [(CLASSES, WIDTH)]
    return [
        Layer(torch.randn(models, *shape, generator=generator), torch.randn(models, shape[0], generator=generator))
        for shape in shapes
    ]


def module_of(layers, model):
    """One of the models, as a module of torch."""
    linear = []
    for weight, bias in layers:
        one = nn.Linear(weight.shape[2], weight.shape[1])
        one.weight.data, one.bias.data = weight[model].clone(), bias[model].clone()
        linear += [one, nn.Tanh()]
    return nn.Sequential(*linear[:-1])


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("loss", many_models.LOSSES)
def test_the_clipped_sum_is_that_of_the_real_gradient(hidden, loss):
    inputs, targets = some_records()
    layers = some_layers(hidden)
    taken = torch.rand(3, EXAMPLES, generator=torch.Generator().manual_seed(2)) < 0.6
    for max_norm in (0.01, 0.4, 100.0):
        ours = clipped_sum(layers, inputs, targets, taken, max_norm=max_norm, loss=loss)
        for model in range(3):
            gradient = ClippedGradient(module_of(layers, model), LOSSES[loss], max_norm=max_norm)
            theirs = gradient(inputs[taken[model]], targets[taken[model]]).gradients.values()
            flat = [value[model] for layer in ours for value in layer]
            for mine, real in zip(flat, theirs, strict=True):
                torch.testing.assert_close(mine, real.float(), rtol=1e-4, atol=1e-5 * max_norm)


CHOICES = [
    SGD,
    Descent(optimizer="momentum", learning_rate=0.3, momentum=0.9, schedule="cosine", warmup=1),
    Descent(optimizer="adam", learning_rate=0.1, weight_decay=0.01),
]


@pytest.mark.parametrize("descent", CHOICES, ids=lambda one: one.optimizer)
def test_without_noise_all_steps_are_those_of_private_steps(descent, monkeypatch):
    """Full batches, since coins differ: weights after all steps, averaged or not."""
    from sfumato.optim import schedule
    from sfumato.training.weights import average_for, set_rate, trained_parameters

    plan, (inputs, targets) = a_plan(batch_size=EXAMPLES), some_records()
    monkeypatch.setattr(many_models, "noisy_mean", lambda total, plan, generator: total / (EXAMPLES * plan.max_norm))
    monkeypatch.setattr(Noise, "standard_deviation", 1e-12)
    layers, averages = some_layers(True, models=1), Averages(ema=0.0 if descent is SGD else 0.9)
    training = Training(plan=plan, descent=descent, averages=averages)
    ours = training(layers, inputs, targets, models=2, generator=torch.Generator())

    module, average = module_of(layers, 0), average_for(averages)
    gradient = ClippedGradient(module, LOSSES["softmax"], max_norm=plan.max_norm)
    step = PrivateStep(
        plan=plan, gradient=gradient, noise=Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(0))
    )
    optimizer, trained = optimizer_for(module, descent), dict(module.named_parameters())
    rate = schedule(descent.schedule, steps=plan.steps, warmup=descent.warmup)
    state = average.begin(trained_parameters(module)) if average else {}
    for number in range(plan.steps):
        set_rate(optimizer, descent.learning_rate * rate(number))
        descend(optimizer, trained, step(number, [(inputs, targets)]))
        state = average.update(state, trained, number) if average else state
    theirs = average.averaged_weights(state) if average else trained
    for mine, real in zip([value for layer in ours for value in layer], theirs.values(), strict=True):
        for model in range(2):
            torch.testing.assert_close(mine[model], real.detach(), rtol=1e-3, atol=1e-4)


def test_the_noise_has_the_scale_of_the_real_steps():
    """A test that would reject noise of 5% more or less: by quantiles against the law, and by the real step's own."""
    plan = a_plan()
    ours = many_models.noisy_mean(torch.zeros(200, 100), plan, torch.Generator().manual_seed(3)).numpy().ravel()
    model = nn.Linear(20_000, 1, bias=False)
    gradient = ClippedGradient(model, lambda outputs, targets: 0 * outputs.sum(), max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(4))
    theirs = PrivateStep(plan=plan, gradient=gradient, noise=noise)(0, [])["weight"].numpy().ravel()
    deviation = plan.noise_multiplier / plan.expected_batch_size
    assert stats.kstest(ours / deviation, "norm").pvalue > 1e-3
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)
    assert stats.kstest(ours / deviation * 1.05, "norm").pvalue < 1e-3


def test_losses_of_trained_models_have_the_law_of_those_of_real_steps():
    """All of it at once: coins, clipping, noise, divisor, descent; and another batch size has another law."""
    plan, (inputs, targets), models = a_plan(steps=3), some_records(), 120

    def by_real_steps(seed):
        module, key = nn.Linear(WIDTH, CLASSES), RunKey.from_seed(seed)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        gradient = ClippedGradient(module, LOSSES["softmax"], max_norm=plan.max_norm)
        noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
        step, sampler = PrivateStep(plan=plan, gradient=gradient, noise=noise), Sampler(plan, key, records=EXAMPLES)
        optimizer = optimizer_for(module, SGD)
        for number in range(plan.steps):
            rows = torch.from_numpy(sampler.draw(number))
            pieces = [(inputs[rows], targets[rows])] if len(rows) else []
            descend(optimizer, dict(module.named_parameters()), step(number, pieces))
        return nn.functional.cross_entropy(module(inputs[-1:]), targets[-1:]).item()

    def at_once(plan):
        training = Training(plan=plan, descent=SGD, averages=Averages(ema=0.0))
        start, generator = init_layers([WIDTH, CLASSES], torch.Generator()), torch.Generator().manual_seed(5)
        layers = training(start, inputs, targets, models=20 * models, generator=generator)
        return losses_at(layers, inputs[-1:], targets[-1:])[:, 0].numpy()

    real = np.array([by_real_steps(seed) for seed in range(models)])
    assert stats.ks_2samp(real, at_once(plan)).pvalue > 1e-3
    assert stats.ks_2samp(real, at_once(a_plan(steps=3, batch_size=2))).pvalue < 1e-3


def test_members_alone_have_a_part():
    inputs, targets = some_records()
    members = torch.zeros(2, EXAMPLES, dtype=torch.bool)
    members[0, :6] = True
    plan = a_plan(batch_size=EXAMPLES, noise_multiplier=1e-3, steps=1)
    training = Training(plan=plan, descent=SGD, averages=Averages(ema=0.0))
    start = init_layers([WIDTH, CLASSES], torch.Generator())
    found = training(start, inputs, targets, models=2, generator=torch.Generator().manual_seed(0), members=members)
    whole = clipped_sum(start, inputs, targets, members[:1], max_norm=plan.max_norm)
    moved = -SGD.learning_rate / (EXAMPLES * plan.max_norm) * whole[0].weight
    torch.testing.assert_close(found[0].weight[:1], moved, atol=3e-4, rtol=1e-4)
    assert found[0].weight[1].abs().max() < 3e-4


def test_models_that_are_trained_in_several_blocks_differ(monkeypatch):
    inputs, targets = some_records()
    monkeypatch.setattr(many_models, "NUMBERS_AT_ONCE", 2 * CLASSES * (WIDTH + 1))
    training = Training(plan=a_plan(), descent=SGD, averages=Averages(ema=0.0))
    start = init_layers([WIDTH, CLASSES], torch.Generator())
    found = training(start, inputs, targets, models=5, generator=torch.Generator().manual_seed(0))[0].weight
    assert found.shape == (5, CLASSES, WIDTH)
    assert len(np.unique(found[:, 0, 0].numpy())) == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"descent": Descent(optimizer="lamb", learning_rate=0.1)}, "got lamb"),
        ({"averages": Averages(ema=0.9, aggregate="ema")}, "gradients at the last weights"),
        ({"plan": "users"}, "the plan has"),
    ],
)
def test_what_these_steps_do_not_do_is_refused(given, words):
    if given.get("plan") == "users":
        given = {"plan": a_plan(batch_size=EXAMPLES, unit=User())}
    with pytest.raises(SfumatoError, match=words):
        Training(**{"plan": a_plan(), "descent": SGD, "averages": Averages(ema=0.0)} | given)
