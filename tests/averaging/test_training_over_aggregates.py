"""What the parameters hold while a gradient is computed, and after it."""

import pytest
import torch

from sfumato.averaging import EMA, LastMean, TrainingOverAggregates


def state_of(average):
    state = average.begin({"w": torch.tensor([0.0])})
    return average.update(state, {"w": torch.tensor([3.0])}, 0)


@pytest.mark.parametrize(("average", "aggregate"), [(LastMean(2), 1.5), (EMA(0.5), 2.7)])
@pytest.mark.parametrize("restart", [False, True])
def test_they_hold_the_aggregate_and_then_what_the_step_starts_from(average, aggregate, restart):
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    over = TrainingOverAggregates(average=average, start=1, restart=restart)
    with over.at_average({"w": parameter}, state_of(average), 0):
        assert parameter.item() == 3.0, "before tau"
    with over.at_average({"w": parameter}, state_of(average), 1):
        assert parameter.item() == pytest.approx(aggregate)
    assert parameter.item() == pytest.approx(aggregate if restart else 3.0)
    assert over.copies == average.copies + (not restart)


def test_the_last_weights_come_back_after_an_error():
    parameter, average = torch.nn.Parameter(torch.tensor([3.0])), LastMean(2)
    with (
        pytest.raises(KeyboardInterrupt),
        TrainingOverAggregates(average=average).at_average({"w": parameter}, state_of(average), 0),
    ):
        raise KeyboardInterrupt
    assert parameter.item() == 3.0
