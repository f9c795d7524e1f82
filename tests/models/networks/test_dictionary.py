import copy

import pytest
import torch
from torch.nn import functional

from sfumato import SfumatoError
from sfumato.gradients import per_example_outputs
from sfumato.models import create, trunk_of
from sfumato.models.networks.dictionary import FEATURE_NORM, NORM_WITH_WAVELETS, SMALLEST, Dictionary, Scattering
from sfumato.models.networks.prior import prior_for


def images(channels, size, count=3):
    noise = torch.rand(count, channels, size + 4, size + 4, generator=torch.Generator().manual_seed(0))
    return 6 * functional.avg_pool2d(noise, 5, 1) - 3


def model(channels, size):
    return Dictionary(classes=3, channels=channels, size=(size, size))


@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 33), (1, 41)])
def test_features_of_every_size_have_the_stated_norm(channels, size):
    norms = model(channels, size).features(images(channels, size)).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((3,), FEATURE_NORM))


def test_a_colour_image_and_its_mirror_image_have_the_same_features():
    some = images(3, 32)
    colour = model(3, 32)
    torch.testing.assert_close(colour.features(some), colour.features(some.flip(3)), atol=1e-5, rtol=0)
    grey, letters = model(1, 28), images(1, 28)
    assert (grey.features(letters) - grey.features(letters.flip(3))).norm() > 0.1  # d is no b


@pytest.mark.parametrize(("spelling", "channels"), [("dictionary", 3), ("dictionary,wavelets=0.85", 1)])
def test_features_are_those_of_each_image_alone(spelling, channels):
    colour, some = create(spelling, classes=3, channels=channels, size=32), images(channels, 32, 20)
    together = colour.features(some)
    assert (
        torch.equal(together[:4], colour.features(some[:4])) or (together[:4] - colour.features(some[:4])).norm() < 1e-4
    )
    other = some.clone()
    other[1:] = torch.nan
    torch.testing.assert_close(colour.features(other)[0], together[0], atol=1e-5, rtol=0)


def test_it_is_a_fixed_trunk_and_a_head_from_zero():
    colour = create("dictionary", classes=3, channels=3, size=32)
    assert [name for name, _ in colour.named_parameters()] == ["head.weight", "head.bias"]
    assert colour(images(3, 32)).abs().max() == 0
    trunk = trunk_of(colour, (3, 32, 32))
    assert trunk is not None
    with torch.no_grad():
        torch.testing.assert_close(
            per_example_outputs(trunk, images(3, 32)), colour.features(images(3, 32)), atol=1e-5, rtol=0
        )


def test_a_model_file_opens_without_the_stored_dictionary():
    colour = model(3, 32)
    held = colour.state_dict()
    constants = prior_for(3).constants()
    assert set(held) == {"head.weight", "head.bias", *constants}
    assert all(torch.equal(held[name], value) for name, value in constants.items())
    assert held["vectors"].dtype == held["second_vectors"].dtype == torch.int8
    assert sum(value.numel() * value.element_size() for value in held.values()) < 15e6


def test_other_dictionaries_than_the_stored_one_can_be_given():
    prior = prior_for(1)
    fewer = prior._replace(whitening=prior.whitening._replace(scales=2 * prior.whitening.scales))
    grey = Dictionary(classes=2, channels=1, size=(28, 28), prior=fewer)
    torch.testing.assert_close(grey.features(images(1, 28)), model(1, 28).features(images(1, 28)))  # of one length


def test_both_layers_have_the_same_length():
    colour, some = model(3, 32), images(3, 32)
    alone = Dictionary(prior_for(3)._replace(second=None, second_whitening=None), classes=2, channels=3, size=(32, 32))
    found, first = colour.features(some), alone.features(some)
    torch.testing.assert_close(found[:, : first.shape[1]], first / 2**0.5)
    torch.testing.assert_close(found[:, first.shape[1] :].norm(dim=1), torch.full((3,), FEATURE_NORM / 2**0.5))


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_wavelets_stand_beside_the_dictionary_with_their_share_of_the_length(channels, size):
    both = create("dictionary,wavelets=0.75", classes=2, channels=channels, size=size)
    some, alone = images(channels, size), model(channels, size)
    found, width = both.features(some), alone.head.in_features
    torch.testing.assert_close(found[:, :width], alone.features(some) * (0.5 * NORM_WITH_WAVELETS / FEATURE_NORM))
    waves = Scattering(classes=2, channels=channels, size=(size, size))
    expected = waves.features(some) + (waves.features(some.flip(3)) if channels == 3 else 0)
    torch.testing.assert_close(found[:, width:], functional.normalize(expected) * NORM_WITH_WAVELETS * 0.75**0.5)
    torch.testing.assert_close(found.norm(dim=1), torch.full((3,), NORM_WITH_WAVELETS))
    assert both.head.in_features == found.shape[1]


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_an_image_of_one_grey_has_no_rounding_errors_brought_to_length(channels, size):
    both = create("dictionary,wavelets=0.75", classes=2, channels=channels, size=size)
    greys = torch.linspace(-1, 1, 5).reshape(-1, 1, 1, 1).expand(-1, channels, size, size)
    single, double = both.features(greys), copy.deepcopy(both).double().features(greys.double())
    torch.testing.assert_close(single, double.float(), atol=2e-3, rtol=0)  # of vectors of length 12.5; else about 1
    faint = greys.clone()
    faint[:, :, size // 2, size // 2] *= 0.999  # less than a level
    torch.testing.assert_close(both.features(faint), single, atol=0.1, rtol=0)


@pytest.mark.parametrize("share", ["0", "1", "nan", "half"])
def test_a_share_of_wavelets_that_is_none_is_refused(share):
    with pytest.raises(SfumatoError, match="wavelets"):
        create(f"dictionary,wavelets={share}", classes=2, channels=1, size=28)


def test_too_small_images_are_refused_with_what_to_take():
    with pytest.raises(SfumatoError, match=f"at least {SMALLEST}, got") as refused:
        create("dictionary", classes=2, channels=1, size=SMALLEST - 1)
    assert "scattering" in refused.value.remedy
