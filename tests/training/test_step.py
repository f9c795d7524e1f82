"""The private step against the equation; tests/audit plants bugs in it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, Gaussian, Noise, Poisson, PrivacyPlan, PrivateStep, RunKey, SfumatoError
from sfumato.gradients.grid import MOST_EXAMPLES, STEP
from sfumato.gradients.sums import QueuedSum
from sfumato.privacy import FixedClipping, QuantileClipping, User
from sfumato.randomness import NoiseState
from sfumato.randomness.noise import PreparedNoise
from sfumato.training.step import delay_by_one, descend

PLAN = PrivacyPlan(
    population=200,
    participation=Poisson(batch_size=20),
    mechanism=Gaussian(noise_multiplier=1.5),
    steps=400,
    delta=1e-4,
    clipping=FixedClipping(0.3),
)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data(count: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.randn(count, 6, generator=generator), torch.arange(count) % 3


def step_of(plan: PrivacyPlan = PLAN, *, seed: int = 0, module: nn.Module | None = None) -> PrivateStep:
    gradient = ClippedGradient(module or model(), functional.cross_entropy, max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(seed))
    return PrivateStep(plan=plan, gradient=gradient, noise=noise)


def flat(gradients: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([value.flatten() for value in gradients.values()]).double().numpy()


def truth(inputs, targets) -> np.ndarray:
    """sum_i clip_C(g_i), one example at a time."""
    module, total = model(), 0.0
    for x, y in zip(inputs, targets, strict=True):
        module.zero_grad()
        functional.cross_entropy(module(x[None]), y[None]).backward()
        g = np.concatenate([p.grad.flatten().double().numpy() for p in module.parameters()])
        total = total + g * min(1.0, PLAN.max_norm / np.linalg.norm(g))
    return total


def test_what_many_small_pieces_add_up_to_is_not_rounded_away():
    """In float32 nothing of them would be left: each is less than half of the last digit of the sum before."""
    gradient = ClippedGradient(nn.Linear(2, 1, bias=False), lambda outputs, _: outputs.sum(), max_norm=PLAN.max_norm)
    noise = Noise(PLAN.mechanism, max_norm=PLAN.max_norm, key=RunKey.from_seed(0))
    step, unused = PrivateStep(plan=PLAN, gradient=gradient, noise=noise), torch.zeros(4096)
    large, small = (torch.full((4096, 2), 0.125), unused), (torch.full((1, 2), 1e-5), unused[:1])
    assert torch.tensor(512.0) + 1e-5 == 512
    difference = (flat(step(0, [large, *[small] * 200])) - flat(step(0, [large]))) * 20 * PLAN.max_norm
    assert difference == pytest.approx(200 * 1e-5, rel=0.1)


def test_the_divisor_is_the_expected_batch_size_and_not_the_realised_one():
    inputs, targets = data(5)
    found = flat(step_of()(0, [(inputs, targets)])) - flat(step_of()(0, []))
    assert np.allclose(found * 20 * PLAN.max_norm, truth(inputs, targets), atol=1e-6)


@pytest.mark.parametrize("step", [-1, 400])
def test_a_step_outside_the_plan_is_refused(step):
    with pytest.raises(SfumatoError, match=r"step must lie between 0 and 399"):
        step_of()(step, [])


def test_parts_that_do_not_fit_the_plan_are_refused():
    gradient = ClippedGradient(model(), functional.cross_entropy, max_norm=1.0)
    noise = Noise(PLAN.mechanism, max_norm=1.0, key=RunKey.from_seed(0))
    with pytest.raises(SfumatoError, match=r"clips to 1.0, but the plan says max_norm 0.3"):
        PrivateStep(plan=PLAN, gradient=gradient, noise=noise)
    gradient = ClippedGradient(model(), functional.cross_entropy, max_norm=0.3)
    for wrong in (
        Noise(PLAN.mechanism, max_norm=0.29, key=RunKey.from_seed(0)),
        Noise(Gaussian(noise_multiplier=1.49), max_norm=0.3, key=RunKey.from_seed(0)),
    ):
        with pytest.raises(SfumatoError, match="but the plan needs"):
            PrivateStep(plan=PLAN, gradient=gradient, noise=wrong)


def test_a_gradient_of_another_sensitivity_than_the_theorem_s_is_refused():
    class Twice(ClippedGradient):
        def sensitivity(self, adjacency):
            return 2 * super().sensitivity(adjacency)

    twice = Twice(model(), functional.cross_entropy, max_norm=0.3)
    noise = Noise(PLAN.mechanism, max_norm=0.6, key=RunKey.from_seed(0))
    with pytest.raises(SfumatoError, match=r"sensitivity for one example is 0\.6"):
        PrivateStep(plan=PLAN, gradient=twice, noise=noise)


def test_vectors_of_what_the_plan_s_unit_is_not_are_refused():
    by_users = replace(PLAN, unit=User())
    with pytest.raises(SfumatoError, match="the gradient sums over examples, but the plan's unit is User") as error:
        step_of(by_users)
    assert "needs a sum over users" in error.value.problem


def test_a_sum_over_clients_moves_by_twice_the_norm_and_its_noise_is_in_norms():
    class Clients(ClippedGradient):
        sums_over = "clients"

        def sensitivity(self, adjacency):
            return 2 * super().sensitivity(adjacency)

    plan = replace(PLAN, unit=User(clients=True))
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(0))
    step = PrivateStep(plan=plan, gradient=Clients(model(), functional.cross_entropy, max_norm=0.3), noise=noise)
    assert np.array_equal(flat(step(0, [])), flat(step_of()(0, [])))
    assert plan.epsilon() == PLAN.with_noise(0.75).epsilon()

    class Once(ClippedGradient):
        sums_over = "clients"

    with pytest.raises(SfumatoError, match=r"sensitivity for one user is 0\.3, .* assumes 2\.0 times"):
        PrivateStep(plan=plan, gradient=Once(model(), functional.cross_entropy, max_norm=0.3), noise=noise)


def test_a_norm_that_is_to_follow_a_quantile_is_refused_where_it_would_stay():
    with pytest.raises(SfumatoError, match="but this step has a fixed one"):
        step_of(replace(PLAN, clipping=QuantileClipping(max_norm=0.3, count_noise=1.0)))


def test_larger_batches_than_a_sum_holds_are_refused():
    large = replace(PLAN, population=4 * MOST_EXAMPLES, participation=Poisson(batch_size=MOST_EXAMPLES + 1))
    with pytest.raises(SfumatoError, match="but a sum holds at most 16777216 examples; plan smaller batches"):
        step_of(large)
    step_of(replace(large, participation=Poisson(batch_size=MOST_EXAMPLES)))


@pytest.mark.parametrize("max_norm", [1e-9, 0.3, 1e6])
def test_sums_lie_on_the_grid_of_the_plan_s_clipping_norm(max_norm, monkeypatch):
    """On that of another norm they would be rounded by more than the clip factors leave room for, or overflow."""
    add, heard = PreparedNoise.add_to, []
    monkeypatch.setattr(PreparedNoise, "add_to", lambda self, total: (heard.append(total), add(self, total))[1])
    step_of(replace(PLAN, clipping=FixedClipping(max_norm)))(0, [data()])
    places = np.abs(flat(heard[0])) / (max_norm * STEP)
    assert places.max() > 1e6
    assert np.abs(places - places.round()).max() < 1e-3


def test_the_noise_gets_the_state_that_the_step_is_given():
    step = step_of()
    first, state = step(0, [], NoiseState(step=0))
    assert state.step == 1
    assert (flat(first) == flat(step(0, []))).all()
    for wrong in (0, 2):
        with pytest.raises(SfumatoError, match=f"the noise's state is that of step {wrong}, but step 1 was requested"):
            step(1, [], NoiseState(step=wrong))


def test_descend_uses_the_private_gradient_and_leaves_nothing_behind():
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    private = {name: torch.full_like(value, 2.0) for name, value in before.items()}
    descend(optimizer, dict(module.named_parameters()), private)
    for name, value in module.named_parameters():
        assert torch.allclose(value, before[name] - 1.0)
        assert value.grad is None


def test_a_sum_that_a_device_still_computes_is_read_when_the_next_has_been_asked_for():
    log = []

    class Noted(QueuedSum):
        def __init__(self, number):
            self.__dict__["number"] = number

    def sums():
        for number in range(3):
            log.append(f"asked {number}")
            yield Noted(number)
        log.append("plain")
        yield "plain"

    for found in delay_by_one(sums()):
        log.append(f"read {getattr(found, 'number', found)}")
    assert log == ["asked 0", "asked 1", "read 0", "asked 2", "read 1", "plain", "read plain", "read 2"]
    assert list(delay_by_one([])) == []
