from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.averaging import LastMean

NUMBERS = st.floats(-1e6, 1e6, width=32)


def after(mean: LastMean, values: list[float]) -> dict[str, torch.Tensor]:
    state = mean.begin({"a.w": torch.tensor([values[0]]), "b": torch.tensor(values[0])})
    for step, value in enumerate(values[1:]):
        state = mean.update(state, {"a.w": torch.tensor([value]), "b": torch.tensor(value)}, step)
    return state


@given(values=st.lists(NUMBERS, min_size=1, max_size=40), count=st.integers(1, 12))
def test_it_is_the_mean_of_exactly_the_last_k_weights_and_of_fewer_in_the_beginning(values, count):
    state = after(LastMean(count), values)
    last = values[-count:]
    exact = float(sum(map(Fraction, last)) / len(last))
    found = LastMean(count).averaged_weights(state)
    assert {name: tuple(value.shape) for name, value in found.items()} == {"a.w": (1,), "b": ()}
    for value in found.values():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double().reshape(()), torch.tensor(exact).double(), rtol=1e-6, atol=1e-7)
    assert len(state) == 2 * len(last), "so many copies, and no more"


def test_nothing_of_what_has_left_the_ring_is_left_in_the_mean():
    """A running sum would still hold the rounding of the large weights."""
    mean = LastMean(3)
    state = after(mean, [1e30, -3e29, 1e30, 0.1, 0.2, 0.3])
    torch.testing.assert_close(mean.averaged_weights(state)["b"], torch.tensor(0.2))


def test_update_is_pure_and_shares_no_memory_with_the_parameters():
    mean, parameters = LastMean(2), {"w": torch.ones(2)}
    first = mean.begin(parameters)
    parameters["w"].fill_(3.0)
    second = mean.update(first, parameters, 0)
    parameters["w"].fill_(9.0)
    assert torch.equal(mean.averaged_weights(first)["w"], torch.ones(2))
    assert torch.equal(mean.averaged_weights(second)["w"], torch.full((2,), 2.0))


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_bad_counts_are_refused(count):
    with pytest.raises(SfumatoError, match="aggregate_last"):
        LastMean(count)
