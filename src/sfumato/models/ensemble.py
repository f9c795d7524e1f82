"""Many models as one: the mean of their output distributions (OPA), or the majority of their labels (OMV)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, one_of
from sfumato.models.losses import LOSSES, exclusive, logits_of, probabilities

TIE = 1 / 64
"""The vote of the mean distribution, in votes: too little to outvote a model, enough to decide between equal ones."""


def outputs_mean(outputs: Iterable[Tensor]) -> Tensor:
    """The mean of k output distributions (output-based past averaging, OPA, arXiv 2210.01864).

    Args:
        outputs: k of them, each (N, classes); a tensor (k, N, classes) is one such.

    Returns:
        (N, classes), float64.

    >>> outputs_mean(torch.tensor([[[0.75, 0.25]], [[0.25, 0.75]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    total, count = torch.zeros(()), 0
    for each in outputs:
        total, count = total + each.double(), count + 1
    if not count:
        raise SfumatoError("there are no outputs to average", "give those of one model at least")
    return total / count


def majority(outputs: Iterable[Tensor]) -> Tensor:
    """Shares of votes: each of k models has one vote, for its likeliest class (output majority vote, OMV).

    The mean distribution has a 64th of a vote, which it spreads by its probabilities. It decides among classes with
    equally many votes for the one with the largest mean probability, and can't turn a majority: classes with unequal
    votes are one vote apart at least. What is left equal goes to the class that is listed first, as anywhere.

    Args:
        outputs: as for `outputs_mean`.

    Returns:
        (N, classes), float64: (votes + mean / 64) / (k + 1 / 64).

    >>> votes = torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]])  # one each; the mean is 0.65 and 0.35
    >>> majority(votes).argmax(-1)
    tensor([0])
    """
    votes, total, count = torch.zeros(()), torch.zeros(()), 0
    for each in outputs:
        votes = votes + functional.one_hot(each.argmax(-1), each.shape[-1]).double()
        total, count = total + each.double(), count + 1
    if not count:
        raise SfumatoError("there are no outputs to count votes of", "give those of one model at least")
    return (votes + TIE * total / count) / (count + TIE)


METHODS = MappingProxyType({"opa": outputs_mean, "omv": majority})


class Ensemble(nn.Module):
    """A module that answers as its members do together: inputs in, logits (N, classes) out.

    Its logits are such that their softmax (for loss "sigmoid" each one's sigmoid) gives back the mean probabilities or
    the shares of votes, so that whatever reads a model's outputs reads these. Members are its children "0", "1", and so
    on, with their parameters and buffers: names in its `state_dict` are "0.conv.weight".

    Args:
        members: modules of the same kind, from inputs to logits (N, classes), no two the same object.
        method: "opa", the mean of probabilities, or "omv", the majority of labels.
        loss: what the members were trained by, one of `LOSSES`, with "multilabel" for "opa" alone.

    **Guarantee.** Post-processing of its members.

    Raises:
        SfumatoError: no members, one of them twice, or an unknown name.
    """

    def __init__(self, members: Sequence[nn.Module], *, method: str, loss: str = "softmax"):
        super().__init__()
        self.method = one_of("method", method, METHODS)
        self.loss = one_of("loss", loss, LOSSES)
        if method == "omv" and not exclusive(loss):
            raise SfumatoError("a majority is of classes that exclude each other, got loss multilabel", "take opa")
        if not members or len({id(member) for member in members}) < len(members):
            raise SfumatoError(
                f"members must be different modules, one at least, got {len(members)} of them", "give each one once"
            )
        for number, member in enumerate(members):
            self.add_module(str(number), member)

    @classmethod
    def of(
        cls, template: nn.Module, weights: Iterable[Mapping[str, Tensor]], *, method: str, loss: str = "softmax"
    ) -> Ensemble:
        """Copies of one module, each with its own weights; what these don't name is as it is in the template.

        Args:
            template: a module; it stays as it is.
            weights: of each member, {name of a parameter or buffer of the template: tensor}.

        Raises:
            SfumatoError: a name that the template doesn't have, or a tensor of another shape.
        """
        known = template.state_dict()
        members = []
        for each in weights:
            for name, value in each.items():
                if name not in known or known[name].shape != value.shape:
                    raise SfumatoError(
                        f"weights {name} of shape {tuple(value.shape)} are not the template's",
                        "give the weights of this very model",
                    )
            member = copy.deepcopy(template)
            member.load_state_dict(dict(each), strict=False)
            members.append(member)
        return cls(members, method=method, loss=loss)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, classes), of the members' type."""
        logits = [member(inputs) for member in self.children()]
        together = METHODS[self.method](probabilities(each.double(), self.loss) for each in logits)
        return logits_of(together, self.loss).to(logits[0].dtype)
