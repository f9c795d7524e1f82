import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.averaging import EMA


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
    with pytest.raises(SfumatoError, match="EMA decay"):
        EMA(decay=decay)


def test_another_form_is_refused():
    with pytest.raises(SfumatoError, match="ema_form must be"):
        EMA(0.9, "cold")
