"""A model's outputs for each example by itself, whatever stands beside it in the batch."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.examples import call
from sfumato.gradients.isolation import nothing_kept, refuse_mixing_layers


def outputs_alone(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model on one example at a time in meaning, and on all at once in fact where vmap can run it.

    Args:
        model: any module of one tensor, in the mode in which it is to be run; it comes back as it was.
        inputs: (N, ...).

    Returns:
        (N, ...) without gradient: row i is `model(inputs[i : i + 1])[0]`.

    **Guarantee.** Each row is a function of its own example and of the model's parameters and buffers, for every
    adjacency: no example moves another one's row. A model that keeps something of an example, or has layers that mix
    a batch, is refused. Assumed, as for `ClippedGradient`: no channel that `isolation` cannot see.
    """
    refuse_mixing_layers(model)
    own = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def one(example: Tensor) -> Tensor:
        return call(model, own, example.unsqueeze(0)).squeeze(0)

    with torch.no_grad():
        if not len(inputs):
            return model(inputs)
        try:
            with nothing_kept(model, None, own.items()), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*performance drop.*")
                return torch.vmap(one, randomness="error")(inputs)
        except SfumatoError:
            raise
        except Exception:  # what vmap cannot run, such as a branch on an example's value, is run one by one
            return torch.stack([_one_by_one(model, example) for example in inputs])


def _one_by_one(model: nn.Module, example: Tensor) -> Tensor:
    """One example with copies of parameters and buffers of its own, so that nothing written reaches the next one."""
    own = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    with nothing_kept(model, None, own.items(), strict=True):
        return call(model, own, example.unsqueeze(0)).squeeze(0)
