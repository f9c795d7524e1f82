import pytest
import torch

from sfumato.models import create


def test_it_has_the_size_of_the_one_of_abadi_et_al():
    model = create("tf-tutorial", classes=10, channels=3, size=32)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "conv1.weight": (64, 3, 5, 5),
        "conv2.weight": (64, 64, 5, 5),
        "hidden1.weight": (384, 64 * 6 * 6),
        "hidden2.weight": (384, 384),
        "head.weight": (10, 384),
    }


def test_it_sees_the_middle_24_x_24_alone():
    model, images = create("tf-tutorial,norm=layer", classes=10, channels=3, size=32), torch.randn(2, 3, 32, 32)
    logits, frame = model(images), torch.full((32, 32), True)
    frame[4:28, 4:28] = False
    images[:, :, frame] = 100
    assert torch.equal(model(images), logits)
    images[0, 0, 4, 27] += 1
    assert not torch.equal(model(images)[0], logits[0])


@pytest.mark.parametrize("size", [24, 20, (30, 16)])
def test_smaller_images_stay_whole(size):
    height, width = size if isinstance(size, tuple) else (size, size)
    model = create("tf-tutorial", classes=10, channels=1, size=size)
    assert model(torch.randn(2, 1, height, width)).shape == (2, 10)
