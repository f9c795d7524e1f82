"""Ensembles: their logits give back means and votes; names, modes and buffers of any members."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sfumato import SfumatoError
from sfumato.models import Ensemble, majority, outputs_mean
from sfumato.models.losses import LOSSES, is_exclusive, probabilities

EXCLUSIVE = [loss for loss in LOSSES if is_exclusive(loss)]


def classifier(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    )


@pytest.fixture
def members() -> list[nn.Module]:
    return [classifier(seed) for seed in range(4)]


@pytest.fixture
def inputs() -> torch.Tensor:
    return 3 * torch.randn(50, 2, 5, 5, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(
    ("method", "together", "loss"),
    [("opa", outputs_mean, loss) for loss in LOSSES] + [("omv", majority, loss) for loss in EXCLUSIVE],
)
def test_its_probabilities_are_those_of_its_members_together(members, inputs, loss, method, together):
    ensemble = Ensemble(members, method=method, loss=loss).eval()
    with torch.inference_mode():
        each = torch.stack([probabilities(member(inputs).double(), loss) for member in members])
        found = ensemble(inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(probabilities(found.double(), loss), together(each), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(together(iter(each)), together(each))


@given(votes=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=7))
def test_a_majority_stands_and_a_tie_goes_to_the_larger_mean(votes):
    each = (torch.tensor(votes, dtype=torch.float64) + 1).unsqueeze(1)
    each = each / each.sum(-1, keepdim=True)
    counts = torch.bincount(each[:, 0].argmax(-1), minlength=3)
    first = [place for place in range(3) if counts[place] == counts.max()]
    mean = each.mean(0)[0]
    shares = majority(each)[0]
    assert mean[int(shares.argmax())] == pytest.approx(max(mean[place].item() for place in first))
    assert int(shares.argmax()) in first
    assert shares.sum().item() == pytest.approx(1)
    assert (shares - counts / len(votes)).abs().max() < 1 / 64


def test_a_tie_is_told_by_the_ensemble_s_logits_too():
    """A hundred members, fifty votes for each of two classes, and means that differ by a thousandth."""
    members = []
    for number in range(100):
        member = nn.Linear(1, 2, bias=False)
        share = 0.601 if number % 2 else 0.6
        label = number % 2
        with torch.no_grad():
            member.weight[label] = torch.tensor(share).logit()
            member.weight[1 - label] = 0
        members.append(member)
    for loss in EXCLUSIVE:
        assert Ensemble(members, method="omv", loss=loss)(torch.ones(1, 1)).argmax().item() == 1


@pytest.mark.parametrize(("method", "loss"), [("opa", loss) for loss in LOSSES] + [("omv", "softmax")])
def test_sure_members_leave_losses_finite(loss, method):
    member = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        member.weight.copy_(torch.tensor([[1e4], [-1e4], [0.0]]))
    logits = Ensemble([member, copy.deepcopy(member)], method=method, loss=loss)(torch.ones(2, 1))
    assert logits.isfinite().all()
    for label in range(3):
        labels = torch.tensor([label, label])
        if not is_exclusive(loss):
            labels = torch.eye(3, dtype=torch.int64)[labels]
        assert LOSSES[loss](logits, labels).isfinite()


def test_a_majority_of_several_labels_is_refused(members):
    with pytest.raises(SfumatoError, match="a majority vote needs exclusive classes"):
        Ensemble(members, method="omv", loss="multilabel")


def test_its_state_goes_out_and_in_again(members, inputs):
    ensemble = Ensemble(members, method="opa").eval()
    state = ensemble.state_dict()
    assert {"0.0.weight", "3.1.bias", "2.2.running_mean", "1.2.num_batches_tracked"} <= state.keys()
    other = Ensemble([classifier(seed) for seed in range(10, 14)], method="opa").eval()
    assert not torch.equal(other(inputs), ensemble(inputs))
    other.load_state_dict(state)
    assert torch.equal(other(inputs), ensemble(inputs))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Ensemble([], method="opa"), "at least one, got 0"),
        (lambda: Ensemble([nn.Linear(1, 1)] * 2, method="opa"), "members must be distinct modules"),
        (lambda: Ensemble([nn.Linear(1, 1)], method="mean"), "method must be one of opa, omv"),
    ],
)
def test_what_is_no_ensemble_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
