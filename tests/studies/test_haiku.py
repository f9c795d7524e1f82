"""Weights of De et al.'s released Wide-ResNets, against their definition in Haiku's names and layouts, in NumPy."""

import numpy as np
import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.models import create
from sfumato.models.networks.resnets import WideResNet
from studies.haiku import convert, read_haiku

GROUPS = (("Block_1", 1), ("Block_2", 2), ("Block_3", 2))
"""The groups of blocks and their strides."""


def published(rng, *, depth, width, classes, channels=3):
    """Made-up parameters under the names and in the shapes of `jax_privacy`'s `WideResNet`."""
    shapes, current = {}, 16

    def convolution(name, kernel, ins, out):
        shapes.update({f"{name}/w": (kernel, kernel, ins, out), f"{name}/bias": (out,), f"{name}/gain": (out,)})

    convolution("First_conv", 3, channels, 16)
    for factor, (name, _) in zip((16, 32, 64), GROUPS, strict=True):
        out = factor * width
        shapes |= {f"{name}_skip_norm/{which}": (current,) for which in ("scale", "offset")}
        convolution(f"{name}_skip_conv", 1, current, out)
        for block in range((depth - 4) // 6):
            for place in range(2):
                shapes |= {f"{name}_norm_{block}_{place}/{which}": (current,) for which in ("scale", "offset")}
                convolution(f"{name}Conv_{block}_{place}", 3, current, out)
                current = out
    shapes |= {f"Final_norm/{which}": (current,) for which in ("scale", "offset")}
    shapes |= {"Softmax/w": (current, classes), "Softmax/b": (classes,)}
    return {f"wide_res_net/{name}": rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


class Forward:
    """Images (N, H, W, C) to logits, from parameters by Haiku's names, in float64."""

    def __init__(self, parameters):
        self.parameters = {name.removeprefix("wide_res_net/"): np.float64(value) for name, value in parameters.items()}

    def unit(self, x, norm, conv, stride):
        """ReLU, group norm of 16 groups, and a convolution."""
        return self.conv(self.norm(np.maximum(x, 0), norm), conv, stride)

    def norm(self, x, name):
        count, height, width, channels = x.shape
        parts = x.reshape(count, height, width, 16, channels // 16)
        mean, variance = parts.mean((1, 2, 4), keepdims=True), parts.var((1, 2, 4), keepdims=True)
        normal = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
        return normal * self.parameters[f"{name}/scale"] + self.parameters[f"{name}/offset"]

    def conv(self, x, name, stride):
        w, gain = self.parameters[f"{name}/w"], self.parameters[f"{name}/gain"]
        spread = np.maximum(w.var((0, 1, 2)) * np.prod(w.shape[:3]), 1e-4)
        w = (w - w.mean((0, 1, 2))) * gain / np.sqrt(spread)
        pads = [self.same(length, len(w), stride) for length in x.shape[1:3]]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), *pads, (0, 0))), w.shape[:2], axis=(1, 2))
        out = np.einsum("nhwcij,ijcd->nhwd", windows[:, ::stride, ::stride], w, optimize=True)
        return out + self.parameters[f"{name}/bias"]

    @staticmethod
    def same(length, kernel, stride):
        """The padding that gives ceil(length / stride) outputs, with the larger half at the end."""
        whole = max((-(-length // stride) - 1) * stride + kernel - length, 0)
        return whole // 2, whole - whole // 2

    def logits(self, x, *, depth):
        x = self.conv(x, "First_conv", 1)
        for name, pace in GROUPS:
            for block in range((depth - 4) // 6):
                stride = pace if block == 0 else 1
                skip = x if block else self.unit(x, f"{name}_skip_norm", f"{name}_skip_conv", stride)
                x = self.unit(x, f"{name}_norm_{block}_0", f"{name}Conv_{block}_0", stride)
                x = self.unit(x, f"{name}_norm_{block}_1", f"{name}Conv_{block}_1", 1) + skip
        features = self.norm(np.maximum(x, 0), "Final_norm").mean((1, 2))
        return features @ self.parameters["Softmax/w"] + self.parameters["Softmax/b"]


def converted(folder, parameters) -> str:
    """The path of a safetensors file with these parameters."""
    np.savez(folder / "theirs.npz", **parameters)
    convert(folder / "theirs.npz", folder / "theirs.safetensors")
    return str(folder / "theirs.safetensors")


@pytest.mark.parametrize(("depth", "width", "size"), [(10, 1, (32, 32)), (16, 2, (12, 9)), (22, 1, (7, 8))])
def test_the_network_computes_what_the_authors_definition_does(tmp_path, depth, width, size):
    """Lengths are halved from even and odd ones, and one filter is so short that the lower bound counts."""
    rng = np.random.default_rng(depth)
    parameters = published(rng, depth=depth, width=width, classes=5)
    parameters["wide_res_net/Block_1Conv_0_0/w"][..., 3] *= 1e-4
    path = converted(tmp_path, parameters)
    images = rng.normal(size=(2, *size, 3))
    name = f"wrn-{depth}-{width},form=de2022"
    model = create(name, classes=5, channels=3, size=size, pretrained=path, head="pretrained").double()
    with torch.no_grad():
        ours = model(torch.from_numpy(images.transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(ours, Forward(parameters).logits(images, depth=depth), rtol=1e-6, atol=1e-6)


def test_the_published_wrn_28_10_has_the_parameters_of_ours(tmp_path):
    """1,000 classes of ImageNet-32."""
    parameters = published(np.random.default_rng(0), depth=28, width=10, classes=1000)
    np.savez(tmp_path / "theirs.npz", **parameters)
    with torch.device("meta"):
        own = WideResNet(depth=28, width=10, classes=1000, channels=3, form="de2022").state_dict()
    stored = read_haiku(tmp_path / "theirs.npz")
    assert {name: value.shape for name, value in stored.items()} == {name: value.shape for name, value in own.items()}
    theirs = parameters["wide_res_net/Block_3Conv_2_1/w"]
    np.testing.assert_array_equal(stored["blocks.10.conv2.weight"], theirs.transpose(3, 2, 0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update({"wide_res_net/Scale_0_1/w": np.ones(1)}), "Scale_0_1/w is no name of its parameters"),
        (lambda p: p.clear(), "it is empty"),
        (lambda p: p.update({"wide_res_net/Softmax/b": np.array([None])}), "cannot be read as an npz archive"),
        (lambda p: p.pop("wide_res_net/Block_2_skip_conv/gain"), "blocks.1.projection.gain is missing from the file"),
        (
            lambda p: p.update({"wide_res_net/First_conv/gain": np.ones((8, 16))}),
            r"stem.gain is \(16, 8\) in the file and \(16,\) in the model",
        ),
    ],
)
def test_other_archives_are_refused(tmp_path, change, message):
    parameters = published(np.random.default_rng(0), depth=10, width=1, classes=5)
    change(parameters)
    with pytest.raises(SfumatoError, match=message):
        create("wrn-10-1,form=de2022", classes=5, channels=3, size=8, pretrained=converted(tmp_path, parameters))
