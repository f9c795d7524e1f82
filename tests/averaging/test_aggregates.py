"""Means of weights against a plain truth in fractions, to the bit."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.averaging import exponential, kept_count_by_rule, kept_steps, mean


def one(*values: float, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=dtype)}


floats = st.floats(-1e6, 1e6, width=32)


@given(values=st.lists(floats, min_size=1, max_size=40))
def test_the_mean_is_rounded_once(values):
    """float64 holds the sum of so few float32 to far more places than float32 has."""
    exact = sum(map(Fraction, values)) / len(values)
    found = mean([one(value) for value in values])["w"].item()
    assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(1, 2**24) + Fraction(1, 2**26)


@given(
    values=st.lists(floats, min_size=1, max_size=12),
    decay=st.sampled_from([0.0, 0.3, 0.9, 0.9999]),
    first=st.integers(0, 50),
    gaps=st.lists(st.integers(1, 40), min_size=12, max_size=12),
)
def test_exponential_weights_are_the_decay_to_the_distance(values, decay, first, gaps):
    steps = [first]
    for gap in gaps[1 : len(values)]:
        steps.append(steps[-1] + gap)
    shares = [Fraction(decay) ** (steps[-1] - step) for step in steps]
    exact = sum(share * Fraction(value) for share, value in zip(shares, values, strict=True)) / sum(shares)
    weights = [one(value, dtype=torch.float64) for value in values]
    assert exponential(weights, steps, decay)["w"].item() == pytest.approx(float(exact), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_stay_and_nothing_is_shared(dtype):
    parameter = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    found = mean([{"w": parameter}])["w"]
    assert found.dtype == dtype
    assert not found.requires_grad
    with torch.no_grad():
        parameter.zero_()
    assert torch.equal(found, torch.ones(2, dtype=dtype))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean([]), "no weights to average"),
        (lambda: mean([one(1.0), {"v": torch.ones(1)}]), r"not so is v \(1,\) of torch.float32, w"),
        (lambda: mean([one(1.0), one(1.0, 2.0)]), r"not so is w \(1,\) of torch.float32, w \(2,\)"),
        (lambda: mean([{"w": torch.ones(1, dtype=torch.int64)}]), r"w \(1,\) of torch.int64"),
        (lambda: exponential([one(1.0)], [1, 2], 0.5), "argument 2 is longer"),
        (lambda: exponential([one(1.0)] * 2, [2, 2], 0.5), "steps must ascend"),
        (lambda: exponential([one(1.0)], [1], 1.0), "decay must be below 1"),
    ],
)
def test_what_has_no_mean_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# -- which steps' weights a run keeps ----------------------------------------------------------------------------------


@given(st.integers(1, 500), st.integers(0, 60))
def test_half_are_the_last_ones_and_the_others_lie_spaced_in_the_second_half(steps, count):
    kept = kept_steps(steps, count)
    assert len(kept) == min(count, steps)
    assert list(kept) == sorted(set(kept))
    assert all(1 <= step <= steps for step in kept)
    if kept:
        last = (len(kept) + 1) // 2
        assert kept[-last:] == tuple(range(steps - last + 1, steps + 1))
    if steps >= 4 * count:
        assert not kept or kept[0] >= steps // 2


@given(st.integers(1, 1 << 30))
def test_by_rule_they_fit_into_64_mib_or_there_are_none(size):
    count = kept_count_by_rule(size)
    assert count == 0 or (4 <= count <= 20 and count * size <= 64 << 20)
    assert (count == 0) == (4 * size > 64 << 20)
