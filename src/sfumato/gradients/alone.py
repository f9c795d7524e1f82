"""A model's outputs for each example by itself, whatever stands beside it in the batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def same_throughout(model: nn.Module, made_up: Tensor) -> Iterator[None]:
    """Around a pass over all records: refuses a model that gives made-up examples other outputs after it than before.

    So one that has kept something of the records in a place that `isolation` cannot see is found, if it acts on it.

    Args:
        made_up: (n, ...), nothing private.
    """
    before = outputs_alone(model, made_up)
    yield
    if not torch.allclose(before, outputs_alone(model, made_up), rtol=1e-5, atol=1e-6, equal_nan=True):
        raise SfumatoError(
            "the model gives a made-up example other outputs after the records than before them: it keeps something",
            "compute everything anew in every forward pass",
        )


def _one_by_one(model: nn.Module, example: Tensor) -> Tensor:
    """One example with copies of parameters and buffers of its own, so that nothing written reaches the next one, and
    with the same dice as every other one, where the model throws some."""
    own = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    devices = [example.device] if example.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), nothing_kept(model, None, own.items(), strict=True):
        torch.manual_seed(0)
        return call(model, own, example.unsqueeze(0)).squeeze(0)
