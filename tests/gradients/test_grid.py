"""Sums on the grid: the same in any order, near the exact sum, and never moved by more than the bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.gradients import GridSum, clipping
from sfumato.gradients.grid import MOST_EXAMPLES, STEP


def summed(parts: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    total = GridSum({"w": torch.zeros_like(parts[0])}, max_norm=max_norm)
    for part in parts:
        total.add({"w": part})
    return total.value()["w"]


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 12),
    width=st.integers(1, 40),
    max_norm=st.sampled_from([1e-3, 0.3, 1.0, 7.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=25)
def test_order_does_not_matter_and_the_sum_is_near_the_exact_one(seed, count, width, max_norm, dtype):
    generator = torch.Generator().manual_seed(seed)
    parts = [max_norm * torch.randn(width, generator=generator, dtype=dtype) for _ in range(count)]
    total = summed(parts, max_norm)
    shuffled = [parts[index] for index in torch.randperm(count, generator=generator).tolist()]
    assert torch.equal(summed(shuffled, max_norm), total)
    exact = torch.stack(parts).double().sum(0)
    assert (total - exact).abs().max() <= count * max_norm * STEP / 2 + 1e-15


@given(
    seed=st.integers(0, 1000),
    width=st.integers(1, 400),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    elements=st.sampled_from([None, 0]),
)
@settings(max_examples=30)
def test_one_example_never_moves_the_sum_by_more_than_the_bound(seed, width, dtype, elements):
    """Half a step off in each coordinate, in the worst direction, beside others in the same part. Without the factor's
    allowance (elements 0) the bound would break in float64, whose own margin is small."""
    generator, bound = torch.Generator().manual_seed(seed), 1.0
    direction = 2 + torch.rand(1, width, generator=generator, dtype=torch.float64).to(dtype)
    squares, allowed = clipping.squared_norms(direction), width if elements is None else 0
    like = [torch.empty(allowed, dtype=dtype)]
    factor = clipping.clip_factors(squares, torch.zeros(1), max_norm=bound, of=like)
    one = clipping.weighted_sum(direction, factor).double()
    # Beside these the example is rounded up, as far as they themselves are not.
    others = ((torch.floor(one / STEP) + 0.5001) * STEP - one).clamp(-0.4999 * STEP, 0.4999 * STEP)
    moved = float((summed([others + one], bound) - summed([others], bound)).norm())
    if elements is None:
        assert moved <= bound
    elif dtype == torch.float64 and width > 50:
        assert moved > bound


def test_as_many_examples_as_are_promised_fit():
    assert 1.9 * MOST_EXAMPLES / STEP < 2**63


@pytest.mark.parametrize("max_norm", [0.1, 1.0])
def test_many_small_parts_lose_nothing(max_norm):
    part = torch.tensor([max_norm * 1e-6], dtype=torch.float32)
    total = GridSum({"w": part}, max_norm=max_norm)
    for _ in range(2000):
        total.add({"w": part})
    assert total.value()["w"].item() == pytest.approx(2000 * part.item(), abs=2000 * max_norm * 4e-12)


@pytest.mark.parametrize("shape", [(), (1,), (1, 4), (4,), (4, 1)])
def test_a_part_of_another_shape_is_refused(shape):
    """Broadcasting would repeat it along an axis, and multiply the norm of an example."""
    total = GridSum({"w": torch.zeros(4, 4)}, max_norm=1.0)
    with pytest.raises(SfumatoError, match=r"the sum of w has shape \(4, 4\), but a part has shape \("):
        total.add({"w": torch.ones(shape)})


def test_tensors_that_are_rounded_together_come_out_as_those_that_are_not(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    sizes = {"a": (3, 4), "b": (), "c": (0, 2), "d": (5, 1, 2, 2), "e": (7,)}
    parts = [
        {name: torch.randn(size, generator=generator, dtype=dtype) for name, size in sizes.items()}
        for dtype in (torch.float32, torch.float64)
    ]
    parts[0]["d"] = parts[0]["d"].to(memory_format=torch.channels_last)
    found = []
    for at_once in (1 << 22, 12, 1):
        monkeypatch.setattr("sfumato.gradients.grid._AT_ONCE", at_once)
        total = GridSum(parts[0], max_norm=0.3)
        for part in parts:
            total.add(part)
        found.append(total.integers)
    for name, size in sizes.items():
        expected = sum((part[name].double() / (2.0**-38 * 0.3)).round().to(torch.int64) for part in parts)
        for integers in found:
            assert integers[name].shape == size
            assert torch.equal(integers[name], expected)
