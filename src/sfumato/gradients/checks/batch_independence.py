"""A model's outputs for each example by itself, independent of the rest of the batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato._devices import fork_rng
from sfumato.gradients.checks.isolation import refuse_mixing_layers, unchanged_state
from sfumato.gradients.examples import call_model

# Relative difference allowed between a row computed in a batch and by itself.
_ROUNDING = 1e-3
# Three examples with unusual values, and one that must not change.
_FEWEST = 4
# Values that must not spread from one example to another.
_UNUSUAL = (float("nan"), float("inf"), 1e30)


def per_example_outputs(model: nn.Module, inputs: Tensor, *, at_once: int | None = None) -> Tensor:
    """Runs the model on one example at a time; the implementation vectorises over examples if vmap can run the model.

    Args:
        model: any module with one tensor as input, in the mode in which it is to run; it is left unchanged.
        inputs: (N, ...).
        at_once: the most examples that are vectorised together; None for all.

    Returns:
        (N, ...) without gradient: row i is `model(inputs[i : i + 1])[0]`.

    **Guarantee.** Each row is a function of its own example and of the model's parameters and buffers, so under every
    adjacency no example changes another one's row. A model that stores something of an example, or has layers that mix
    a batch, is refused. Assumption, as for `ClippedGradient`: the model has no channel that `isolation` cannot see.
    """
    if at_once is not None and len(inputs) > at_once:
        return torch.cat([per_example_outputs(model, piece) for piece in inputs.split(at_once)])
    refuse_mixing_layers(model)
    with torch.no_grad():
        if not len(inputs):
            return model(inputs)
        try:
            return _vectorised(model, inputs)
        except SfumatoError:
            raise
        except Exception:  # vmap cannot run the model, for example because it branches on an example's value
            return torch.stack([_one_by_one(model, example) for example in inputs])


def _vectorised(model: nn.Module, inputs: Tensor) -> Tensor:
    """Runs the model on one example at a time, vectorised over examples."""
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def one(example: Tensor) -> Tensor:
        return call_model(model, state, example.unsqueeze(0)).squeeze(0)

    with torch.no_grad(), unchanged_state(model, None, state.items()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        return torch.vmap(one, randomness="error")(inputs.clone())


@contextmanager
def unchanged_outputs(model: nn.Module, synthetic: Tensor) -> Iterator[None]:
    """A context around a pass over all records: refuses a model whose outputs for synthetic examples have changed.

    It finds models that store something of the records where `isolation` cannot see it, if this affects the outputs.

    Args:
        synthetic: (n, ...), not private.
    """
    before = per_example_outputs(model, synthetic)
    yield
    if not torch.allclose(before, per_example_outputs(model, synthetic), rtol=1e-5, atol=1e-6, equal_nan=True):
        raise SfumatoError(
            "the model's outputs for a synthetic example have changed during the pass over the records, so it stores "
            "something of them",
            "compute everything in every forward pass",
        )


def _one_by_one(model: nn.Module, example: Tensor) -> Tensor:
    """Runs one example on its own copies of parameters and buffers, so nothing written reaches the next example.

    If the model draws random numbers, every example gets the same ones.
    """
    state = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    with fork_rng(example.device), unchanged_state(model, None, state.items(), strict=True):
        torch.manual_seed(0)
        return call_model(model, state, example.clone().unsqueeze(0)).squeeze(0)


def batched_outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """Computes the rows of `per_example_outputs`, up to rounding, in one ordinary batch, for a model that
    `is_batch_independent`.

    Args:
        model, inputs: as for `per_example_outputs`, with the shape and number of examples that were checked.
    """
    with torch.no_grad(), unchanged_state(model, None):
        return model(inputs.clone())


def is_batch_independent(model: nn.Module, synthetic: Tensor) -> bool:
    """Checks whether an ordinary batch gives each example the same row as the example by itself.

    Three conditions must hold: vmap can run the model, so no branch depends on an example's values; on synthetic
    examples the ordinary batch agrees with it; and examples that are all NaN, infinite or huge leave every other row
    unchanged, bit for bit. NaN times zero is NaN, so a NaN reveals every arithmetic path from one example to another.

    Args:
        model: in the mode in which it is to run.
        synthetic: (N, ...), of the shape and number of the private examples. With fewer than 4 examples the check is
            too weak, and the answer is False.

    **Guarantee.** No private data are read. Assumption for a model that passes: it does not test for NaN.
    """
    if len(synthetic) < _FEWEST:
        return False
    try:
        refuse_mixing_layers(model)
        together = batched_outputs(model, synthetic)
        if not torch.allclose(together, _vectorised(model, synthetic), rtol=_ROUNDING, atol=_ROUNDING):
            return False
        places = torch.tensor([0, len(synthetic) // 2, len(synthetic) - 1], device=synthetic.device)
        rest = torch.ones(len(synthetic), dtype=torch.bool, device=synthetic.device).index_fill(0, places, False)
        for unusual in (_UNUSUAL, _UNUSUAL[::-1]):
            changed = synthetic.clone()
            for place, value in zip(places, unusual, strict=True):
                changed[place] = value
            if not torch.equal(batched_outputs(model, changed)[rest], together[rest]):
                return False
    except Exception:  # a model that fails here runs one example at a time, or is refused there
        return False
    return bool(torch.isfinite(together).all())
