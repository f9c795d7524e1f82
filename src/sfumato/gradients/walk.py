"""A fast walk over a model's modules and tensors, with torch's names and order.

``model.named_modules()`` passes each module up through as many generators as it is deep. Every call of the engine walks
the model again, so that changed modes, hooks and layers are noticed; nothing is cached.
"""

from __future__ import annotations

from torch import Tensor, nn


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Like ``model.named_modules()``: every module once, under its first name."""
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
    """Every parameter and buffer with its name; a shared tensor appears under each of its names."""
    return [
        (f"{name}.{key}" if name else key, tensor)
        for name, module in named_modules(model)
        for held in (module._parameters, module._buffers)
        for key, tensor in held.items()
        if tensor is not None
    ]


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Like ``model.named_parameters()``: every parameter once, under its first name."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in named_modules(model):
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in first:
                first[id(parameter)] = f"{name}.{key}" if name else key, parameter
    return dict(first.values())
