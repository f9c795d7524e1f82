"""Secure noise: exact beside another way of computing it, the same on all machines, integers until it is released."""

import hashlib
import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from sfumato import Gaussian, RunKey, SfumatoError
from sfumato.gradients import GridSum
from sfumato.gradients.grid import STEP
from sfumato.privacy import QuantileClipping
from sfumato.privacy.clipping import refuse_without_grid
from sfumato.privacy.mechanism import Tree
from sfumato.randomness.noise import secure
from sfumato.randomness.noise.secure import GridNoise, SecureNoise, grid_of, magnitude, rounded_gaussians, scale_of

SEED = bytes(range(64))
KEY = RunKey.from_seed(0)


def noise_of(sigma: float = 1.0, *, max_norm: float = 0.5, key: RunKey = KEY) -> SecureNoise:
    return SecureNoise(Gaussian(noise_multiplier=sigma), max_norm=max_norm, key=key)


def zeros(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}


def by_inversion(words: np.ndarray, scale: float, seed: bytes = SEED) -> list[int]:
    """The same by mpmath's inverse error function on 319 bits: another formula, one coordinate at a time."""
    found = []
    with mpmath.workprec(500):
        for place, word in enumerate(words.tolist()):
            more = hashlib.shake_256(seed + place.to_bytes(8, "big")).digest(32)
            bits = (word & (1 << 63) - 1) << 256 | int.from_bytes(more, "big")
            x = mpmath.sqrt(2) * mpmath.erfinv(1 - mpmath.mpf(bits) / (1 << 319)) * mpmath.mpf(scale)
            found.append(int(mpmath.floor(x + 0.5)) * (-1 if word >> 63 else 1))
    return found


@pytest.mark.parametrize("scale", [0.3, 275.5, 2.0**32 * 1.7])
def test_each_number_is_that_of_another_formula_at_500_bits(scale):
    words = np.frombuffer(hashlib.shake_256(SEED).digest(8 * 60), "<u8")
    assert rounded_gaussians(SEED, 60, scale).tolist() == by_inversion(words, scale)


@pytest.mark.parametrize("uniform", [0, 1, 2, 1000, secure.FEWEST - 1, (1 << 62) + 1, (1 << 63) - 2, (1 << 63) - 1])
def test_tails_and_middle_are_those_of_the_other_formula(uniform):
    more = partial(secure._more, SEED, 0)
    expected = by_inversion(np.array([uniform], np.uint64), 2.0**32)
    assert [magnitude(uniform, more, 2.0**32)] == expected


def test_bits_are_drawn_until_they_decide():
    """A uniform number that lies on the boundary between 1 and 2 for the first 191 bits, and then below it or above."""
    scale, bits = 3.0, 63 + 128
    with mpmath.workprec(600):
        boundary = int(mpmath.floor(mpmath.erfc(mpmath.mpf(1.5) / (3 * mpmath.sqrt(2))) * (1 << bits)))
    for last, expected in ((0x00, 2), (0xFF, 1)):
        asked = []

        def more(size: int, last: int = last, asked: list[int] = asked) -> bytes:
            asked.append(size)
            return ((boundary & ((1 << 128) - 1)).to_bytes(16, "big") + bytes([last]) * 32)[:size]

        assert magnitude(boundary >> 128, more, scale) == expected
        assert asked[:2] == [16, 32]


def test_the_quick_path_gives_what_the_exact_one_gives(monkeypatch):
    quick = rounded_gaussians(SEED, 2000, 2.0**32.9)
    monkeypatch.setattr(secure, "FEWEST", (1 << 64) - 1)
    assert (rounded_gaussians(SEED, 2000, 2.0**32.9) == quick).all()


@pytest.mark.parametrize("off", [2.0**-49, -(2.0**-49), None])
def test_another_machines_quantiles_give_the_same_integers(off, monkeypatch):
    here = rounded_gaussians(SEED, 1 << 18, 2.0**33)

    def elsewhere(chances):
        drift = np.random.default_rng(0).choice([-1, 1], np.shape(chances)) * 2.0**-49 if off is None else off
        return special.ndtri(chances) * (1 + drift)

    monkeypatch.setattr(secure, "ndtri", elsewhere)
    assert (rounded_gaussians(SEED, 1 << 18, 2.0**33) == here).all()


@pytest.mark.parametrize(("off", "refused"), [(0.0, False), (2.0**-51, False), (2.0**-40, True), (-(2.0**-46), True)])
def test_a_machine_whose_quantiles_are_wrong_is_refused(off, refused, monkeypatch):
    monkeypatch.setattr(secure, "ndtri", lambda chances: special.ndtri(chances) * (1 + off))
    secure.refuse_inaccurate.cache_clear()
    try:
        if refused:
            with pytest.raises(SfumatoError, match="on this machine, which is off by more than"):
                noise_of()
        else:
            noise_of()
    finally:
        secure.refuse_inaccurate.cache_clear()


def fits(found: np.ndarray, scale: float) -> bool:
    """Chi-square of the frequencies within three deviations, and of those beyond on either side."""
    reach = round(3 * scale)
    edges = np.arange(-reach - 0.5, reach + 1)
    chances = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / scale))
    counts = np.bincount(np.searchsorted(edges, found), minlength=len(chances))
    return stats.chisquare(counts, chances * len(found)).pvalue > 1e-6


@pytest.mark.parametrize("scale", [0.4, 2.3])
def test_frequencies_on_a_coarse_grid_are_differences_of_the_normal_law(scale):
    found = rounded_gaussians(SEED, 1 << 19, scale)
    assert fits(found, scale)
    assert not fits(found, scale * 1.01)
    assert not fits(found + 1, scale)


def test_the_deviation_is_the_multipliers_for_the_widened_norm():
    for sigma, elements in ((0.8, 10), (6.2, 10**7), (300.0, 10**9)):
        grid = grid_of(sigma, elements)
        expected = sigma * (1 + 2.0**grid.exponent * math.sqrt(elements)) / 2.0**grid.exponent
        assert expected <= scale_of(sigma, elements) <= expected * (1 + 2**-48)
        assert 2.0**32 <= sigma / 2.0**grid.exponent < 2.0**33
        assert grid.widening < 1.01 * sigma * 2.0**-32 * elements**0.5
    assert grid_of(1.0, 10**7).widening < 1e-6
    assert 2.0 ** grid_of(1e-9, 4).exponent == STEP, "never finer than sums are"
    values = noise_of(3.0).add(zeros(w=(200_000,)), 0)["w"].double().numpy()
    assert abs((values**2).mean() / 1.5**2 - 1) < 5.5 * math.sqrt(2 / len(values))


def test_sum_and_noise_are_added_as_integers():
    noise, sigma = noise_of(20.0, max_norm=0.3), 20.0
    elements, exponent = 5, grid_of(sigma, 5).exponent
    total = {"w": torch.tensor([0, 1 << 61, -(1 << 61) - 12345, 511, 513])}
    found = noise.add(total, 7)["w"]
    drawn = rounded_gaussians(KEY.xof_seed("secure noise 0", 7, "w"), elements, scale_of(sigma, elements))
    step = 1 << (exponent - secure.SUMS_EXPONENT)
    rounded = [(value + step // 2) // step for value in total["w"].tolist()]
    exact = [(mine + int(noise)) * (0.3 * 2.0**exponent) for mine, noise in zip(rounded, drawn, strict=True)]
    assert found.dtype == torch.float32
    assert found.tolist() == torch.tensor(exact, dtype=torch.float64).float().tolist()


@pytest.mark.parametrize("value", [0.0, 1 / 3, 0.1234567])
def test_what_can_come_out_does_not_depend_on_the_sum(value):
    """Mironov's attack: with noise of floating-point numbers few sums can have given the number that came out."""
    sigma, like = 2.0**-17, {"w": torch.zeros(2000)}
    total = GridSum(like, max_norm=1.0)
    total.add({"w": torch.full((2000,), value)})
    found = noise_of(sigma, max_norm=1.0).add(total.integers, 0)["w"].double()
    assert (found / STEP == (found / STEP).round()).all()
    generator = torch.Generator().manual_seed(0)
    floating = sigma * torch.randn(2000, dtype=torch.float64, generator=generator) + value
    assert not (floating / STEP == (floating / STEP).round()).any()


def test_neighbours_rounded_sums_differ_by_no_more_than_the_widened_norm():
    generator, powers = torch.Generator().manual_seed(0), 8
    for _ in range(50):
        total = torch.randint(-(1 << 40), 1 << 40, (64,), generator=generator)
        moved = torch.randn(64, generator=generator, dtype=torch.float64)
        moved = (moved / moved.norm() * 2.0**12).trunc().to(torch.int64)
        apart = secure.coarsen(total + moved, powers) - secure.coarsen(total, powers)
        assert float(apart.double().norm()) <= 2.0 ** (12 - powers) + math.sqrt(64)
        assert (secure.coarsen(total, powers) * (1 << powers) - total).abs().max() <= 1 << (powers - 1)


def test_blocks_are_the_same_whoever_draws_them(monkeypatch):
    monkeypatch.setattr("sfumato.randomness.noise.blocks.BLOCK", 7)
    monkeypatch.setattr(secure, "BLOCK", 7)
    monkeypatch.setattr(secure, "PIECE", 3)
    like = zeros(a=(4, 5), none=(0,), b=())
    noise = noise_of()
    whole = noise.add(like, 3)
    shares = [noise.prepare(like, 3, share=(rank, 3)).add_to(like)[0] for rank in range(3)]
    for name, value in whole.items():
        assert torch.equal(value, sum(part[name] for part in shares))
    assert len(set(whole["a"].flatten().tolist())) == 20


def test_noise_that_is_drawn_ahead_for_a_device_is_the_same():
    like, found = zeros(a=(4, 5), b=()), []
    scale = scale_of(1.0, 21)
    for ahead in (False, True):
        drawing = partial(secure.draw, {name: value.shape for name, value in like.items()}, 2, KEY, scale, (0, 1))
        on_grid = GridNoise(drawing, {n: v.shape for n, v in like.items()}, ahead=ahead, coarser=6, unit=0.5 * 2.0**-32)
        found.append(on_grid.add_to(like))
    assert all(torch.equal(found[0][name], found[1][name]) for name in like)
    assert torch.equal(found[0]["a"], noise_of().add(like, 2)["a"])


def test_a_state_knows_its_step():
    noise, like = noise_of(), zeros(w=(3,))
    _, state = noise.add(like, 0, noise.begin())
    assert state.step == 1
    assert not state.tensors
    with pytest.raises(SfumatoError, match="the noise's state is that of step 1"):
        noise.add(like, 0, state)


def test_what_is_no_integer_or_no_independent_noise_is_refused():
    with pytest.raises(SfumatoError, match=r"the sum of w is torch.float64, but secure noise is added to integers"):
        noise_of().add({"w": torch.zeros(3, dtype=torch.float64)}, 0)
    with pytest.raises(SfumatoError, match="noise is secure, but the mechanism adds up noise of several steps"):
        SecureNoise(Tree(noise_multiplier=1.0), max_norm=1.0, key=KEY)
    with pytest.raises(SfumatoError, match="noise is secure, but the clipping norm follows a quantile"):
        refuse_without_grid(
            Gaussian(noise_multiplier=1.0), QuantileClipping(max_norm=1.0, quantile=0.5, count_noise=2.0)
        )
