import numpy as np
import pytest
import torch

from sfumato.models.networks.prior import (
    COLOUR,
    EVENNESS,
    GREY,
    WIDTH,
    creation_arguments,
    haar,
    normalise_patches,
    prior_for,
    read,
)
from studies import command
from studies import dead_leaves as making
from studies.dead_leaves import dead_leaves, learn, whitening, write


@pytest.mark.parametrize(("kind", "channels"), [(COLOUR, 3), (GREY, 1)])
def test_a_stored_dictionary_is_what_its_own_record_says(kind, channels):
    prior, record = prior_for(channels), creation_arguments(kind)
    assert record["kind"] == kind
    assert [scale.filters.shape for scale in prior.scales] == [(36 * channels, count) for count in record["atoms"]]
    count = sum(record["atoms"])
    assert prior.whitening.vectors.shape == (4, count, count)
    assert prior.whitening.vectors.dtype == torch.int8
    assert record["images"] >= 2 * count
    assert set(record) == {"kind", "images", "seed", "atoms", "thresholds", "power", "sums", "second"}
    assert making.KINDS[kind]._asdict().items() <= record.items()
    assert record["second"] == (0 if prior.second is None else prior.second.filters.shape[1])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_dictionary_is_read_as_it_was_written(channels, tmp_path):
    prior = prior_for(channels)
    write(prior, tmp_path / "copy.safetensors", made_of={"kind": GREY})
    copy = read(tmp_path / "copy.safetensors")
    assert list(copy.constants()) == list(prior.constants())
    assert all(torch.equal(value, copy.constants()[name]) for name, value in prior.constants().items())


@pytest.mark.slow
def test_making_one_is_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(making, "ATOMS", (4, 2))
    monkeypatch.setattr("studies.dead_leaves._PATCHES", 200)
    out = tmp_path / "small.safetensors"
    assert command.main("dead_leaves", [str(out), "--kind", "grey", "--images", "6", "--seed", "3"]) == 0
    assert "MB" in capsys.readouterr().err
    prior = read(out)
    assert [scale.filters.shape for scale in prior.scales] == [(36, 4), (36, 2)]
    again = making.make("grey", images=6, atoms=(4, 2), seed=3)
    torch.testing.assert_close(prior.scales[0].filters, again.scales[0].filters)
    assert prior.whitening.scales.shape == (4, 6)
    assert prior.second is None


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
    monkeypatch.setattr(making, "_LEAST", 1e-6)
    some = features()
    white = whitening(some, 1.0)(some)
    within = [part.T @ part / len(part) for part in white.unflatten(1, (4, 6)).unbind(1)]
    for block in within:  # but for the rounding of vectors to 8 bits
        torch.testing.assert_close(block, torch.eye(6), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", ["center", "deviation", "scales"])
def test_a_whitening_holds_only_finite_numbers(name):
    blank = torch.zeros(10, 6, 4)
    assert getattr(whitening(blank), name).isfinite().all()


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
    monkeypatch.setattr(making, "_PATCHES", 4000)
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


def drawn(count, **how):
    return dead_leaves(count, processes=1, side=12, **how)


def test_an_image_follows_from_seed_and_place_alone(monkeypatch):
    monkeypatch.setattr("studies.dead_leaves.TOGETHER", 4)
    few, more = drawn(3), drawn(6)
    assert few.shape == (3, 12, 12, 3)
    assert few.dtype == np.uint8
    np.testing.assert_array_equal(few, more[:3])
    assert len(np.unique(more.reshape(len(more), -1), axis=0)) == len(more)
    assert (drawn(3, seed=1) != few).any()
