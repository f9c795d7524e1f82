"""The sum of clipped updates: its bound, what may move it by how much, and what counts as nothing."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato import SfumatoError
from sfumato.embedding import BackboneWithHead, ClippedUpdates, LocalSGD, LocalTraining
from sfumato.gradients import grid


def length(values: dict[str, torch.Tensor]) -> float:
    """In float64, of all parameters together."""
    return float(torch.cat([value.double().flatten() for value in values.values()]).norm())


def records(count: int = 12, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return scale * torch.randn(count, 6, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 3


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    max_norm=st.floats(1e-9, 1e6),
    rate=st.sampled_from([1e-20, 1e-5, 0.05, 3.0, 1e4]),
    scale=st.sampled_from([1e-10, 1.0, 1e8]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(max_norm=1e-3, rate=3.0, scale=1.0, dtype=torch.float64)
def test_no_client_exceeds_the_bound_as_computed(backbone, max_norm, rate, scale, dtype):
    """In float64 the grid's rounding is what room is left for, in float32 that of the product."""
    local = LocalTraining(backbone.to(dtype), LocalSGD(learning_rate=rate, epochs=2, batch_size=5))
    inputs, labels = records(scale=scale)
    found = ClippedUpdates(local=local, max_norm=max_norm)(inputs.to(dtype), labels, generator())
    elements = sum(value.numel() for value in backbone.parameters())
    assert length(found.gradients) <= max_norm * (1 - grid.allowance(elements))
    assert all(value.isfinite().all() for value in found.gradients.values())


def test_a_short_update_is_summed_as_it_is_and_a_long_one_keeps_its_direction(backbone, settings):
    local = LocalTraining(backbone, settings)
    update = local.update(*records(), generator())
    long = length(update)
    for max_norm, factor in ((1.1 * long, 1.0), (long / 7, 1 / 7)):
        found = ClippedUpdates(local=local, max_norm=max_norm)(*records(), generator())
        for name, value in update.items():
            assert torch.allclose(found.gradients[name], factor * value, rtol=1e-5, atol=0)


def test_the_indicator_is_of_the_norm_before_clipping(backbone, settings):
    local = LocalTraining(backbone, settings)
    long = length(local.update(*records(), generator()))
    for max_norm, within in ((1.01 * long, 0.5), (0.99 * long, -0.5)):
        assert ClippedUpdates(local=local, max_norm=max_norm)(*records(), generator()).within == within


def test_a_client_without_records_is_one_that_is_not_there(backbone, settings):
    query = ClippedUpdates(local=LocalTraining(backbone, settings))
    found = query(*(value[:0] for value in records()), generator())
    assert found.within == 0
    assert found.gradients.keys() == query.zeros().keys()
    assert length(found.gradients) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_counts_as_zero(backbone, settings, bad):
    inputs, labels = records()
    inputs[3, 2] = bad
    local = LocalTraining(backbone, settings)
    assert not all(value.isfinite().all() for value in local.update(inputs, labels, generator()).values())
    found = ClippedUpdates(local=local)(inputs, labels, generator())
    assert length(found.gradients) == 0
    assert found.within == 0.5


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
def test_one_user_moves_the_sum_by_two_bounds(backbone, settings, adjacency):
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.3)
    assert query.sensitivity(adjacency) == 0.6
    assert query.sums_over == "clients"
    with pytest.raises(SfumatoError, match="adjacency must be one of"):
        query.sensitivity("add-one")


def test_one_user_s_presence_may_turn_a_client_s_update_around():
    """So C is not the sensitivity to a user, as the authors' accounting has it, and 2 C is not too much.

    One user's large records are of the class that the model takes them least for, another one's small records, alike
    but for that, of the class that it takes them for.
    """
    torch.manual_seed(0)
    model = BackboneWithHead(nn.Linear(6, 4, bias=False), classes=2, width=4, generator=generator())
    local = LocalTraining(model, LocalSGD(learning_rate=0.1, head="global", batch_size=8))
    query = ClippedUpdates(local=local, max_norm=1e-3)
    inputs, small = torch.cat([20 * torch.ones(4, 6), torch.ones(4, 6)]), slice(4, 8)
    taken_for = model(inputs).argmax(1)
    labels = torch.where(torch.arange(8) < 4, 1 - taken_for, taken_for)
    both = query(inputs, labels, generator()).gradients
    alone = query(inputs[small], labels[small], generator()).gradients
    moved = length({name: value - alone[name] for name, value in both.items()})
    assert 1.9 * query.max_norm < moved <= query.sensitivity("add-or-remove")
