"""What a model is made of, under torch's names and in its order, by a walk that every call can afford.

``model.named_modules()`` hands each module up through as many generators as it lies deep, and every call looks at all
modules anew: nothing is remembered, so changed modes, hooks and layers are noticed.
"""

from __future__ import annotations

from torch import Tensor, nn


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """As ``model.named_modules()``: every module once, by the first of its names."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module) -> None:
        seen.add(module)
        found.append((name, module))
        for key, child in module._modules.items():
            if child is not None and child not in seen:
                visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return found


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """All places of parameters and buffers by their names; a tensor that is shared has several."""
    return [
        (f"{name}.{key}" if name else key, tensor)
        for name, module in named_modules(model)
        for held in (module._parameters, module._buffers)
        for key, tensor in held.items()
        if tensor is not None
    ]


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """As ``model.named_parameters()``: every parameter once, by the first of its names."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in named_modules(model):
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in first:
                first[id(parameter)] = f"{name}.{key}" if name else key, parameter
    return dict(first.values())
