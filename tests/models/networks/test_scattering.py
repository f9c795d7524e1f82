import pytest
import torch

from sfumato.models.networks.dictionary import WAVELET_NORM, Scattering, morlet_filters


def images(channels, size):
    """Noise on the scale -1 to 1, smoothed so that it has contrast at every scale, as photographs do."""
    noise = torch.rand(4, channels, size + 4, size + 4, generator=torch.Generator().manual_seed(0))
    return 6 * torch.nn.functional.avg_pool2d(noise, 5, 1) - 3


def test_filters_ignore_brightness_and_have_unit_sum():
    filters = morlet_filters(6).double()
    real, imaginary = filters.chunk(2)
    assert filters.shape == (12, 1, 5, 5)
    assert filters.sum((1, 2, 3)).abs().max() < 1e-6
    torch.testing.assert_close(torch.hypot(real, imaginary).sum((1, 2, 3)), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_feature_vectors_come_close_to_the_stated_norm(channels, size):
    norms = Scattering(classes=3, channels=channels, size=(size, size)).features(images(channels, size)).norm(dim=1)
    assert norms.max() <= WAVELET_NORM * 1.0001
    assert norms.min() > 0.7 * WAVELET_NORM


@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_blank_images_have_features_near_zero(value):
    model = Scattering(classes=3, channels=1, size=(28, 28))
    assert model.features(torch.full((1, 1, 28, 28), value)).norm() < 0.01


def test_large_images_do_not_blow_up_the_head():
    small, large = (Scattering(classes=10, channels=3, size=(side, side)) for side in (32, 224))
    assert large.head.weight.numel() <= 1.3 * small.head.weight.numel()


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 32, 32), (3, 12, 20)])
def test_features_of_a_mirror_image_are_those_of_the_image_in_another_order(channels, height, width):
    model = Scattering(classes=2, channels=channels, size=(height, width))
    drawn = torch.rand(3, channels, height, width, generator=torch.Generator().manual_seed(0))
    order = model.mirror_order()
    assert sorted(order.tolist()) == list(range(model.head.in_features))
    torch.testing.assert_close(model.features(drawn)[:, order], model.features(drawn.flip(-1)), rtol=0, atol=1e-5)
    assert not torch.allclose(model.features(drawn), model.features(drawn.flip(-1)), atol=1e-2)


def test_that_order_is_known_of_a_model_elsewhere():
    """On an accelerator, or in another type, a made-up image on the CPU would be refused."""
    model = Scattering(classes=2, channels=1, size=(28, 28))
    order = model.mirror_order()
    assert torch.equal(model.double().mirror_order(), order)
    assert model.filters.dtype == torch.float64, "the model stays where it is"


@pytest.mark.parametrize(("height", "width"), [(13, 13), (30, 31)])
def test_sides_whose_windows_lie_otherwise_from_the_other_end_have_no_such_order(height, width):
    assert Scattering(classes=2, channels=1, size=(height, width)).mirror_order() is None
