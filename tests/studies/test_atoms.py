import pytest
import torch

from sfumato.models.networks.prior import EVENNESS, WIDTH, normalise_patches
from studies import dead_leaves as learning
from studies.dead_leaves import learn


def test_even_patches_have_no_mean_and_a_contrast_near_one():
    patches = torch.rand(50, 108, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = normalise_patches(patches)
    assert found.mean(1).abs().max() < 1e-6
    expected = (patches - patches.mean(1, keepdim=True)) / (patches.var(1, keepdim=True) + EVENNESS).sqrt()
    torch.testing.assert_close(found, expected)
    assert normalise_patches(torch.full((1, 108), 0.3)).abs().max() < 1e-4  # a blank patch is not blown up


@pytest.fixture
def learnt(monkeypatch):
    """Atoms of stripes in two directions, on a few patches."""
    monkeypatch.setattr(learning, "_PATCHES", 4000)
    phase = torch.rand(60, 1, 1, generator=torch.Generator().manual_seed(0)) * 6
    wave = (torch.arange(16.0) * 1.5 + phase).sin()
    stripes = torch.cat([wave.expand(60, 16, 16), wave.mT.expand(60, 16, 16)]).unsqueeze(1)
    return stripes, learn(stripes, 6, threshold=0.25)


def test_atoms_answer_to_what_they_were_learnt_from(learnt):
    stripes, atoms = learnt
    assert atoms.filters.shape == (WIDTH * WIDTH, 6)
    patches = torch.nn.functional.unfold(stripes, WIDTH).transpose(1, 2)
    answers = normalise_patches(patches) @ atoms.filters + atoms.offsets
    upright, flat = answers[:60].amax((0, 1)), answers[60:].amax((0, 1))
    assert (upright - flat).abs().min() > 1  # each atom belongs to one direction
    assert (answers.amax(2) > 0).float().mean() > 0.9


def test_atoms_follow_from_their_seed(learnt):
    stripes, atoms = learnt
    again, other = learn(stripes, 6, threshold=0.25), learn(stripes, 6, threshold=0.25, seed=1)
    torch.testing.assert_close(again.filters, atoms.filters)
    assert not torch.allclose(other.filters, atoms.filters, atol=1e-2)
