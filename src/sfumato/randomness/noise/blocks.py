"""Draws numbers by (step, parameter, block), turns them into a step's noise in threads, and adds it to the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.mechanism import Gaussian
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
