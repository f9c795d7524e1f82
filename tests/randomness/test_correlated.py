"""Noise with memory: it is C^-1 z of the very numbers drawn, of the right covariance, and the same after a kill."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from sfumato import Noise, RunKey, SfumatoError
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian, Mechanism, Tree
from sfumato.randomness.noise import NOISES, NoiseState, blocks
from sfumato.runs.checkpoint import Checkpoint

KEY = RunKey.from_seed(0)
SQUARE_ROOT = tuple(float(value) for value in np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, 64))]))
BANDS = BandedToeplitz(noise_multiplier=2.0, coefficients=SQUARE_ROOT[:5])
MECHANISMS = [
    BANDS,
    BandedToeplitz(noise_multiplier=2.0, coefficients=SQUARE_ROOT[:20]),
    Tree(noise_multiplier=2.0),
    Tree(noise_multiplier=2.0, steps_per_tree=5, completed=True),
]


def column(mechanism: BandedToeplitz, steps: int) -> np.ndarray:
    """The first column of C."""
    return np.array([*mechanism.coefficients, *[0.0] * steps])[:steps]


def inverse(mechanism: BandedToeplitz, steps: int) -> np.ndarray:
    """C^-1, densely."""
    lower = linalg.toeplitz(column(mechanism, steps), np.zeros(steps))
    return linalg.solve_triangular(lower, np.eye(steps), lower=True)


def made_of(mechanism: Mechanism, numbers: np.ndarray) -> np.ndarray:
    """The noise of all steps in standard deviations, (steps, n), of these fresh numbers."""
    rule, found = NOISES[type(mechanism)](mechanism), np.empty_like(numbers)
    kept = np.zeros((mechanism.buffers(len(numbers)), numbers.shape[1]), numbers.dtype)
    for step in range(len(numbers)):
        found[step] = rule.noise(step, lambda stream, step=step: numbers[step].copy(), kept)
    return found


def all_steps(noise: Noise, total: dict[str, torch.Tensor], steps: int) -> list[dict[str, torch.Tensor]]:
    found, state = [], noise.begin()
    for step in range(steps):
        noisy, state = noise.add(total, step, state)
        found.append(noisy)
    return found


def drawn(key: RunKey, name: str, size: int, steps: int) -> np.ndarray:
    return np.stack([key.generator("noise", step, name).standard_normal(size) for step in range(steps)])


coefficients = st.lists(st.floats(-0.9, 0.9), max_size=20).map(lambda rest: (1.0, *rest))
banded = st.builds(
    BandedToeplitz,
    noise_multiplier=st.floats(0.1, 10),
    coefficients=coefficients.filter(lambda found: sum(map(abs, found[1:])) < 0.99),
)


@given(mechanism=banded, steps=st.integers(1, 45), max_norm=st.floats(0.1, 10), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_the_noise_is_the_inverse_matrix_times_the_very_numbers_drawn(mechanism, steps, max_norm, seed):
    key = RunKey.from_seed(seed)
    noise = Noise(mechanism, max_norm=max_norm, key=key)
    total = {"weight": torch.linspace(-3, 3, 6, dtype=torch.float64).reshape(2, 3), "gain": torch.tensor(1.5)}
    found = all_steps(noise, total, steps)
    for name, value in total.items():
        scale = mechanism.noise_multiplier * max_norm
        right = inverse(mechanism, steps) @ drawn(key, name, value.numel(), steps) * scale
        noisy = np.stack([each[name].numpy().reshape(-1) for each in found])
        assert noisy.dtype == np.float32
        assert np.allclose(noisy, right + value.numpy().reshape(-1), rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("mechanism", [*MECHANISMS, Tree(noise_multiplier=1.0, steps_per_tree=700)])
def test_double_precision_is_enough_for_five_thousand_steps(mechanism):
    """Against the same recursion in the processor's longest numbers."""
    numbers = np.random.default_rng(0).standard_normal((5000, 3))
    exact = made_of(mechanism, numbers.astype(np.longdouble))
    error = np.abs(made_of(mechanism, numbers) - exact)
    assert error.max() < 2e-14
    assert error[-1000:].max() < 4 * error[64:1064].max() + 1e-16


def test_the_last_steps_of_many_are_those_of_few():
    """The look-ahead reads each buffer once for several steps; where the ring and the look-ahead begin is no matter."""
    numbers = np.random.default_rng(0).standard_normal((300, 4))
    for bands in (1, 2, 3, 8, 9, 10, 16, 17, 64):
        mechanism = BandedToeplitz(noise_multiplier=1.0, coefficients=SQUARE_ROOT[:bands])
        assert np.allclose(made_of(mechanism, numbers), inverse(mechanism, 300) @ numbers, rtol=0, atol=1e-13), bands


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_blocks_and_pieces_change_nothing_but_the_streams(monkeypatch, mechanism):
    noise, steps = Noise(mechanism, max_norm=0.5, key=KEY), 13
    monkeypatch.setattr(blocks, "BLOCK", 16)
    total = {"a": torch.zeros(8, 5), "b": torch.zeros(3)}
    whole = all_steps(noise, total, steps)
    monkeypatch.setattr(blocks, "PIECE", 5)
    monkeypatch.setattr(blocks, "SMALL", 40)
    for one, other in zip(whole, all_steps(noise, total, steps), strict=True):
        assert all(torch.allclose(one[name], other[name], rtol=1e-6, atol=1e-6) for name in total)
    if not isinstance(mechanism, Tree):
        streams = [("noise", 16), ("noise 1", 16), ("noise 2", 8)]
        numbers = np.stack(
            [
                np.concatenate([KEY.generator(stream, step, "a").standard_normal(size) for stream, size in streams])
                for step in range(steps)
            ]
        )
        found = np.stack([each["a"].numpy().reshape(-1) for each in whole])
        assert np.allclose(found, inverse(mechanism, steps) @ numbers, rtol=1e-6, atol=1e-6)


# -- its distribution ----------------------------------------------------------------------------------------------


# -- its state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*MECHANISMS, Gaussian(noise_multiplier=2.0)])
@pytest.mark.parametrize("killed", [1, 8, 11])
def test_a_state_that_went_through_a_checkpoint_gives_the_same_bytes(tmp_path, mechanism, killed):
    noise = Noise(mechanism, max_norm=0.5, key=KEY)
    total = {"layer.weight": torch.full((3, 2), 0.25), "layer.gain": torch.tensor(1.0)}
    whole, state = all_steps(noise, total, 24), noise.begin()
    model = torch.nn.Linear(1, 1)
    for step in range(24):
        if step == killed:
            optimizer = torch.optim.SGD(model.parameters())
            Checkpoint.of(step, model, {}, optimizer, run="0" * 64, noise=state).save(tmp_path / "checkpoint")
            state = Checkpoint.load(tmp_path / "checkpoint").noise
            noise = Noise(mechanism, max_norm=0.5, key=RunKey.from_seed(0))
        noisy, state = noise.add(total, step, state)
        assert all(torch.equal(noisy[name], whole[step][name]) for name in total)


@pytest.mark.parametrize(
    ("mechanism", "copies"),
    [
        (Gaussian(noise_multiplier=1.0), {0: 0, 1: 0, 1000: 0}),
        (BANDS, {0: 0, 1: 4, 1000: 4}),
        (BandedToeplitz(noise_multiplier=1.0, coefficients=(1.0,)), {0: 0, 1: 0, 1000: 0}),
        (Tree(noise_multiplier=1.0), {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 1023: 10, 1024: 11}),
        (Tree(noise_multiplier=1.0, steps_per_tree=6), {1: 1, 4: 3, 6: 3, 7: 3, 1000: 3}),
    ],
)
def test_the_state_s_memory_is_as_stated(mechanism, copies):
    noise = Noise(mechanism, max_norm=1.0, key=KEY)
    assert {steps: noise.buffers(steps) for steps in copies} == copies
    state = noise.begin()
    for step in range(9):
        assert state.step == step
        assert sum(value.numel() for value in state.tensors.values()) == 7 * noise.buffers(step)
        _, state = noise.add({"a": torch.zeros(2, 3), "b": torch.zeros(())}, step, state)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_steps_that_hang_together_need_a_state(mechanism):
    noise, total = Noise(mechanism, max_norm=1.0, key=KEY), {"a": torch.zeros(3)}
    for step in (0, 1):
        with pytest.raises(SfumatoError, match=r"no state is given; begin with noise.begin\(\)"):
            noise.add(total, step)
    with pytest.raises(SfumatoError, match="the noise's state does not hold"):
        noise.add(total, 4, NoiseState(step=4))
    with pytest.raises(SfumatoError, match="is that of step 0"):
        noise.add(total, 1, noise.begin())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_state_is_used_once(mechanism):
    """Its memory goes on to the next step's; what it would give a second time would not be the step's noise."""
    noise, total = Noise(mechanism, max_norm=1.0, key=KEY), {"a": torch.zeros(3)}
    _, used = noise.add(total, 0, noise.begin())
    noise.add(total, 1, used)
    with pytest.raises(SfumatoError, match="it is used up, or of another model or mechanism"):
        noise.add(total, 1, used)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"b": tensors["a"]},
        lambda tensors: {**tensors, "b": tensors["a"]},
        lambda tensors: {"a": tensors["a"][:, :2]},
        lambda tensors: {"a": tensors["a"][:1]},
        lambda tensors: {"a": tensors["a"].float()},
        lambda tensors: {},
    ],
)
def test_a_state_of_another_model_or_mechanism_is_refused_and_stays_whole(change):
    noise, total = Noise(BANDS, max_norm=1.0, key=KEY), {"a": torch.zeros(3)}
    _, state = noise.add(total, 0, noise.begin())
    other = NoiseState(step=1, tensors=change(state.tensors))
    with pytest.raises(SfumatoError, match="the noise's state does not hold"):
        noise.add(total, 1, other)
    assert torch.equal(noise.add(total, 1, state)[0]["a"], all_steps(noise, total, 2)[1]["a"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_state_does_not_depend_on_the_sum_or_its_scale(mechanism):
    states = []
    for total, max_norm in ((torch.zeros(3), 1.0), (torch.full((3,), 1e6), 7.0)):
        noise = Noise(mechanism, max_norm=max_norm, key=KEY)
        state = noise.begin()
        for step in range(9):
            _, state = noise.add({"a": total}, step, state)
        states.append(state.tensors["a"])
    assert torch.equal(*states)
