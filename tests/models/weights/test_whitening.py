"""Whitening by the second moment of public features: the law of the map, and the backbone that applies it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.models import Architecture, build_backbone, whitened
from sfumato.models.backbone import LEAST_SHRINKAGE, shrinkage, whitening


@given(images=st.integers(1, 200), width=st.integers(1, 12), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32 - 1))
def test_public_features_get_the_identity_as_their_shrunken_second_moment(images, width, scale, seed):
    """A ((1 - rho) M + rho tr(M) / D I) A is the identity, for any number of images."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(width, width, generator=generator, dtype=torch.float64)
    features = scale * torch.randn(images, width, generator=generator, dtype=torch.float64) @ mixed
    moment = features.T @ features / images
    map_, half = (whitening(moment, images=images, power=power).double() for power in (1, 0.5))
    rho = shrinkage(images, width)
    shrunken = (1 - rho) * moment + rho * moment.trace() / width * torch.eye(width)
    torch.testing.assert_close(map_ @ shrunken @ map_, torch.eye(width, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(map_, map_.T)
    torch.testing.assert_close(half @ half / map_.norm(), map_ / map_.norm(), atol=1e-4, rtol=0)


def test_many_images_give_the_identity_up_to_the_least_shrinkage():
    features = torch.randn(50_000, 4, generator=torch.Generator().manual_seed(0)) @ torch.diag(
        torch.tensor([1, 2, 3, 4.0])
    )
    assert shrinkage(50_000, 4) == LEAST_SHRINKAGE
    moment = features.T.double() @ features.double() / len(features)
    white = features @ whitening(moment, images=len(features), power=1)
    torch.testing.assert_close(white.T @ white / len(features), torch.eye(4), atol=0.3, rtol=0)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "all zero"), (float("nan"), "not finite"), (float("inf"), "not finite")]
)
def test_features_without_a_second_moment_are_refused(value, words):
    with pytest.raises(SfumatoError, match=words):
        whitening(torch.full((3, 3), value), images=10)


@pytest.mark.parametrize("name", ["wrn-10-1", "timm:resnet10t"])
def test_the_map_is_a_part_of_the_backbone_and_of_its_weights(name):
    plain = build_backbone(Architecture(name=name, size=16))
    images = torch.randn(4, 3, 16, 16)
    features = plain(images)
    moment = features.T.double() @ features.double() / 4
    white = whitened(plain, moment, images=4, by="0" * 64)
    torch.testing.assert_close(white(images), features @ whitening(moment, images=4))
    again = build_backbone(Architecture(**white.architecture.to_dict()))
    again.load_state_dict(white.state_dict())
    torch.testing.assert_close(again(images), white(images))
    torch.testing.assert_close(plain(images), features)
    assert "whitened_by" not in plain.architecture.to_dict()
