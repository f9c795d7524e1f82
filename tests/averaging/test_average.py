"""Averages of weights against a plain truth in fractions: of kept ones, moving, of the last k, trained over."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.averaging import EMA, LastMean, TrainingOverAggregates, exponential, kept_count_by_rule, kept_steps, mean
from sfumato.experiment.experiment import Experiment


def one(*values: float, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=dtype)}


floats = st.floats(-1e6, 1e6, width=32)


@given(values=st.lists(floats, min_size=1, max_size=40))
def test_the_mean_is_rounded_once(values):
    """float64 holds the sum of so few float32 to far more places than float32 has."""
    exact = sum(map(Fraction, values)) / len(values)
    found = mean([one(value) for value in values])["w"].item()
    assert abs(Fraction(found) - exact) <= abs(exact) * Fraction(1, 2**24) + Fraction(1, 2**26)


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


def test_decay_warms_up_to_its_limit():
    ema = EMA(decay=0.9999)
    assert [ema.decay_at(step) for step in (0, 1, 8, 90)] == [1 / 10, 2 / 11, 9 / 18, 91 / 100]
    assert ema.decay_at(10**6) == 0.9999


def test_update_is_pure():
    average, parameters = {"w": torch.ones(3)}, {"w": torch.nn.Parameter(torch.full((3,), 2.0))}
    updated = EMA().update(average, parameters, 5)
    assert torch.equal(average["w"], torch.ones(3))
    assert not updated["w"].requires_grad
    with torch.no_grad():
        parameters["w"].zero_()
    assert updated["w"].min() > 1


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "0.9"])
def test_bad_decay_is_refused(decay):
    with pytest.raises(SfumatoError, match="ema must"):
        EMA(decay=decay)
    with pytest.raises(SfumatoError, match="ema must"):
        Experiment(epsilon=3.0, ema=decay)


def test_another_form_is_refused():
    with pytest.raises(SfumatoError, match="ema_form must be"):
        EMA(0.9, "cold")


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


def state_of(average):
    state = average.begin({"w": torch.tensor([0.0])})
    return average.update(state, {"w": torch.tensor([3.0])}, 0)


def test_the_last_weights_come_back_after_an_error():
    parameter, average = torch.nn.Parameter(torch.tensor([3.0])), LastMean(2)
    with (
        pytest.raises(KeyboardInterrupt),
        TrainingOverAggregates(average=average).at_average({"w": parameter}, state_of(average), 0),
    ):
        raise KeyboardInterrupt
    assert parameter.item() == 3.0
