"""The methods for a clipped sum of gradients that the benchmarks compare, each a function from a problem to a step.

Every method gets a copy of the same model, and its step ends when it has the clipped sum (no noise, no update). Where a
method can't do a problem it raises, and the tables show its reason.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import sfumato
from benchmarks.shared.measuring import CannotError, Method, Sums
from benchmarks.shared.problems import Problem

MAX_NORM = 1.0
# Of the free memory that per-example gradients may take; as much again is needed for the work on them.
_SHARE = 0.5


def plain(problem: Problem) -> Method:
    """The step that everything is compared with: the gradient of the mean loss of all images."""
    model, images, labels = problem.copy(), problem.images, problem.labels

    def step() -> Sums:
        with problem.casting():
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        return _taken(model)

    return Method(step=step)


def products(problem: Problem) -> Method:
    """The least that a linear layer takes: the products that give its outputs and its weight's gradient."""
    weight, images = problem.copy().get_parameter("weight").detach(), problem.images
    backward = torch.randn(len(images), len(weight), device=images.device)

    def step() -> Sums:
        with problem.casting():
            outputs = images @ weight.T
            del outputs
            return {"weight": backward.T @ images}

    return Method(step=step)


def loop(problem: Problem) -> Sums:
    """The truth that every method must agree with: plain autograd on one example after the other, summed in float64."""
    model = problem.copy()
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in _trained(model).items()}
    for views, target in zip(problem.inputs, problem.targets, strict=True):
        images = views if problem.views > 1 else views.unsqueeze(0)
        with problem.casting():
            loss = F.cross_entropy(model(images), target.expand(len(images)))
        loss.backward()
        gradients = {name: gradient.double() for name, gradient in _taken(model).items()}
        norm = float(sum(gradient.square().sum() for gradient in gradients.values())) ** 0.5
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, MAX_NORM / norm)
    return total


def error(sums: Sums, truth: Sums) -> float:
    """How far the sums are from the truth, relative to the truth's norm."""
    missing = truth.keys() - sums.keys()
    if missing:
        raise CannotError(f"gives no gradient of {', '.join(sorted(missing)[:3])}")
    difference = sum((sums[name].double().to(right.device) - right).square().sum() for name, right in truth.items())
    return float(difference / sum(right.square().sum() for right in truth.values())) ** 0.5


def with_sfumato(problem: Problem, *, moving: bool = False, capture: bool = False) -> Method:
    """The clipped sum.

    Args:
        moving: the weights change before each step, so that what is made of weights is made anew.
        capture: as a CUDA graph, as in `train`.
    """
    if capture and problem.inputs.device.type != "cuda":
        raise CannotError("there are no CUDA graphs here")
    model = problem.copy()
    known = {"max_norm": MAX_NORM, "views": problem.views, "capture": capture}
    gradient = sfumato.ClippedGradient(model, F.cross_entropy, **known)
    signs = itertools.cycle((1e-5, -1e-5))

    def step() -> Sums:
        if moving:
            with torch.no_grad():
                torch._foreach_mul_(list(model.parameters()), 1 + next(signs))
        with problem.casting():
            return gradient(problem.inputs, problem.targets).gradients

    return Method(step=step, model=model)


def with_vmap(problem: Problem) -> Method:
    """torch.func: the gradient of one example's loss, vectorised over examples."""
    _need_room(problem, len(problem.inputs))
    model = problem.copy()
    weights = {name: parameter.detach() for name, parameter in _trained(model).items()}

    def loss(weights: Sums, views: Tensor, target: Tensor) -> Tensor:
        images = views if problem.views > 1 else views.unsqueeze(0)
        with problem.casting():
            return F.cross_entropy(functional_call(model, weights, images), target.expand(len(images)))

    per_example = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> Sums:
        gradients = per_example(weights, problem.inputs, problem.targets)
        norms = torch.stack([gradient.flatten(1).norm(2, dim=1) for gradient in gradients.values()]).norm(2, dim=0)
        factors = (MAX_NORM / (norms + 1e-6)).clamp(max=1.0)
        return {name: torch.einsum("b,b...->...", factors, gradient) for name, gradient in gradients.items()}

    return Method(step=step)


def _opacus(mode: str) -> Callable[[Problem], Method]:
    """Opacus as it is used in its own loop, without noise, up to where its optimizer has the clipped sum.

    It knows no views. With K of them it is given all images, and each example's K gradients are averaged before they
    are clipped.
    """

    def method(problem: Problem) -> Method:
        from opacus.grad_sample import prepare_module
        from opacus.optimizers import DPOptimizer

        _need_room(problem, len(problem.images))
        wrapped = prepare_module(_out_of_place(problem.copy()), mode, loss_reduction="mean")
        optimizer = _optimizer(DPOptimizer, wrapped, problem)
        images, labels, views = problem.images, problem.labels, problem.views

        def step() -> Sums:
            with problem.casting():
                loss = F.cross_entropy(wrapped(images), labels)
            loss.backward()
            if views > 1:
                for parameter in _trained(wrapped).values():
                    parameter.grad_sample = parameter.grad_sample.unflatten(0, (-1, views)).mean(1)
            optimizer.clip_and_accumulate()
            sums = _gradients(wrapped, "summed_grad")
            optimizer.zero_grad(set_to_none=True)
            return sums

        return Method(step=step)

    return method


def with_opacus_ghost(problem: Problem) -> Method:
    """Opacus's ghost clipping: norms in a first backward, and a second one of the weighted losses."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if problem.views > 1:
        raise CannotError("clips images one by one, so has no views")
    wrapped = GradSampleModuleFastGradientClipping(
        _out_of_place(problem.copy()), max_grad_norm=MAX_NORM, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = _optimizer(DPOptimizerFastGradientClipping, wrapped, problem)
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean")

    def step() -> Sums:
        with problem.casting():
            loss = criterion(wrapped(problem.images), problem.labels)
        loss.backward()
        sums = _gradients(wrapped)
        optimizer.zero_grad(set_to_none=True)
        return sums

    return Method(step=step)


def with_jax_privacy(problem: Problem) -> Method:
    from benchmarks.shared import methods_jax

    return methods_jax.method(problem, max_norm=MAX_NORM)


METHODS: dict[str, Callable[[Problem], Method]] = {
    "sfumato": with_sfumato,
    "sfumato-moving": partial(with_sfumato, moving=True),
    "sfumato-captured": partial(with_sfumato, moving=True, capture=True),
    "opacus-hooks": _opacus("hooks"),
    "opacus-functorch": _opacus("functorch"),
    "opacus-ew": _opacus("ew"),
    "opacus-ghost": with_opacus_ghost,
    "vmap": with_vmap,
    "jax-privacy": with_jax_privacy,
}


def make(name: str, problem: Problem) -> Method:
    """The method called `name`; also "plain", and "products" for a linear layer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {**METHODS, "plain": plain, "products": products}[name](problem)
    except ModuleNotFoundError as error:
        raise CannotError(f"{error.name} is not installed") from error


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _gradients(model: nn.Module, attribute: str = "grad") -> Sums:
    found = {name.removeprefix("_module."): getattr(p, attribute, None) for name, p in _trained(model).items()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def _taken(model: nn.Module) -> Sums:
    found = _gradients(model)
    model.zero_grad(set_to_none=True)
    return found


def _optimizer(kind, model: nn.Module, problem: Problem):
    inner = torch.optim.SGD(_trained(model).values(), lr=0.0)
    return kind(inner, noise_multiplier=0.0, max_grad_norm=MAX_NORM, expected_batch_size=len(problem.inputs))


def _out_of_place(model: nn.Module) -> nn.Module:
    """The same function without activations that overwrite their input, which backward hooks don't allow."""
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False
    return model


def _need_room(problem: Problem, gradients: int) -> None:
    needed = 4 * gradients * problem.parameters
    if problem.device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    else:
        free = psutil.virtual_memory().available
    if needed > _SHARE * free:
        raise CannotError(f"needs {needed / 2**30:.0f} GiB for {gradients} gradients")
