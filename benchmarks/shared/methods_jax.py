"""jax_privacy on the package's Wide-ResNet: the same weights in plain JAX, compared with JAX's own plain step.

Its peak memory is what XLA's compiler has laid out for the step: temporaries and outputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from benchmarks.shared.measuring import CannotError, Growth, Method, Sums
from benchmarks.shared.problems import Problem
from sfumato.models.networks.resnets import GROUPS, WideResNet
from sfumato.models.norms import _SMALLEST

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from jax_privacy import clipping

# JAX's processor convolutions are fastest with channels last.
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def method(problem: Problem, *, max_norm: float) -> Method:
    """Both steps compiled; JAX decides on its own threads."""
    if not isinstance(problem.model, WideResNet) or problem.model.layers.released:
        raise CannotError("no translation of this model to JAX here")
    if problem.precision != "fp32":
        raise CannotError("translated in float32 only")
    device = jax.devices("gpu" if problem.device == "cuda" else "cpu")[0]
    forward = _forward(problem.model)
    weights = {name: jax.device_put(_from_torch(tensor), device) for name, tensor in problem.model.named_parameters()}
    views = problem.inputs if problem.views > 1 else problem.inputs.unsqueeze(1)
    inputs = jax.device_put(jnp.asarray(views.movedim(-3, -1).cpu().numpy()), device)
    targets = jax.device_put(jnp.asarray(problem.targets.cpu().numpy()), device)

    def loss(weights, images, labels):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(forward(weights, images)), labels[:, None], 1))

    def loss_of_one(weights, images, label):
        return loss(weights, images, jnp.broadcast_to(label, images.shape[:1]))

    def loss_of_all(weights, inputs, targets):
        return loss(weights, inputs.reshape(-1, *inputs.shape[2:]), jnp.repeat(targets, inputs.shape[1]))

    clipped = clipping.clipped_grad(loss_of_one, l2_clip_norm=max_norm, batch_argnums=(1, 2), keep_batch_dim=False)
    private = jax.jit(clipped).lower(weights, inputs, targets).compile()
    plain = jax.jit(jax.grad(loss_of_all)).lower(weights, inputs, targets).compile()

    def sums() -> Sums:
        return {name: _to_torch(value) for name, value in private(weights, inputs, targets).items()}

    return Method(
        step=lambda: jax.block_until_ready(private(weights, inputs, targets)),
        sums=sums,
        plain=lambda: jax.block_until_ready(plain(weights, inputs, targets)),
        growth=lambda: (_growth(plain), _growth(private)),
    )


def _growth(compiled) -> Growth:
    analysis = compiled.memory_analysis()
    size = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    return Growth(first=size, later=size)


def _forward(model: WideResNet) -> Callable:
    """`WideResNet.forward` as a function of weights by name and images (N, H, W, C)."""
    strides = [block.conv1.stride[0] for block in model.blocks]  # pyright: ignore[reportAttributeAccessIssue]

    def convolve(weights, name: str, x, stride: int = 1):
        weight = weights[f"{name}.weight"]
        variance = jnp.var(weight, axis=(0, 1, 2))
        fan_in = weight[..., 0].size
        scale = jax.lax.rsqrt(jnp.maximum(variance * fan_in, _SMALLEST))
        padding = [(weight.shape[0] // 2,) * 2] * 2
        standardised = (weight - weight.mean(axis=(0, 1, 2))) * scale
        x = jax.lax.conv_general_dilated(x, standardised, (stride, stride), padding, dimension_numbers=_LAYOUT)
        return x + weights[f"{name}.bias"]

    def normalise(weights, name: str, x):
        groups = x.reshape(*x.shape[:3], GROUPS, -1)
        mean = groups.mean(axis=(1, 2, 4), keepdims=True)
        variance = groups.var(axis=(1, 2, 4), keepdims=True)
        x = ((groups - mean) * jax.lax.rsqrt(variance + model.norm.eps)).reshape(x.shape)
        return jax.nn.relu(x * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    def forward(weights, images):
        x = convolve(weights, "stem", images)
        for index, stride in enumerate(strides):
            block = f"blocks.{index}"
            activated = normalise(weights, f"{block}.norm1", x)
            branch = convolve(weights, f"{block}.conv1", activated, stride)
            branch = convolve(weights, f"{block}.conv2", normalise(weights, f"{block}.norm2", branch))
            projected = f"{block}.projection.weight" in weights
            x = branch + (convolve(weights, f"{block}.projection", activated, stride) if projected else x)
        features = normalise(weights, "norm", x).mean(axis=(1, 2))
        return features @ weights["head.weight"].T + weights["head.bias"]

    return forward


def _from_torch(tensor: torch.Tensor) -> jax.Array:
    values = tensor.detach().cpu()
    return jnp.asarray((values.permute(2, 3, 1, 0) if values.dim() == 4 else values).numpy())


def _to_torch(array: jax.Array) -> torch.Tensor:
    values = torch.tensor(jax.device_get(array))
    return values.permute(3, 2, 0, 1) if values.dim() == 4 else values
