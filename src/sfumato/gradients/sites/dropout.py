"""Dropout: masks that depend on the example's own key only, not on the other examples of the batch.

Every mask comes from a counter-based generator (Philox), keyed by the example and positioned by the number of the draw
in the forward pass. The same keys give the same masks, however the examples are split into batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients.methods.batch_axis import apply_batched, is_batched

# Number of 64-bit words in an example's key.
WORDS = 4


class ExampleDraws:
    """The random numbers of one run.

    Args:
        examples: B.
        keys: (B, 4) int64, 256 bits for each example; by default drawn from torch's global generator when first needed.
    """

    def __init__(self, examples: int, keys: Tensor | None):
        self._examples, self._user_keys = examples, keys
        self.count = 0

    @cached_property
    def _keys(self) -> np.ndarray:
        keys = fresh_keys(self._examples) if self._user_keys is None else self._user_keys
        return keys.cpu().contiguous().numpy().view(np.uint64)

    def bernoulli(self, probability: float, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """(B, *shape) booleans, each True with this probability: the next draw of every example."""
        result = np.empty((self._examples, *shape), dtype=bool)
        for row, words in zip(result, self._keys, strict=True):
            place = np.array([0, self.count, words[2], words[3]], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=words[:2], counter=place))
            np.less(generator.random(shape, dtype=np.float32), probability, out=row)
        self.count += 1
        return torch.from_numpy(result).to(device)


def fresh_keys(examples: int) -> Tensor:
    """Draws keys from torch's global generator: different in each call, reproducible from its seed."""
    halves = torch.randint(-(2**31), 2**31, (examples, WORDS, 2), dtype=torch.int64)
    return (halves[..., 0] << 32) ^ (halves[..., 1] & 0xFFFFFFFF)


def tap(mode, input, p=0.5, training=True, inplace=False):
    """The handler of ``F.dropout``."""
    return _dropped(mode, input, p, training, tuple(input.shape))


def tap_plain(mode, input, p, train):
    """The handler of ``torch.dropout``."""
    return _dropped(mode, input, p, train, tuple(input.shape))


def tap_channels(dimensions: int) -> Callable:
    """The handler of ``F.dropout1d``, ``F.dropout2d`` or ``F.dropout3d``: whole channels of (K, C, ...)."""

    def handler(mode, input, p=0.5, training=True, inplace=False):
        if input.dim() != dimensions + 2:
            return NotImplemented
        return _dropped(mode, input, p, training, (*input.shape[:2], *[1] * dimensions))

    return handler


def _dropped(mode, inputs: Tensor, p: float, training: bool, mask_shape: tuple[int, ...]):
    if not training or p == 0 or not 0 <= p <= 1 or not mode.can_draw(inputs):
        return NotImplemented
    draws, keep = mode.tape.draws, 1.0 - p

    def masked(values: Tensor) -> Tensor:
        mask = draws.bernoulli(keep, mask_shape, values.device).to(values.dtype)
        return values * mask.div_(keep if keep > 0 else 1.0)

    return apply_batched(masked, inputs)


def tap_bernoulli(mode, input, p=0.5, *, generator=None):
    """The handler of ``Tensor.bernoulli_`` with a single probability, which implementations of stochastic depth use."""
    if generator is not None or not isinstance(p, (int, float)) or not mode.can_draw(input):
        return NotImplemented
    draws = mode.tape.draws
    return input.copy_(
        apply_batched(lambda values: draws.bernoulli(p, values.shape[1:], values.device).to(values.dtype), input)
    )


def tap_new(make: Callable) -> Callable:
    """The handler of ``Tensor.new_zeros`` and similar methods: new tensors to which a model may write an example."""

    def handler(mode, self, *size, **options):
        shape = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list, torch.Size)) else size
        if not is_batched(self) or not all(isinstance(side, int) for side in shape) or options.get("requires_grad"):
            return NotImplemented
        return apply_batched(lambda values: make(values, (len(values), *shape), **options), self)

    return handler


HANDLERS: dict[Callable, Callable] = {
    F.dropout: tap,
    torch.dropout: tap_plain,
    F.dropout1d: tap_channels(1),
    F.dropout2d: tap_channels(2),
    F.dropout3d: tap_channels(3),
    Tensor.bernoulli_: tap_bernoulli,
    **{make: tap_new(make) for make in (Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones)},
}
