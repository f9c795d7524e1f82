"""A model's outputs for each example by itself, whatever stands beside it in the batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato._devices import own_randomness
from sfumato.gradients.checks.isolation import nothing_kept, refuse_mixing_layers
from sfumato.gradients.examples import call

# By how much a row may differ, relatively, when it is computed beside others and by itself.
_ROUNDING = 1e-3
# Three odd ones among them, and one that must stay as it is.
_FEWEST = 4
# What no example may pass on to another one.
_UNUSUAL = (float("nan"), float("inf"), 1e30)


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
    with torch.no_grad():
        if not len(inputs):
            return model(inputs)
        try:
            return _vectorised(model, inputs)
        except SfumatoError:
            raise
        except Exception:  # what vmap cannot run, such as a branch on an example's value, is run one by one
            return torch.stack([_one_by_one(model, example) for example in inputs])


def _vectorised(model: nn.Module, inputs: Tensor) -> Tensor:
    """One example at a time in meaning, all at once in fact."""
    own = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def one(example: Tensor) -> Tensor:
        return call(model, own, example.unsqueeze(0)).squeeze(0)

    with torch.no_grad(), nothing_kept(model, None, own.items()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        return torch.vmap(one, randomness="error")(inputs.clone())


@contextmanager
def same_throughout(model: nn.Module, synthetic: Tensor) -> Iterator[None]:
    """Around a pass over all records: refuses a model that gives made-up examples other outputs after it than before.

    So one that has kept something of the records in a place that `isolation` cannot see is found, if it acts on it.

    Args:
        synthetic: (n, ...), nothing private.
    """
    before = outputs_alone(model, synthetic)
    yield
    if not torch.allclose(before, outputs_alone(model, synthetic), rtol=1e-5, atol=1e-6, equal_nan=True):
        raise SfumatoError(
            "the model gives a made-up example other outputs after the records than before them: it keeps something",
            "compute everything anew in every forward pass",
        )


def _one_by_one(model: nn.Module, example: Tensor) -> Tensor:
    """One example with copies of parameters and buffers of its own, so that nothing written reaches the next one, and
    with the same randomness as every other one, where the model draws some."""
    own = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    with own_randomness(example.device), nothing_kept(model, None, own.items(), strict=True):
        torch.manual_seed(0)
        return call(model, own, example.clone().unsqueeze(0)).squeeze(0)


def outputs_together(model: nn.Module, inputs: Tensor) -> Tensor:
    """The same rows as `outputs_alone` up to rounding, by one ordinary batch, for a model that `keeps_apart`.

    Args:
        model, inputs: as for `outputs_alone`, of the shape and the number of examples that were tried.
    """
    with torch.no_grad(), nothing_kept(model, None):
        return model(inputs.clone())


def keeps_apart(model: nn.Module, synthetic: Tensor) -> bool:
    """Whether an ordinary batch gives each example the row that it has by itself, found by trying.

    Three things must hold: vmap can run the model, so that no branch hangs on an example's values; on made-up examples
    the ordinary batch agrees with it; and examples that are all NaN, infinite or huge leave every other row as it was,
    bit for bit. NaN times zero is NaN, so a NaN shows each way that arithmetic could take from one example to another.

    Args:
        model: in the mode in which it is to be run.
        synthetic: (N, ...), of the shape and number in which private examples will come. Fewer than 4 examples show too
            little, and the answer is no.

    **Guarantee.** Nothing private is looked at. Assumed for a model that passes: it does not look for NaN.
    """
    if len(synthetic) < _FEWEST:
        return False
    try:
        refuse_mixing_layers(model)
        together = outputs_together(model, synthetic)
        if not torch.allclose(together, _vectorised(model, synthetic), rtol=_ROUNDING, atol=_ROUNDING):
            return False
        places = torch.tensor([0, len(synthetic) // 2, len(synthetic) - 1], device=synthetic.device)
        rest = torch.ones(len(synthetic), dtype=torch.bool, device=synthetic.device).index_fill(0, places, False)
        for unusual in (_UNUSUAL, _UNUSUAL[::-1]):
            tried = synthetic.clone()
            for place, value in zip(places, unusual, strict=True):
                tried[place] = value
            if not torch.equal(outputs_together(model, tried)[rest], together[rest]):
                return False
    except Exception:  # whatever such a model cannot do, it can do one example at a time, or is refused there
        return False
    return bool(torch.isfinite(together).all())
