"""Ensembles: the mean of the members' output distributions (OPA), or the majority of their labels (OMV)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, one_of
from sfumato.models.losses import LOSSES, is_exclusive, logits_of, probabilities

TIE = 1 / 64
"""Weight of the mean distribution, in votes: too small to outvote a model, large enough to break ties."""


def outputs_mean(outputs: Iterable[Tensor]) -> Tensor:
    """The mean of k output distributions (output-based past averaging, OPA, arXiv 2210.01864).

    Args:
        outputs: k tensors (N, classes), or a tensor (k, N, classes).

    Returns:
        (N, classes), float64.

    >>> outputs_mean(torch.tensor([[[0.75, 0.25]], [[0.25, 0.75]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    listed = [each.double() for each in outputs]
    return sum(listed[1:], listed[0]) / len(listed)


def majority(outputs: Iterable[Tensor]) -> Tensor:
    """Shares of votes: each of k models votes for its most probable class (output majority vote, OMV).

    The mean distribution has 1/64 of a vote, spread by its probabilities. It breaks ties in favour of the class with
    the largest mean probability, and cannot overturn a majority, because unequal counts differ by at least one vote.
    Remaining ties go to the first class.

    Args:
        outputs: as for `outputs_mean`.

    Returns:
        (N, classes), float64: (votes + mean / 64) / (k + 1 / 64).

    >>> votes = torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]])  # one each; the mean is 0.65 and 0.35
    >>> majority(votes).argmax(-1)
    tensor([0])
    """
    listed = [each.double() for each in outputs]
    total, count = sum(listed[1:], listed[0]), len(listed)
    votes = torch.stack([functional.one_hot(each.argmax(-1), each.shape[-1]) for each in listed]).sum(0)
    return (votes + TIE * total / count) / (count + TIE)


METHODS = MappingProxyType({"opa": outputs_mean, "omv": majority})


class Ensemble(nn.Module):
    """An ensemble of models, from inputs to logits (N, classes).

    The softmax of its logits (the sigmoid for loss "sigmoid" or "multilabel") gives the mean probabilities or the
    shares of votes, so its outputs can be used like those of a single model. Members are its children "0", "1", and so
    on; names in its `state_dict` are like "0.conv.weight".

    Args:
        members: distinct modules of the same kind, from inputs to logits (N, classes).
        method: "opa", the mean of probabilities, or "omv", the majority of labels.
        loss: the members' training loss, one of `LOSSES`; "multilabel" only with "opa".

    **Guarantee.** Post-processing of its members.

    Raises:
        SfumatoError: no members, a repeated member, or an unknown name.
    """

    def __init__(self, members: Sequence[nn.Module], *, method: str, loss: str = "softmax"):
        super().__init__()
        self.method = one_of(METHODS, method=method)
        self.loss = one_of(LOSSES, loss=loss)
        if method == "omv" and not is_exclusive(loss):
            raise SfumatoError("a majority vote needs exclusive classes, got loss multilabel", "choose opa")
        if not members or len({id(member) for member in members}) < len(members):
            raise SfumatoError(f"members must be distinct modules, at least one, got {len(members)}", "pass each once")
        for number, member in enumerate(members):
            self.add_module(str(number), member)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes logits (N, classes), in the members' dtype."""
        logits = [member(inputs) for member in self.children()]
        combined = METHODS[self.method](probabilities(each.double(), self.loss) for each in logits)
        return logits_of(combined, self.loss).to(logits[0].dtype)
