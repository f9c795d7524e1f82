"""What a file has built: no more than its own weights can fill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules import module as registration

from sfumato._checks import SfumatoError

TIMES = 8
MORE_TENSORS, MORE_NUMBERS = 1 << 10, 1 << 28
"""What a network may have besides: layers that are replaced as it is built, a classifier that is taken off."""


@contextmanager
def bounded(path: Path) -> Iterator[None]:
    """While a network is built by the word of a file: refuse one that its weights come nowhere near to filling.

    Layer by layer, before a layer's numbers are drawn: a name of a few letters can ask for a million layers.

    Args:
        path: a safetensors file.

    Raises:
        SfumatoError: the network has more than `TIMES` as many tensors or numbers, and some more.
    """
    with safe_open(path, framework="pt") as file:
        sizes = [prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 - it is no mapping
    most = TIMES * len(sizes) + MORE_TENSORS, TIMES * sum(sizes) + MORE_NUMBERS
    found, own = [0, 0], threading.get_ident()

    def count(layer: nn.Module, name: str, tensor: Any) -> None:
        if threading.get_ident() != own or not isinstance(tensor, Tensor):
            return
        found[0] += 1
        found[1] += tensor.numel()
        if found[0] > most[0] or found[1] > most[1]:
            raise SfumatoError(
                f"{path} names a network that is far larger than the {len(sizes)} tensors that it holds",
                "restore it from a copy",
            )

    hooks = [
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
