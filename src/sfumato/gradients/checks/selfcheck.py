"""The self-check: compares a `ClippedGradient` with the oracle on synthetic examples, including adversarial ones."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.gradients.checks import oracle, precision
from sfumato.gradients.checks.discovery import first_line, preserved_random_state
from sfumato.gradients.checks.isolation import unchanged_state
from sfumato.gradients.checks.synthetic import Examples
from sfumato.gradients.checks.without_randomness import WithoutRandomness
from sfumato.gradients.examples import Tree, call_model, in_precision, tree_map, tree_tensors

if TYPE_CHECKING:
    from sfumato.gradients.sums import ClippedSum

Gradient = Callable[[Tree, Tree], "ClippedSum"]

# (scale, offset) of the synthetic examples: ordinary ones, a large offset, tiny and huge scales, and a constant.
_KINDS = ((1.0, 0.0), (1.0, 0.0), (1.0, 1000.0), (1e-6, 0.0), (1e4, 0.0), (0.0, 1.0))
# Relative differences allowed in float64, and in the model's own type.
_SHARP, _LOOSE = 1e-6, 5e-2
# Difference of a gradient that is computed twice, relative to its length.
_REPEATED = 1e-3
# The oracle's own rounding error is allowed this many times on top.
_ROUNDING = 30.0
# Fraction of the whole gradients' size added to each parameter's, because some have hardly any gradient of their own,
# and gradients may cancel.
_NEGLIGIBLE = 1e-2
# The engine enlarges norms this small to cover what their squares lose in float32; no clipping norm is as small.
_VANISHING = 1e-12
# Fraction of the median norm of the synthetic examples that is float32 rounding; matters for nearly vanishing norms.
_OF_OTHERS = 1e-7
_REMEDY = (
    "do not train with this model as it is: a layer computes something else when examples run one at a time, or the "
    "loss is not a mean over views; report it if neither is true"
)


def synthetic(
    model: nn.Module,
    example_shape: Any,
    targets: Tree | None,
    views: int,
    *,
    examples: int,
    template: Examples | None,
) -> Examples:
    """Creates synthetic inputs (E, ...) or (E, K, ...) and targets (E, ...), on the model's device, in its type.

    Args:
        example_shape: as in `ClippedGradient.self_check`; None for that of the template.
        targets: (M, ...) to use in turn, or None for the template's, or for the classes of the model's output.
    """
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    generator = torch.Generator().manual_seed(1)
    kinds = [_KINDS[index % len(_KINDS)] for index in range(examples)]

    def draw(shape: tuple[int, ...]) -> Tensor:
        lead = (examples,) if views == 1 else (examples, views)
        values = torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)
        column = (examples, *[1] * (values.dim() - 1))
        scales, offsets = torch.tensor(kinds, dtype=torch.float64).t()
        return (values * scales.reshape(column) + offsets.reshape(column)).to(like)

    def build(spec: Any) -> Tree:
        if isinstance(spec, Tensor):
            if spec.is_floating_point():
                return draw(tuple(spec.shape)).to(spec.dtype)
            if spec.is_complex():
                return torch.view_as_complex(draw((*spec.shape, 2))).to(spec.dtype)
            return torch.stack([spec if views == 1 else torch.stack([spec] * views)] * examples).to(like.device)
        if isinstance(spec, dict):
            return {key: build(value) for key, value in spec.items()}
        if isinstance(spec, (tuple, list)):
            if all(isinstance(size, int) and size > 0 for size in spec):
                return draw(tuple(spec))
            if all(isinstance(part, (tuple, list, dict, Tensor)) for part in spec):
                return tuple(build(part) for part in spec)
        raise SfumatoError(
            f"example_shape must be a shape such as (3, 32, 32), got {spec!r}", "give one example's shape"
        )

    def in_turn(tensor: Tensor) -> Tensor:
        return tensor[torch.arange(examples, device=tensor.device) % len(tensor)]

    def redrawn(tensor: Tensor) -> Tensor:
        real = tensor.is_floating_point()
        return (draw(tuple(tensor.shape[1 if views == 1 else 2 :])) if real else in_turn(tensor)).to(tensor)

    if example_shape is not None:
        inputs = build(example_shape)
    elif template is not None:
        inputs, targets = tree_map(redrawn, template[0]), template[1] if targets is None else targets
    else:
        raise SfumatoError("example_shape is missing", "give one example's shape, or build the object with template=")
    if targets is None:
        return inputs, torch.arange(examples, device=like.device) % count_classes(model, inputs, views)
    return inputs, tree_map(in_turn, targets)


def count_classes(model: nn.Module, inputs: Tree, views: int) -> int:
    """The width of the model's output (N, classes) on synthetic inputs (E, ...), or (E, K, ...) with views."""
    batch = tree_map(lambda tensor: (tensor[:2] if views == 1 else tensor[0]).clone(), inputs)
    state = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad(), preserved_random_state(), unchanged_state(model, None):
        try:
            outputs = call_model(model, state, batch)
            outputs = getattr(outputs, "logits", outputs)
        except Exception as error:
            raise SfumatoError(
                f"the model fails on a synthetic example of the given shape: {first_line(error)}",
                "check example_shape",
            ) from error
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        raise SfumatoError("the model's output is not (N, classes), so its targets are unknown", "give targets=")
    return outputs.shape[1]


def check(
    gradient: Gradient,
    build: Callable[[nn.Module, Examples], Gradient],
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    synthetic: Examples,
    *,
    max_norm: float,
    views: int,
) -> None:
    """Raises an error if the clipped sums or norms differ from the oracle's.

    The first comparison is sharp, in float64 on a copy of the model, where two correct computations agree to many
    digits. The second is loose, in the model's own type: an example with a large offset may have hardly a correct
    digit, and one activation that rounds to the other side of zero moves a gradient by parts in a thousand. There, a
    multiple of the oracle's own error is allowed too.

    Args:
        gradient: the gradient to check.
        build: builds an equivalent gradient for a copy of the model and examples of its type.
    """
    everything = list(range(len(tree_tensors(synthetic)[0])))

    def truth(index: int, dtype: torch.dtype | None) -> _Answer:
        one = tree_map(itemgetter(slice(index, index + 1)), synthetic)
        gradients, norms, _ = oracle.clipped_sum(model, loss, *one, max_norm=max_norm, views=views, dtype=dtype)
        return _Answer(gradients, norms)

    device = tree_tensors(synthetic)[0].device
    with preserved_random_state(), WithoutRandomness(), _devices.deterministic(device):
        plain = [truth(index, None) for index in everything]
        if not _repeats(partial(truth, 0), device):
            raise SfumatoError(
                "the model gives different gradients for the same example, so it cannot be checked",
                "draw random numbers with torch's dropout functions, or switch them off with .eval()",
            )
        exact = plain
        with contextlib.suppress(Exception):  # a model with hard-coded types has no float64 form
            doubled = copy.deepcopy(model)._apply(_double)
            exact = [truth(index, torch.float64) for index in everything]
        if exact is not plain:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="this model cannot be vectorised")
                examples = tree_map(_double, synthetic)
                sharp = build(doubled, examples)
                for chosen in ([0], everything):
                    try:
                        _compare(sharp, examples, chosen, exact, exact, relative=_SHARP)
                    except SfumatoError:
                        precision.refuse_autocast(doubled, examples, views)
                        raise
        _compare(gradient, synthetic, everything, plain, exact, relative=_LOOSE)


def _double(tensor: Tensor) -> Tensor:
    return in_precision(tensor, torch.float64)


class _Answer(NamedTuple):
    gradients: dict[str, Tensor]
    norms: Tensor


def _add_up(answers: list[_Answer]) -> _Answer:
    gradients = {name: sum(answer.gradients[name] for answer in answers) for name in answers[0].gradients}
    return _Answer(gradients, torch.cat([answer.norms for answer in answers]))  # type: ignore[arg-type]


def _repeats(truth: Callable[[torch.dtype | None], _Answer], device: torch.device) -> bool:
    """Whether the same example has the same gradient each time.

    On a device that adds in any order, this holds up to rounding; in float64, rounding can be told apart from random
    numbers drawn inside the model.
    """
    first, second = truth(None), truth(None)
    if _agree(first, second, 0.0):
        return True
    if device.type == "cpu":
        return _agree(first, second, _REPEATED)
    _devices.warn_nondeterministic("the gradient of this model")
    with contextlib.suppress(Exception):  # a model with hard-coded types has no float64 form
        return _agree(truth(torch.float64), truth(torch.float64), _SHARP)
    return _agree(first, second, _LOOSE)


def _agree(first: _Answer, second: _Answer, relative: float) -> bool:
    def close(value: Tensor, other: Tensor) -> bool:
        least = 1e-3 * relative * float(value.abs().max())
        return torch.allclose(value, other, rtol=relative, atol=least, equal_nan=True)

    return all(close(value, second.gradients[name]) for name, value in first.gradients.items() if value.numel())


def _compare(
    gradient: Gradient,
    synthetic: Examples,
    chosen: list[int],
    plain: list[_Answer],
    exact: list[_Answer],
    *,
    relative: float,
) -> None:
    finite = [i for i in chosen if all(bool(one[i].norms.isfinite().all()) for one in (plain, exact))]
    if not finite:
        raise SfumatoError(
            "the gradients of all synthetic examples are not finite", "check the model, the loss and example_shape"
        )
    total = gradient(*tree_map(itemgetter(finite), synthetic))
    ours = _Answer({name: value.double() for name, value in total.gradients.items()}, total.norms)
    squares = sum(value.square().sum() for i in finite for value in exact[i].gradients.values())
    plain_sum, exact_sum = (_add_up([answers[i] for i in finite]) for answers in (plain, exact))
    _compare_answers(ours, plain_sum, exact_sum, relative, whole=math.sqrt(squares))


def _compare_answers(ours: _Answer, plain: _Answer, exact: _Answer, relative: float, *, whole: float) -> None:
    def size(value: Tensor) -> float:
        return float(value.square().sum().sqrt())

    differences, allowed = {}, {}
    for name, value in exact.gradients.items():
        rounding = _ROUNDING * size(plain.gradients[name] - value)
        allowed[name] = relative * (size(value) + _NEGLIGIBLE * whole) + rounding
        difference = size(ours.gradients[name] - value) if name in ours.gradients else math.inf
        differences[name] = math.inf if math.isnan(difference) else difference
    # A wrong norm changes every parameter's sum a little; report the parameter with the largest excess.
    worst = max(differences, key=lambda name: differences[name] / max(allowed[name], sys.float_info.min))
    if not differences[worst] <= allowed[worst]:
        raise SfumatoError(
            f"the clipped sum for parameter {worst!r} differs from the plain computation by {differences[worst]:.3g}; "
            f"{allowed[worst]:.3g} is allowed",
            _REMEDY,
        )
    negligible = _VANISHING + _OF_OTHERS * exact.norms.median()
    allowed_norms = relative * exact.norms + _ROUNDING * (plain.norms - exact.norms).abs() + negligible
    wrong = (ours.norms - exact.norms).abs() > allowed_norms
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise SfumatoError(
            f"the gradient norm of synthetic example {row} is {float(ours.norms[row]):.6g}, "
            f"the plain computation gives {float(exact.norms[row]):.6g}",
            _REMEDY,
        )
