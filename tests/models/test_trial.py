import pytest
import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.models.trial import check_shapes

IMAGES = {"shape": (1, 4, 4)}


def test_modes_buffers_and_weights_stay_as_they_were():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3))
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_shapes("mine", model, classes=3, **IMAGES)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), r"got \(1, 4\)"),
        (nn.Identity(), r"got \(1, 1, 4, 4\)"),
        (nn.Linear(9, 3), "fails on images of 1 x 4 x 4"),
        (nn.LSTM(4, 3), "'mine'"),
    ],
)
def test_what_gives_no_logits_is_refused(model, found):
    with pytest.raises(SfumatoError, match=found):
        check_shapes("mine", model, classes=3, **IMAGES)
