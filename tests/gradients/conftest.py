"""The comparison used by all tests of this folder: `ClippedGradient` against the oracle."""

import os
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

from benchmarks.shared.counting import NAME, counting_device
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import oracle

# Tolerances relative to the norm of the whole clipped sum, by type.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
# Where the comparisons run: `SFUMATO_TEST_DEVICE=cuda pytest tests/gradients` runs them on a GPU, `counting` on the
# device that computes on the CPU and refuses what a GPU would, `forms` on the CPU in the forms of devices.
ASKED = os.environ.get("SFUMATO_TEST_DEVICE", "cpu")
DEVICE = "cpu" if ASKED == "forms" else ASKED
if DEVICE != "cpu":
    torch.backends.cudnn.allow_tf32 = False  # the tolerances are those of float32


@pytest.fixture(autouse=True)
def models_are_checked_once() -> None:
    """Here each time."""


@pytest.fixture
def forms_of_devices(monkeypatch):
    """Gradients in the forms of devices, on the CPU."""
    monkeypatch.setattr("sfumato._devices.has_device_forms", lambda device: True)


@pytest.fixture(autouse=True)
def _forms(request):
    if ASKED == "forms":
        request.getfixturevalue("forms_of_devices")


@pytest.fixture(autouse=True, scope="session")
def the_device():
    """The device that computes on the CPU and refuses what a GPU would, if requested by name."""
    with counting_device() if DEVICE == NAME else nullcontext():
        yield


def on_device(tree):
    """The tensors of a structure, on the device."""
    return tree_map(lambda one: one.to(DEVICE) if isinstance(one, torch.Tensor) else one, tree)


@pytest.fixture
def there():
    """Moves modules and tensors to the device."""
    return lambda *given: tuple(one.to(DEVICE) if isinstance(one, nn.Module) else on_device(one) for one in given)


@pytest.fixture
def a_whole_device():
    """Skips what the counting device lacks by itself: complex numbers, transposed convolutions, recurrent cells."""
    if DEVICE == NAME:
        pytest.skip("the counting device cannot compute this")


class There(ClippedGradient):
    """A gradient whose inputs, targets, keys and weights may lie on the CPU."""

    def __call__(self, *given, **more):
        return super().__call__(*on_device(given), **on_device(more))

    def self_check(self, *given, targets=None):
        return super().self_check(*on_device(given), targets=on_device(targets))

    def explain(self, *given, **more):
        return super().explain(*on_device(given), **on_device(more))


def compare(model, inputs, targets, *, loss=F.cross_entropy, max_norm=0.1, views=1, tolerance=None):
    """Clipped sums and norms equal the oracle's, parameter by parameter; returns the `ClippedGradient`."""
    model.to(DEVICE)
    inputs, targets = on_device((inputs, targets))
    gradient = There(model, loss, max_norm=max_norm, views=views)
    total = gradient(inputs, targets)
    expected, norms, losses = oracle.clipped_sum(model, loss, inputs, targets, max_norm=max_norm, views=views)
    tolerance = tolerance or TOLERANCES[next(iter(total.gradients.values())).dtype]
    torch.testing.assert_close(total.norms, norms, rtol=tolerance, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(total.losses.double(), losses, rtol=tolerance, atol=1e-12, equal_nan=True)
    assert total.gradients.keys() == expected.keys()
    # Rounding is relative to the terms, which may be much longer than the sum: clipped gradients cancel.
    added = torch.where(norms.isfinite(), norms.clamp(max=max_norm), 0.0).sum()
    for name, value in expected.items():
        difference = (total.gradients[name].double() - value).norm()
        assert difference <= tolerance * (value.norm() + 1e-2 * added), name
    return gradient


@pytest.fixture(name="compare")
def compare_fixture():
    return compare


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
