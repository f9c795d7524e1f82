"""Made-up examples: what must be found out about a model is found out on these, never on private ones.

Of a call's inputs and targets only structure, shapes and types are looked at. The values are those of a template, which
are made-up or public examples that the user gives. Without one, real numbers are random, and whole numbers, which may
be classes, tokens or lengths, are all zero, or all one if the model fails on zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients.examples import Tree, batch_size, each, tensors

# Inputs and targets.
Examples = tuple[Tree, Tree]
# How many are made up without a template, and the most that are taken from one.
_FEW, _MOST = 2, 8


def checked(template: Examples, views: int) -> Examples:
    """The template, refused if it is no pair of inputs and targets as a call is given them."""
    if not isinstance(template, (tuple, list)) or len(template) != 2:
        raise SfumatoError(
            f"template must be a pair (inputs, targets) of made-up examples, got {type(template).__name__}",
            "give two arguments of a call, with made-up or public values",
        )
    inputs, targets = (each(lambda tensor: tensor.detach().clone(), tree) for tree in template)
    if batch_size(inputs, targets, views) == 0:
        raise SfumatoError("template holds no example", "give at least one made-up example")
    return inputs, targets


def fits(template: Tree, like: Tree) -> bool:
    """Whether a template has this structure, and real numbers where it has; lengths may differ."""
    if isinstance(template, Tensor) and isinstance(like, Tensor):
        lengths = zip(template.shape[1:], like.shape[1:], strict=False)
        return (
            template.dim() == like.dim()
            and _is_random(template) == _is_random(like)
            and all(have > 0 or want == 0 for have, want in lengths)
        )
    if isinstance(template, dict) and isinstance(like, dict):
        return template.keys() == like.keys() and all(fits(template[key], like[key]) for key in like)
    if isinstance(template, tuple) and isinstance(like, tuple):
        return len(template) == len(like) and all(map(fits, template, like))
    return False


def candidates(like: Examples, template: Examples | None) -> Iterator[Examples]:
    """Made-up inputs and targets (n, ...), the likeliest to be valid first.

    Args:
        like: (B, ...), of which only structure, shapes and types count.
        template: (M, ...), of the same structure; of longer axes the beginning is taken, shorter ones are repeated.
    """
    if template is not None:
        if not fits(template, like):
            raise SfumatoError(
                "template has another structure than the inputs and targets of the call, or numbers of another kind",
                "give made-up examples in the form of the call's own",
            )
        yield each(_taken, like, template)
        return
    for whole in (0, 1):
        yield each(partial(_made, whole=whole, generator=torch.Generator().manual_seed(0)), like)
        if all(map(_is_random, tensors(like))):
            return


def repeated(example: Examples, examples: int) -> Examples:
    """So many copies of the first of some made-up examples."""
    return each(lambda tensor: tensor[:1].expand(examples, *tensor.shape[1:]).clone(), example)


def _is_random(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _made(tensor: Tensor, whole: int, generator: torch.Generator) -> Tensor:
    shape = (_FEW, *tensor.shape[1:])
    if not _is_random(tensor):
        return tensor.new_full(shape, whole)
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(shape, generator=generator, dtype=dtype).to(tensor)


def _taken(like: Tensor, template: Tensor) -> Tensor:
    sizes = (min(max(_FEW, len(template)), _MOST), *like.shape[1:])
    for axis, size in enumerate(sizes):
        if template.shape[axis] != size:
            places = torch.arange(size, device=template.device) % template.shape[axis]
            template = template.index_select(axis, places)
    return template.to(like)
