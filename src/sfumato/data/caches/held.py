"""Training records that lie on the device from the first step on, as they are stored: images as bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato.data.parts import Part

DEVICE_SHARE = 0.25
"""How much of an accelerator's free memory the records may take; most of it is for a step's activations."""
BLOCK = 1 << 26
"""Bytes that are copied at once."""


class Held:
    """Records and their labels on a device.

    **Guarantee.** Each row is its record as it is stored, and `take` gives the rows asked for, so a step's inputs are
    those that reading the records in the step would give. All records are copied, once, before the first step; later
    only positions go to the device.

    Args:
        records: N images uint8 (N, S, S, C), or texts int32 (N, T).
        device: where they go.
        advance: is told how many have been copied.
    """

    def __init__(self, records: Part, device: torch.device, advance: Callable[[int], None] = lambda done: None):
        each = max(1, BLOCK // max(1, _bytes(records) // max(1, len(records))))
        dtype = torch.from_numpy(records.take(slice(0, 0)).copy()).dtype
        self._stored = torch.empty(records.shape, dtype=dtype, device=device)
        for start in range(0, len(records), each):
            block = records.take(slice(start, start + each))
            self._stored[start : start + each] = _devices.sent(np.require(block, requirements=["C", "W"]), device)
            advance(min(start + each, len(records)))
        self._labels = _devices.sent(np.require(records.labels, requirements=["C", "W"]), device)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The records in these rows (n,) as they are stored, (n, ...), and their labels (n,) or (n, L)."""
        there = _devices.sent(rows, self._stored.device)
        return self._stored.index_select(0, there), self._labels.index_select(0, there)


def fits(records: Part, device: torch.device) -> bool:
    """Whether they are to lie there: on an accelerator, where they take at most a share of its free memory."""
    return device.type != "cpu" and _bytes(records) <= DEVICE_SHARE * _devices.free_memory(device)


def _bytes(records: Part) -> int:
    """Of all records as they are stored."""
    return math.prod(records.shape) * records.take(slice(0, 0)).itemsize
