"""What the parameters hold while a gradient is computed, and after it."""

import pytest
import torch

from sfumato.averaging import LastMean, TrainingOverAggregates


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
