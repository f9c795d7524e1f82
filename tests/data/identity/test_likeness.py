"""Copies by features: near ones are found, different images are not, and one private image says nothing of another."""

import pytest
import torch

from sfumato import SfumatoError
from sfumato.data import duplicates, find_alike


@pytest.fixture
def public() -> torch.Tensor:
    return 3 + torch.randn(200, 32, generator=torch.Generator().manual_seed(0))


def near(features: torch.Tensor, share: float) -> torch.Tensor:
    """Features at a distance of about this share of what different ones have."""
    other = torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    return features + share**0.5 * other


def test_near_features_are_found_and_others_are_not(public):
    private = torch.cat([near(public[:20], 0.05), 3 + torch.randn(50, 32, generator=torch.Generator().manual_seed(2))])
    pairs = find_alike(public, private)
    assert [(pair.private, pair.public) for pair in pairs] == [(place, place) for place in range(20)]
    assert all(pair.by_features and 0 < pair.difference < duplicates.NEARER for pair in pairs)


def test_a_public_image_with_copies_in_the_public_set_is_found_too(public):
    repeated = torch.cat([public, public[:1], public[:1]])
    assert [pair.private for pair in find_alike(repeated, near(public[:1], 0.05))] == [0]


def test_a_private_image_is_looked_for_by_itself(public, monkeypatch):
    private = near(public[:40], 0.1)
    whole = {pair.private: pair.public for pair in find_alike(public, private)}
    assert len(whole) > 20
    fewer = find_alike(public, private[1:])
    assert {pair.private + 1: pair.public for pair in fewer} == {key: whole[key] for key in whole if key > 0}
    odd = find_alike(public, torch.cat([private, -1e4 * public[:3]]))
    assert {pair.private: pair.public for pair in odd if pair.private < 40} == whole, "however odd the others are"
    differences = [pair.difference for pair in find_alike(public, private)]
    assert [pair.difference for pair in odd if pair.private < 40] == pytest.approx(differences, abs=1e-5)
    monkeypatch.setattr(duplicates, "_BLOCK", 7)
    assert {pair.private: pair.public for pair in find_alike(public, private)} == whole


def test_a_public_set_of_a_few_images_is_refused(public):
    with pytest.raises(SfumatoError, match="the public set has 3 images, but comparing features requires at least 4"):
        find_alike(public[:3], public)
