"""The noise of a step: the numbers of each (step, parameter, block), independent or correlated, added to the sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.mechanism import BandedToeplitz, Gaussian, Tree
from sfumato.randomness.keys import RunKey

BLOCK = 1 << 20
"""The numbers of a parameter that one generator draws, so that several workers can draw the noise of one parameter."""
PIECE = 1 << 14
"""The numbers of a block that are processed at once: they and their buffers stay in the processor's cache."""

Fresh = Callable[[str], np.ndarray]
"""Given a stream, returns as many independent N(0, 1) as a piece has: float64 (n,)."""


class StepNoise(Protocol):
    """How a mechanism makes a step's noise, in standard deviations, from fresh numbers and what it remembers.

    It treats all coordinates alike, so a parameter can be processed in pieces.
    """

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """The step's noise: float64 (n,). `buffers`, float64 (buffers, n), is updated in place."""
        ...


class GaussianNoise:
    """Fresh numbers in every step. Nothing is remembered (De 2022, equation 2)."""

    def __init__(self, mechanism: Gaussian):
        pass

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """N(0, 1) in every coordinate."""
        return fresh("noise")


Receive = Callable[[str, slice, np.ndarray], None]
"""Receives the noise of these coordinates of a parameter, flattened, in the units of the sum: float64 (n,)."""


def draw(
    rule: StepNoise,
    shapes: Mapping[str, torch.Size],
    buffers: Mapping[str, Tensor],
    step: int,
    key: RunKey,
    standard_deviation: float,
    share: tuple[int, int],
    receive: Receive,
) -> None:
    """Draws the step's noise for parameters of these shapes and passes it to `receive` by block, from several threads.

    Args:
        buffers: the remembered noise, {name: float64 (buffers, *its shape)} on the CPU; updated in place.
        share: (i, n) for every n-th block from the i-th on; (0, 1) for all.

    **Guarantee.** Different steps, parameters and blocks have separate generators, which draw float64 by the ziggurat;
    the noise is computed from these numbers in float64.

    The bits that a key draws are the same everywhere. The numbers are too, except beyond 3.65 standard deviations (one
    in 3,900): these are logarithms of the C library, whose last bit in float64 depends on the library.
    """
    sizes, key = {name: shape.numel() for name, shape in shapes.items()}, key.for_step(step)

    def work(place: tuple[str, slice]) -> None:
        name, columns = place
        block = columns.start // BLOCK
        remembered = buffers[name].view(len(buffers[name]), sizes[name])[:, columns].numpy()
        drawn = np.empty(columns.stop - columns.start)
        generators: dict[str, np.random.Generator] = {}
        for start in range(0, len(drawn), PIECE):
            piece = drawn[start : start + PIECE]

            def fresh(stream: str, size: int = len(piece)) -> np.ndarray:
                if stream not in generators:
                    # The first block has the plain stream name.
                    generators[stream] = key.generator(f"{stream} {block}" if block else stream, step, name)
                return generators[stream].standard_normal(size)

            noise = rule.noise(step, fresh, remembered[:, start : start + PIECE])
            np.multiply(noise, standard_deviation, out=piece)
        receive(name, columns, drawn)

    places = blocks_of(shapes)[share[0] :: share[1]]
    if sum(sizes.values()) < BLOCK:
        for place in places:
            work(place)
    else:
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(work, places))


def blocks_of(shapes: Mapping[str, torch.Size]) -> list[tuple[str, slice]]:
    """All blocks of parameters of these shapes: the parameter's name, and the range of its coordinates."""
    return [
        (name, slice(start, min(start + BLOCK, shape.numel())))
        for name, shape in shapes.items()
        for start in range(0, shape.numel(), BLOCK)
    ]


class CPUNoise:
    """Noise that is drawn once the sum is available, and added block by block while the block is in the cache.

    Args:
        drawing: `draw` without its last argument.
    """

    def __init__(self, drawing: Callable[[Receive], None]):
        self._drawing = drawing

    def add_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor}, rounded once, together."""
        noisy = {name: torch.zeros(value.shape, dtype=torch.float32) for name, value in total.items()}

        def receive(name: str, columns: slice, drawn: np.ndarray) -> None:
            noisy[name].view(-1)[columns] = torch.from_numpy(drawn) + total[name].reshape(-1)[columns]

        self._drawing(receive)
        return noisy


class PrefetchedNoise:
    """Noise for a sum on a device. It is drawn on the CPU while the device computes, and copied to the device once.

    Args:
        drawing: `draw` without its last argument. It starts at once, in its own thread.
        shapes: of the parameters, by name.
        device: of the sum.
    """

    def __init__(self, drawing: Callable[[Receive], None], shapes: Mapping[str, torch.Size], device: torch.device):
        self._shapes, self._device = shapes, device
        sizes = [shape.numel() for shape in shapes.values()]
        starts = dict(zip(shapes, np.cumsum([0, *sizes]).tolist(), strict=False))
        self._host = torch.zeros(sum(sizes), dtype=torch.float64, pin_memory=device.type == "cuda")
        flat = self._host.numpy()

        def receive(name: str, columns: slice, drawn: np.ndarray) -> None:
            flat[starts[name] + columns.start : starts[name] + columns.stop] = drawn

        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done = self._pool.submit(drawing, receive)

    def add_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor} on the device, rounded once, together."""
        self._done.result()
        self._pool.shutdown()
        on_device = self._host.to(self._device, non_blocking=True).split(
            [shape.numel() for shape in self._shapes.values()]
        )
        by_parameter = zip(self._shapes.items(), on_device, strict=True)
        return {name: (noise.view(shape) + total[name]).to(torch.float32) for (name, shape), noise in by_parameter}


AHEAD = 8
"""For how many steps the contribution of earlier steps is computed at once. Checkpoint states depend on it."""
SMALL = 1 << 18
"""A BLAS does up to this many multiplications in the calling thread. The threads here are our own."""


class TreeNoise:
    """The noise of a step is N_t - N_{t-1}, N_t that of the prefix sum (Honaker 2015; Kairouz et al. 2021, section 3):

        node of height h = fresh + (left + right) / 2,     of variance  v_h = 2 - 2^-h
        N_t = sum over the complete subtrees that make up the first t leaves:  node / v_h

    Buffer h holds the last complete node of height h. The step after `position` leaves completes one node. Its height
    is the number of trailing ones of `position` in binary, and the nodes of lower heights become part of it.

    **Guarantee.** The fresh numbers of all nodes that one step completes reach a release only through the highest of
    them, so they are drawn as one Gaussian of the same variance: the joint distribution of all N_t is that of a tree
    with an independent number in each node. Trees after a restart have independent numbers, and so has a completion,
    whose noise enters with the first step of the next tree.
    """

    def __init__(self, mechanism: Tree):
        self._leaves, self._completed = mechanism.steps_per_tree, mechanism.completed

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """N_t - N_{t-1}, in standard deviations of a node."""
        position = step % self._leaves if self._leaves else step
        height = (~position & (position + 1)).bit_length() - 1
        node, noise = _merged(range(height), height, fresh("noise"), buffers)
        if self._leaves and self._completed and step and not position:
            noise += self._completion(self._leaves, fresh, buffers)
        buffers[height] = node
        return noise

    def _completion(self, leaves: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """The change of the finished tree's noise when virtual leaves fill it up to a power of two."""
        levels = [level for level in range(leaves.bit_length()) if leaves >> level & 1]
        return _merged(levels, (leaves - 1).bit_length(), fresh("completion"), buffers)[1]


def _merged(
    levels: Sequence[int], height: int, fresh: np.ndarray, buffers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The node of this height that contains the kept nodes of these levels, and the change of the prefix's noise."""
    known_variance = sum(_variance(level) * 4.0 ** (level - height) for level in levels)
    node = fresh
    node *= math.sqrt(_variance(height) - known_variance)
    change = np.zeros_like(node)
    for level in levels:
        node += 2.0 ** (level - height) * buffers[level]
        change -= buffers[level] / _variance(level)
    change += node / _variance(height)
    return node, change


def _variance(height: int) -> float:
    """The variance of a merged node. Its estimate of its leaves' sum, node / variance, has variance 1 / (2 - 2^-h)."""
    return 2 - 2.0**-height


class BandedToeplitzNoise:
    """C^-1 z by forward substitution (Choquette-Choo et al. 2023, arXiv 2306.08153, algorithm 9):

        zhat_t = z_t - sum_{j=1}^{b-1} c_j zhat_{t-j}

    with b - 1 buffers: zhat of step t replaces the oldest one, in buffer t mod (b - 1). Reading all buffers in every
    step would dominate the time. So they are read once for the next `AHEAD` steps: the part of each of these steps' sum
    that is already known is stored in the buffer that the step itself will use.
    """

    def __init__(self, mechanism: BandedToeplitz):
        self._coefficients = np.array(mechanism.coefficients)
        self._count = len(mechanism.coefficients) - 1
        self._ahead = min(AHEAD, self._count)

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """zhat of the step."""
        noise = fresh("noise")
        if not self._count:
            return noise
        begun = step - step % self._ahead
        if step == begun:
            self._look_ahead(step, buffers)
        place = step % self._count
        noise -= buffers[place]
        for earlier in range(begun, step):
            noise -= self._coefficients[step - earlier] * buffers[earlier % self._count]
        buffers[place] = noise
        return noise

    def _look_ahead(self, step: int, buffers: np.ndarray) -> None:
        """Store what earlier steps subtract from the noise of the next `AHEAD` steps, in the buffers of these steps."""
        coming = step + np.arange(self._ahead)
        past = step - 1 - np.arange(self._count)
        distance = coming[:, None] - past
        weights = np.zeros((self._ahead, self._count))
        weights[:, past % self._count] = np.where(
            distance <= self._count, self._coefficients[np.minimum(distance, self._count)], 0.0
        )
        width = max(1, SMALL // weights.size)
        for start in range(0, buffers.shape[1], width):
            columns = buffers[:, start : start + width]
            columns[coming % self._count] = weights @ columns
