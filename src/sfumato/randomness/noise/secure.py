"""Noise that is secure on real computers: a Gaussian rounded correctly to a public grid, from cryptographic bits.

Floating-point noise has gaps between its values, and their position depends on the number that the noise is added to:
the low bits of a noisy sum can reveal the sum (Mironov 2012; Jin et al. 2022, arXiv 2112.05307). Here sum and noise are
integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from mpmath import libmp
from scipy.special import ndtri
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients import GridSum
from sfumato.gradients.grid import STEP
from sfumato.privacy.clipping import NoiseGrid, refuse_without_grid
from sfumato.privacy.mechanism import Mechanism
from sfumato.randomness.keys import RunKey
from sfumato.randomness.noise import Noise, NoiseState, PreparedNoise
from sfumato.randomness.noise.blocks import BLOCK, PIECE, blocks_of

FINENESS = 32
"""A grid has at least 2^32 steps per standard deviation, or as many as the grid of sums."""
SUMS_EXPONENT = int(math.log2(STEP))
"""The exponent of the grid that sums lie on, in units of C."""
BITS = 63
"""The bits of a magnitude's first uniform number. The 64th bit is the sign."""
MARGIN = 2.0**-46
"""The assumed error of a float64 quantile x, relative to 1 + x: 32 times the error measured for scipy."""
FEWEST = 1 << 49
"""For uniform numbers below this, in units of 2^-63, further bits may move the quantile by more than MARGIN."""
More = Callable[[int], bytes]
"""Returns this many further random bytes of a coordinate. A longer answer begins with the shorter one."""


class SecureNoise(Noise):
    """Independent Gaussian noise on a public grid, for sums that are integers (`GridSum.integers`).

    Args:
        mechanism, max_norm, key: as for `Noise`; the mechanism must be `Gaussian`.

    **Guarantee.** With d coordinates in all, the release is S' + Z times the grid spacing g, where S' is the sum
    rounded to the grid and each Z is round(N(0, s^2) / g) with s = noise_multiplier * max_norm * (1 + g sqrt(d) / C),
    independent across steps, parameters and coordinates: post-processing of the Gaussian mechanism (`NoiseGrid`). Z has
    exactly that distribution if its bits are uniform. They come from SHAKE-256, keyed by 512 bits of HMAC-SHA512 of the
    run key, and more of them are drawn until they decide (`magnitude`), so the sampler's distance from the ideal is
    zero and uses no part of delta. S' + Z are integers until the noise is added; everything after that is
    post-processing, the same for every sum.
    """

    def __init__(self, mechanism: Mechanism, *, max_norm: float, key: RunKey):
        super().__init__(mechanism, max_norm=max_norm, key=key)
        refuse_without_grid(mechanism)
        refuse_inaccurate()

    def prepare_sum(self, total: GridSum) -> dict[str, Tensor]:
        """The sum as integers."""
        return total.integers

    def prepare(
        self, like: Mapping[str, Tensor], step: int, state: NoiseState | None = None, *, share: tuple[int, int] = (0, 1)
    ) -> PreparedNoise:
        """The noise of a step, as in `Noise.prepare`. It is added to int64 sums, in steps of the grid of sums."""
        self._take_memory(like, self._checked(step, state))
        shapes = {name: value.shape for name, value in like.items()}
        elements = sum(shape.numel() for shape in shapes.values())
        sigma, exponent = self.mechanism.noise_multiplier, grid_of(self.mechanism.noise_multiplier, elements).exponent
        drawing = partial(draw, shapes, step, self._key, scale_of(sigma, elements), share)
        pending = GridNoise(
            drawing,
            shapes,
            ahead=any(value.device.type != "cpu" for value in like.values()),
            coarser=exponent - SUMS_EXPONENT,
            unit=math.ldexp(self.max_norm, exponent),
        )
        return PreparedNoise(pending, NoiseState(step=step + 1))


def grid_of(noise_multiplier: float, elements: int, *, alone: bool = True) -> NoiseGrid:
    """The grid for sums of this many coordinates: C 2^exponent, a multiple of the grid that sums lie on.

    >>> grid_of(1.5, 100).exponent
    -32
    """
    finest = math.floor(math.log2(noise_multiplier)) - FINENESS
    return NoiseGrid(exponent=max(SUMS_EXPONENT, finest), elements=elements, alone=alone)


def scale_of(noise_multiplier: float, elements: int) -> float:
    """s / g, the noise's standard deviation in grid steps: rounded up once, then used exactly."""
    grid = grid_of(noise_multiplier, elements)
    return math.ldexp(noise_multiplier, -grid.exponent) * (1 + grid.widening) * (1 + 2.0**-50)


Receive = Callable[[str, slice, np.ndarray], None]
"""Receives the noise of these coordinates of a parameter, flattened, in grid steps: int64 (n,)."""


def draw(
    shapes: Mapping[str, torch.Size], step: int, key: RunKey, scale: float, share: tuple[int, int], receive: Receive
) -> None:
    """Draws the step's noise for parameters of these shapes and passes it to `receive` by block, from several threads.

    **Guarantee.** Each block of a parameter in a step has its own stream, whoever draws it.
    """
    key = key.for_step(step)

    def work(place: tuple[str, slice]) -> None:
        name, columns = place
        seed = key.xof_seed(f"secure noise {columns.start // BLOCK}", step, name)
        receive(name, columns, rounded_gaussians(seed, columns.stop - columns.start, scale))

    places = blocks_of(shapes)[share[0] :: share[1]]
    if len(places) < 2:
        for place in places:
            work(place)
    else:
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(work, places))


def rounded_gaussians(seed: bytes, size: int, scale: float) -> np.ndarray:
    """round(N(0, scale^2)) of each coordinate, int64 (size,): the same integers on every machine.

    The first 64 bits of each are a sign and k, where 2 Phi(-x) lies in [k, k + 1) 2^-63. A float64 quantile tells which
    integer is nearest to x * scale, unless x * scale is so close to the midpoint of two integers that rounding, or
    further bits, might decide. Those, a few in ten thousand, are computed to as many digits as needed.

    Args:
        seed: secret, at least 256 bits, used for nothing else.
        scale: positive, the standard deviation, a float64 that is used exactly.

    **Guarantee.** Given uniform bits, P[Z = j] = Phi((j + 1/2) / scale) - Phi((j - 1/2) / scale), exactly, if scipy's
    quantile errs by less than `MARGIN` (`refuse_inaccurate` tests this). No value of the sum is read.
    """
    words = np.frombuffer(hashlib.shake_256(seed).digest(8 * size), dtype="<u8")
    result = np.empty(size, np.int64)
    for start in range(0, size, PIECE):
        block = words[start : start + PIECE]
        uniform = block & np.uint64((1 << BITS) - 1)
        scaled = -ndtri((uniform + 0.5) * 2.0 ** -(BITS + 1)) * scale  # x of 2 Phi(-x) = (k + 1/2) 2^-63, roughly
        nearest = np.rint(scaled)
        doubtful = np.abs(scaled - nearest) >= 0.5 - MARGIN * (scaled + scale)
        doubtful |= uniform < np.uint64(FEWEST)
        integers = nearest.astype(np.int64)
        for place in np.flatnonzero(doubtful):
            more = partial(_more, seed, start + int(place))
            integers[place] = magnitude(int(uniform[place]), more, scale)
        result[start : start + PIECE] = np.where(block >> np.uint64(BITS), -integers, integers)
    return result


def _more(seed: bytes, place: int, size: int) -> bytes:
    """Further bits of a coordinate, from a message that differs from the block's and from any other coordinate's."""
    return hashlib.shake_256(seed + place.to_bytes(8, "big")).digest(size)


def magnitude(uniform: int, more: More, scale: float) -> int:
    """round(x * scale), where 2 Phi(-x) is a number whose first 63 bits are known. Exact, using as many bits as needed.

    x * scale lies above b = m + 1/2 if 2 Phi(-x) < 2 Phi(-b / scale) = erfc(b / (scale sqrt 2)).

    Args:
        uniform: the first 63 bits.
        more: provides further bits.
    """
    extra = 0
    while True:
        extra += 16
        bits, value = BITS + 8 * extra, uniform << 8 * extra | int.from_bytes(more(extra), "big")
        if not value:
            continue
        below = math.floor(-float(ndtri(value / (1 << (bits + 1)))) * scale)
        boundary = _tail(below + 0.5, scale, bits)
        if value + 2 <= boundary:
            return below + 1
        if value - 1 >= boundary:
            return below


def _tail(boundary: float, scale: float, bits: int) -> int:
    """erfc(boundary / (scale sqrt 2)) in units of 2^-bits, off by less than 2."""
    digits = bits + 64
    root = libmp.mpf_sqrt(libmp.from_int(2), digits)
    point = libmp.mpf_div(libmp.from_float(boundary), libmp.mpf_mul(libmp.from_float(scale), root, digits), digits)
    return int(libmp.to_fixed(libmp.mpf_erfc(point, digits), bits))


@cache
def refuse_inaccurate() -> None:
    """Refuse a machine whose quantiles err by more than an eighth of `MARGIN`, at points of all their branches."""
    chances = np.concatenate(
        [
            0.5 - 2.0 ** -np.arange(2.0, 50.0),
            np.exp(-np.linspace(1, 36, 120)),
            math.exp(-2) + np.arange(-4, 5) * 2.0**-40,
        ]
    )
    for chance, quantile in zip(chances.tolist(), (-ndtri(chances)).tolist(), strict=True):
        error, value = MARGIN / 8 * (1 + abs(quantile)), int(math.ldexp(chance, 200))
        if not _tail(quantile + error, 1.0, 199) <= value <= _tail(quantile - error, 1.0, 199):
            raise SfumatoError(
                f"scipy's ndtri({chance!r}) is {-quantile!r} on this machine, which is off by more than {error:.1e}",
                "install another build of scipy, or give noise standard",
            )


class GridNoise:
    """Noise on a grid, drawn on the CPU: once the sum is available, or ahead in a thread if a device computes the sum.

    Args:
        drawing: `draw` without its last argument.
        shapes: of the parameters, by name.
        ahead: whether to start at once.
        coarser: by how many powers of two the grid is coarser than that of sums.
        unit: the grid spacing in the units of the gradients.
    """

    def __init__(
        self,
        drawing: Callable[[Receive], None],
        shapes: Mapping[str, torch.Size],
        *,
        ahead: bool,
        coarser: int,
        unit: float,
    ):
        self._drawing, self._coarser, self._unit = drawing, coarser, unit
        if ahead:
            self._drawn = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}
            self._pool = ThreadPoolExecutor(max_workers=1)
            self._done = self._pool.submit(drawing, self._keep)
        self._ahead = ahead

    def _keep(self, name: str, columns: slice, drawn: np.ndarray) -> None:
        self._drawn[name].view(-1)[columns] = torch.from_numpy(drawn)

    def add_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum, int64 in steps of the grid of sums, plus the noise: {name: float32 tensor}."""
        for name, value in total.items():
            if value.dtype != torch.int64:
                raise SfumatoError(
                    f"the sum of {name} is {value.dtype}, but secure noise is added to integers",
                    "give `GridSum.integers`",
                )
        if self._ahead:
            self._done.result()
            self._pool.shutdown()
            return {name: self._noisy(value, self._drawn[name].to(value.device)) for name, value in total.items()}
        noisy = {name: torch.zeros(value.shape, dtype=torch.float32) for name, value in total.items()}

        def receive(name: str, columns: slice, drawn: np.ndarray) -> None:
            columns_of_sum = total[name].reshape(-1)[columns]
            noisy[name].view(-1)[columns] = self._noisy(columns_of_sum, torch.from_numpy(drawn))

        self._drawing(receive)
        return noisy

    def _noisy(self, integers: Tensor, noise: Tensor) -> Tensor:
        """Their exact sum on the grid, converted to floating point only afterwards, in the units of the gradients."""
        on_grid = coarsen(integers, self._coarser) + noise
        return on_grid.to(torch.float64).mul_(self._unit).to(torch.float32)


def coarsen(integers: Tensor, powers: int) -> Tensor:
    """Integers divided by 2^powers, rounded to the nearest integer, halves up: int64.

    >>> coarsen(torch.tensor([-6, -5, 5, 6, 7]), 2).tolist()
    [-1, -1, 1, 2, 2]
    """
    return integers if not powers else (integers + (1 << (powers - 1))) >> powers
