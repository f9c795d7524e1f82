import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.averaging import EMA


def test_decay_warms_up_to_its_limit():
    ema = EMA(decay=0.9999)
    assert [ema.decay_at(step) for step in (0, 1, 8, 90)] == [1 / 10, 2 / 11, 9 / 18, 91 / 100]
    assert ema.decay_at(10**6) == 0.9999


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=30), decay=st.sampled_from([0.0, 0.3, 0.9, 0.9999]))
def test_average_is_the_closed_form(values, decay):
    ema = EMA(decay=decay)
    average = {"w": torch.zeros(2, dtype=torch.float64)}
    for step, value in enumerate(values):
        average = ema.update(average, {"w": torch.full((2,), value, dtype=torch.float64)}, step)
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(len(values))]
    expected = 0.0
    for step, value in enumerate(values):
        weight = 1 - decays[step]
        for later in decays[step + 1 :]:
            weight *= later
        expected += weight * value
    torch.testing.assert_close(average["w"], torch.full((2,), expected, dtype=torch.float64))


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


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=30), decay=st.sampled_from([0.0, 0.3, 0.9]))
def test_the_constant_form_is_equation_3(values, decay):
    """theta_ema = (1 - beta) theta_ema + beta theta_t with beta = 1 - decay, from theta_0 on."""
    ema = EMA(decay, "constant")
    state, expected = ema.begin({"w": torch.tensor([3.0], dtype=torch.float64)}), 3.0
    for step, value in enumerate(values):
        state = ema.update(state, {"w": torch.tensor([value], dtype=torch.float64)}, step)
        expected = (1 - (1 - decay)) * expected + (1 - decay) * value
    torch.testing.assert_close(ema.averaged_weights(state)["w"], torch.tensor([expected], dtype=torch.float64))


def test_another_form_is_refused():
    with pytest.raises(SfumatoError, match="ema_form must be"):
        EMA(0.9, "cold")
