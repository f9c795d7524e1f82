"""The map that follows from a noisy scatter: what it evens out, and that noise alone gives the identity."""

from __future__ import annotations

import torch

from sfumato.embedding.whitening import LEAST, MEAN, MEAN_SHARE, SCATTER, triangle, whitening

WIDTH = 24


def released(scatter: torch.Tensor, mean: torch.Tensor, deviation: float, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    exact = {SCATTER: triangle(scatter), MEAN: MEAN_SHARE * mean}
    return {name: v + deviation * torch.randn(v.shape, generator=generator) for name, v in exact.items()}


def test_without_noise_all_directions_scatter_alike_and_the_mean_is_taken_out():
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(WIDTH, WIDTH, generator=generator)
    scatter = half @ half.T / WIDTH + 0.2 * torch.eye(WIDTH)
    mean = torch.randn(WIDTH, generator=generator)
    matrix, shift = whitening(released(scatter, mean, 0.0), deviation=0.0)
    after = matrix @ scatter @ matrix.T
    torch.testing.assert_close(after, after[0, 0] * torch.eye(WIDTH), rtol=1e-3, atol=1e-3 * float(after[0, 0]))
    torch.testing.assert_close(matrix @ mean + shift, torch.zeros(WIDTH), rtol=0, atol=1e-3)


def test_the_direction_of_the_largest_scatter_keeps_its_length_and_none_is_shortened():
    scatter = torch.diag(torch.linspace(1, 0.01, WIDTH))
    matrix, _ = whitening(released(scatter, torch.zeros(WIDTH), 0.0), deviation=0.0)
    strengths = torch.linalg.eigvalsh(matrix)
    assert abs(float(strengths.min()) - 1) < 1e-4
    floor = LEAST * float(scatter.trace()) / WIDTH
    assert abs(float(strengths.max()) - floor**-0.5) < 1e-3


def test_a_scatter_that_noise_hides_gives_nearly_the_identity_and_no_shift():
    """Where a floor is left out, such noise alone stretches directions several times."""
    scatter, mean = 1e-4 * torch.eye(WIDTH), 0.01 * torch.ones(WIDTH)
    for seed in range(5):
        matrix, shift = whitening(released(scatter, mean, 1.0, seed), deviation=1.0)
        assert torch.linalg.eigvalsh(matrix).max() < 1.6
        unshrunk = released(scatter, mean, 1.0, seed)[MEAN].norm() / MEAN_SHARE
        assert shift.norm() < 0.5 * unshrunk


def test_nothing_released_gives_the_identity():
    empty = {SCATTER: torch.zeros(WIDTH * (WIDTH + 1) // 2), MEAN: torch.zeros(WIDTH)}
    matrix, shift = whitening(empty, deviation=0.0)
    assert torch.equal(matrix, torch.eye(WIDTH))
    assert torch.equal(shift, torch.zeros(WIDTH))
