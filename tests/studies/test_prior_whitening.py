import pytest
import torch

from sfumato.models.networks.prior import haar
from studies import dead_leaves as formulas
from studies.dead_leaves import whitening


def features(count=4000, atoms=6):
    """Correlated features whose statistics are the same in each quarter (N, n, 4)."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(atoms, atoms, generator=generator) * torch.logspace(0, -1, atoms)
    shared = torch.randn(count, 1, atoms, generator=generator)
    own = torch.randn(count, 4, atoms, generator=generator)
    return ((shared + 0.5 * own) @ mixing + 2).transpose(1, 2)


def test_haar_keeps_lengths_and_tells_sums_from_differences():
    some = torch.randn(5, 3, 4)
    torch.testing.assert_close(haar(some).norm(dim=2), some.norm(dim=2))
    even = haar(torch.ones(1, 1, 4))
    torch.testing.assert_close(even, torch.tensor([[[2.0, 0.0, 0.0, 0.0]]]))
    left = haar(torch.tensor([[[1.0, -1.0, 1.0, -1.0]]]))
    torch.testing.assert_close(left, torch.tensor([[[0.0, 2.0, 0.0, 0.0]]]))


def test_wholly_white_features_have_unit_covariance(monkeypatch):
    monkeypatch.setattr(formulas, "_LEAST", 1e-6)
    some = features()
    white = whitening(some, 1.0)(some)
    within = [part.T @ part / len(part) for part in white.unflatten(1, (4, 6)).unbind(1)]
    for block in within:  # but for the rounding of vectors to 8 bits
        torch.testing.assert_close(block, torch.eye(6), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", ["center", "deviation", "scales"])
def test_a_whitening_holds_only_finite_numbers(name):
    blank = torch.zeros(10, 6, 4)
    assert getattr(whitening(blank), name).isfinite().all()
