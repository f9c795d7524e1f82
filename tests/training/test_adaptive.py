"""A clipping norm that follows a quantile, against Andrew et al. by hand, and against bugs planted on purpose."""

import pytest
import torch

from sfumato import Noise, Poisson, PrivacyPlan, RunKey, SfumatoError
from sfumato.privacy import Gaussian, QuantileClipping, User
from sfumato.randomness import NoiseState
from sfumato.training.step import COUNT, NORM, AdaptiveStep
from tests.papers.xu2022 import Vectors

VECTORS = 40


def plan(noise: float, steps: int = 60, **clipping) -> PrivacyPlan:
    return PrivacyPlan(
        population=400,
        participation=Poisson(batch_size=100),
        mechanism=Gaussian(noise_multiplier=noise),
        steps=steps,
        delta=1e-5,
        clipping=QuantileClipping(**{"max_norm": 1.0, "count_noise": VECTORS / 20, **clipping}),
        unit=User(clients=True),
    )


def step_of(asked: PrivacyPlan, seed: int = 0, query: object = None, **further) -> AdaptiveStep:
    noise = Noise(asked.mechanism, max_norm=1.0, key=RunKey.from_seed(seed))
    return AdaptiveStep(plan=asked, gradient=query or Vectors(), noise=noise, **{"divisor": VECTORS, **further})


def vectors() -> torch.Tensor:
    """40 vectors of norms 0.1, 0.2, ..., 4."""
    directions = torch.nn.functional.normalize(
        torch.randn(VECTORS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    return directions * torch.arange(1, VECTORS + 1).unsqueeze(1) / 10


def test_noise_of_vectors_and_of_the_count_are_what_the_plan_counts():
    """Over many keys: z C_t on each coordinate of the sum, sigma_b on the count, however large C_t is."""
    asked = plan(1.5, count_noise=3.0, quantile=0.5, rate=0.1)
    given = {NORM: torch.tensor(0.2, dtype=torch.float64)}
    clean, sums, counts = Vectors(0.2)(vectors()), [], []
    for seed in range(800):
        step = step_of(asked, seed)
        gradient, state = step(0, [(vectors(),)], NoiseState(step=0, tensors=dict(given)))
        sums.append(gradient["w"].double() * VECTORS - clean.gradients["w"])
        share = 0.5 - torch.log(state.tensors[NORM] / 0.2) / 0.1
        counts.append(float((share - 0.5) * VECTORS - clean.within))
    assert torch.stack(sums).std().item() == pytest.approx(1.5 * 0.2, rel=0.06)
    within = [count for count in counts if abs(count) < 100]
    assert torch.tensor(within).std().item() == pytest.approx(3.0, rel=0.35)  # the share is cut at 0 and 1
    assert asked.clipping.joint_noise(1.5) == pytest.approx((1.5**-2 + 6.0**-2) ** -0.5)


def test_the_count_is_no_part_of_the_gradient_and_the_norm_is_kept_from_step_to_step():
    step = step_of(plan(1.0))
    gradient, state = step(0, [(vectors(),)], NoiseState(step=0))
    assert set(gradient) == {"w"}
    assert COUNT not in state.tensors
    _, again = step(0, [(vectors(),)], NoiseState(step=0))
    assert torch.equal(state.tensors[NORM], again.tensors[NORM])


def test_other_plans_noises_and_divisors_are_refused():
    asked = plan(1.0)
    with pytest.raises(SfumatoError, match="give a plan with clipping=Quantile"):
        step_of(asked, divisor=None)
    with pytest.raises(SfumatoError, match=r"build Noise with plan\.mechanism and max_norm=1"):
        AdaptiveStep(
            plan=asked,
            gradient=Vectors(),
            noise=Noise(asked.mechanism, max_norm=2.0, key=RunKey.from_seed(0)),
            divisor=1.0,
        )
    with pytest.raises(SfumatoError, match=r"step must lie between 0 and 59"):
        step_of(asked)(60, [], NoiseState(step=60))


def test_a_vector_is_never_longer_than_the_norm_of_its_step():
    """By how much one that is far longer than C_t moves the sum, under the same noise, at any C_t."""
    step = step_of(plan(1.0))
    for norm in (0.2, 1.0, 3.0):
        sums = []
        for batches in ([(100 * vectors()[-1:],)], []):
            given = {NORM: torch.tensor(norm, dtype=torch.float64)}
            sums.append(step(0, batches, NoiseState(step=0, tensors=given))[0]["w"].double() * VECTORS)
        assert (sums[0] - sums[1]).norm().item() == pytest.approx(norm, rel=1e-5)
