"""Synthetic examples, on which everything about a model is found out, never on private ones.

Only structure, shapes and types of a call's inputs and targets are read. The values come from a template of synthetic
or public examples that the user gives. Without a template, real numbers are random; integers, which may be classes,
tokens or lengths, are all zero, or all one if the model fails on zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients.examples import Tree, batch_size, tree_map, tree_tensors

# Inputs and targets.
Examples = tuple[Tree, Tree]
# The number of examples without a template, and the largest number taken from one.
_FEW, _MOST = 2, 8


def check_template(template: Examples, views: int) -> Examples:
    """Returns the template; refuses one that is not a pair of inputs and targets as in a call."""
    if not isinstance(template, (tuple, list)) or len(template) != 2:
        raise SfumatoError(
            f"template must be a pair (inputs, targets) of synthetic examples, got {type(template).__name__}",
            "give two arguments of a call, with synthetic or public values",
        )
    inputs, targets = (tree_map(lambda tensor: tensor.detach().clone(), tree) for tree in template)
    if batch_size(inputs, targets, views) == 0:
        raise SfumatoError("template holds no example", "give at least one synthetic example")
    return inputs, targets


def fits(template: Tree, like: Tree) -> bool:
    """Whether a template has this structure, and real numbers in the same places; lengths may differ."""
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
    """Yields synthetic inputs and targets (n, ...), starting with those that are most likely to be valid.

    Args:
        like: (B, ...), of which only structure, shapes and types are read.
        template: (M, ...), of the same structure; longer axes are truncated, and shorter ones repeated.
    """
    if template is not None:
        if not fits(template, like):
            raise SfumatoError(
                "template differs in structure, or in kind of number, from the inputs and targets of the call",
                "give synthetic examples in the form of the call's arguments",
            )
        yield tree_map(_resized, like, template)
        return
    for whole in (0, 1):
        yield tree_map(partial(_synthetic, whole=whole, generator=torch.Generator().manual_seed(0)), like)
        if all(map(_is_random, tree_tensors(like))):
            return


def repeat_first(example: Examples, examples: int) -> Examples:
    """Repeats the first of some synthetic examples."""
    return tree_map(lambda tensor: tensor[:1].expand(examples, *tensor.shape[1:]).clone(), example)


def _is_random(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _synthetic(tensor: Tensor, whole: int, generator: torch.Generator) -> Tensor:
    shape = (_FEW, *tensor.shape[1:])
    if not _is_random(tensor):
        return tensor.new_full(shape, whole)
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(shape, generator=generator, dtype=dtype).to(tensor)


def _resized(like: Tensor, template: Tensor) -> Tensor:
    sizes = (min(max(_FEW, len(template)), _MOST), *like.shape[1:])
    for axis, size in enumerate(sizes):
        if template.shape[axis] != size:
            places = torch.arange(size, device=template.device) % template.shape[axis]
            template = template.index_select(axis, places)
    return template.to(like)
