"""The noise's distribution: scale (a wrong one is rejected), shape, independence of all draws."""

from functools import partial

import numpy as np
import pytest
import torch

from sfumato import Gaussian, Noise, RunKey, SfumatoError
from sfumato.privacy.mechanism import Tree
from sfumato.randomness import noise as noises
from sfumato.randomness.noise import blocks
from sfumato.randomness.noise.blocks import GaussianNoise, PrefetchedNoise

SIZE = 40_000


def draw(
    step: int = 0, *, sigma: float = 2.0, max_norm: float = 0.5, name: str = "weight", seed: int = 0
) -> np.ndarray:
    noise = Noise(Gaussian(noise_multiplier=sigma), max_norm=max_norm, key=RunKey.from_seed(seed))
    return noise.add({name: torch.zeros(SIZE)}, step)[name].double().numpy()


@pytest.mark.parametrize(
    "far", [*(2**power for power in (1, 8, 16, 20)), *(10**power for power in range(1, 7)), 999, 1001]
)
def test_no_noise_comes_again(far):
    """Of two releases with one noise the difference has none."""
    noise = Noise(Gaussian(noise_multiplier=1.0), max_norm=1.0, key=RunKey.from_seed(0))
    for step in (0, 7):
        one, other = (noise.add({"weight": torch.zeros(8)}, place)["weight"] for place in (step, step + far))
        assert not torch.isclose(one, other).any()


def test_the_noise_is_drawn_in_float64_and_rounded_once_with_the_sum():
    """As every statement says; digit for digit, since a resumed run must have the noise that it had."""
    key, generator = RunKey.from_seed(0), np.random.default_rng(1)
    noise = Noise(Gaussian(noise_multiplier=1.7), max_norm=0.3, key=key)
    for step, name, shape in ((0, "weight", (40, 5)), (9, "bias", (7,)), (9, "gain", ())):
        total = generator.normal(size=shape, scale=10)
        drawn = key.generator("noise", step, name).standard_normal(shape, dtype=np.float64)
        expected = np.asarray(total + 1.7 * 0.3 * drawn, dtype=np.float32)
        found = noise.add({name: torch.tensor(total)}, step)[name]
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy(), expected)


def test_many_parameters_in_threads_give_what_one_gives():
    noise = Noise(Gaussian(noise_multiplier=1.0), max_norm=1.0, key=RunKey.from_seed(0))
    total = {f"layer{place}": torch.zeros(300_000) for place in range(4)}
    together = noise.add(total, 0)
    for name, value in total.items():
        assert torch.equal(together[name], noise.add({name: value}, 0)[name])


@pytest.mark.parametrize("max_norm", [0.0, float("inf"), float("nan")])
def test_a_norm_that_bounds_nothing_is_refused(max_norm):
    with pytest.raises(SfumatoError, match="max_norm must"):
        Noise(Gaussian(noise_multiplier=1.0), max_norm=max_norm, key=RunKey.from_seed(0))


def test_large_parameters_are_drawn_in_blocks_of_their_own_generators():
    key, count = RunKey.from_seed(0), blocks.BLOCK + 4
    noise = Noise(Gaussian(noise_multiplier=3.0), max_norm=0.5, key=key)
    found = noise.add({"a": torch.zeros(4, count // 4)}, 3)["a"].flatten()
    first = key.generator("noise", 3, "a").standard_normal(blocks.BLOCK)
    rest = key.generator("noise 1", 3, "a").standard_normal(len(found) - blocks.BLOCK)
    assert torch.equal(found, torch.from_numpy(1.5 * np.concatenate([first, rest])).float())


def test_a_state_knows_its_step():
    noise = Noise(Gaussian(noise_multiplier=1.0), max_norm=1.0, key=RunKey.from_seed(0))
    total = {"a": torch.zeros(3)}
    first, state = noise.add(total, 0, noise.begin())
    second, state = noise.add(total, 1, state)
    assert state.step == 2
    assert torch.equal(first["a"], noise.add(total, 0)["a"])
    assert not torch.equal(first["a"], second["a"])
    for wrong in (0, 1, 3):
        with pytest.raises(SfumatoError, match="the noise's state is that of step 2"):
            noise.add(total, wrong, state)


@pytest.mark.parametrize("mechanism", [Gaussian(noise_multiplier=2.0), Tree(noise_multiplier=2.0)])
def test_noise_that_is_drawn_ahead_for_a_device_is_the_same(mechanism, monkeypatch):
    """Several blocks, an empty parameter, a number alone; and the state goes on as it would."""
    monkeypatch.setattr(blocks, "BLOCK", 7)
    monkeypatch.setattr(blocks, "PIECE", 3)
    total = {"a": torch.arange(20.0).reshape(4, 5).double(), "none": torch.zeros(0), "b": torch.tensor(3.0)}
    noise = Noise(mechanism, max_norm=0.5, key=RunKey.from_seed(1))
    here, there = noise.begin(), noise.begin()
    for step in range(3):
        expected, here = noise.add(total, step, here)
        with monkeypatch.context() as on_a_device:
            shapes = {name: value.shape for name, value in total.items()}
            ahead = partial(PrefetchedNoise, shapes=shapes, device=torch.device("cpu"))
            on_a_device.setattr(noises, "CPUNoise", ahead)
            coming = noise.prepare(total, step, there)
            found, there = coming.add_to(total)
        assert isinstance(coming.pending, PrefetchedNoise)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == torch.float32
            assert torch.equal(found[name], value)
        for name, value in here.tensors.items():
            assert torch.equal(there.tensors[name], value)
    assert here.step == there.step == 3


def test_an_error_in_another_thread_is_raised_where_the_noise_is_wanted(monkeypatch):
    def fails(*_):
        raise ValueError("no generator")

    monkeypatch.setattr(RunKey, "generator", fails)
    drawing = partial(
        blocks.draw,
        GaussianNoise(Gaussian(noise_multiplier=1.0)),
        {"a": torch.Size([3])},
        {"a": torch.zeros(0, 3, dtype=torch.float64)},
        0,
        RunKey.from_seed(0),
        1.0,
        (0, 1),
    )
    ahead = PrefetchedNoise(drawing, {"a": torch.Size([3])}, torch.device("cpu"))
    with pytest.raises(ValueError, match="no generator"):
        ahead.add_to({"a": torch.zeros(3)})
