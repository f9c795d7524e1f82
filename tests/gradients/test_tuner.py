"""Methods are chosen by timing, once for each shape, and kept; `explain` shows them."""

import json
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient, tuner


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(tuner, "_MEASURED", {})
    monkeypatch.setattr(tuner, "_SMALL", 0)
    monkeypatch.setattr("sfumato._devices.has_device_forms", lambda device: False)  # devices measure nothing


def net():
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()),
        *(
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Flatten(2),
            nn.Linear(64, 5),
            nn.GroupNorm(2, 6),
            nn.Flatten(),
            nn.Linear(30, 4),
        ),
    )


def batch(examples=3):
    return torch.randn(examples, 3, 8, 8), torch.arange(examples) % 4


def test_each_shape_is_measured_once(monkeypatch):
    measured = []
    right = tuner._fastest
    monkeypatch.setattr(tuner, "_fastest", lambda *a: measured.append(1) or right(*a))
    gradient = ClippedGradient(net(), F.cross_entropy)
    gradient(*batch())
    gradient(*batch(7))
    assert len(measured) == len(gradient.methods) == 3
    ClippedGradient(net(), F.cross_entropy)(*batch())
    assert len(measured) == 3


def test_the_faster_way_is_taken(monkeypatch):
    for favourite in ("loop", "grouped", "unfold"):
        monkeypatch.setattr(tuner, "_MEASURED", {})
        slow = iter(count())

        def seconds(action, device, rival=1.0, favourite=favourite, slow=slow):
            names = action.__closure__ and [c.cell_contents for c in action.__closure__]
            return 0.1 if favourite in names else 1.0 + next(slow)

        monkeypatch.setattr(tuner, "_seconds", seconds)
        gradient = ClippedGradient(net()[:1].append(nn.Flatten()), F.cross_entropy)
        gradient(*batch())
        assert favourite in next(iter(gradient.methods.values()))


def test_a_way_that_keeps_large_gradients_must_be_much_faster(monkeypatch):
    def seconds(action, device, rival=1.0):
        return 0.9 if "Tiled" in action.__qualname__ or "keeping" in action.__qualname__ else 1.0

    monkeypatch.setattr(tuner, "_seconds", seconds)
    small, large = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    for layer, word in ((small, "keep"), (large, ("gram", "drop"))):
        gradient = ClippedGradient(nn.Sequential(layer, nn.Flatten()), F.cross_entropy)
        gradient(torch.randn(2, layer.in_channels, 4, 4), torch.arange(2))
        assert next(iter(gradient.methods.values())).startswith(word)


@pytest.mark.parametrize(
    ("width", "views", "way"),
    [(4800, 2, "gram"), (512, 2, "gram"), (512, 4, "gram"), (512, 8, "keep product"), (16, 8, "keep product")],
)
def test_a_small_linear_map_takes_its_gram_form_unmeasured_where_it_has_few_positions(monkeypatch, width, views, way):
    """Twice T (d + p) products at most d p: with d = 10 up to 4 views, whatever the width."""
    monkeypatch.setattr(tuner, "_SMALL", 300_000)
    monkeypatch.setattr(tuner, "_fastest", None)
    torch.manual_seed(0)
    head, features, labels = nn.Linear(width, 10), torch.randn(6, views, width), torch.arange(6)
    gradient = ClippedGradient(head, F.cross_entropy, views=views)
    found = gradient(features, labels)
    assert set(gradient.methods.values()) == {way}
    slow = ClippedGradient(head, F.cross_entropy, views=views, methods=dict.fromkeys(gradient.methods, "drop product"))
    for one, other in zip(found.gradients.values(), slow(features, labels).gradients.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_discovery_measures_on_made_up_numbers(monkeypatch):
    """The timed tensors do not hold an example's numbers, so nothing private can affect the choice."""
    seen = []
    right = tuner._fastest
    monkeypatch.setattr(
        tuner, "_fastest", lambda kernel, x, g: seen.append(float(x.abs().max())) or right(kernel, x, g)
    )
    x, y = batch()
    ClippedGradient(net(), F.cross_entropy)(x + 1e6, y)
    assert max(seen) < 1e3


def test_explain_shows_every_site():
    model = nn.Sequential(net(), nn.Dropout(0.1))
    model.scale = nn.Parameter(torch.ones(4))
    model.forward = lambda x: nn.Sequential.forward(model, x) * model.scale
    gradient = ClippedGradient(model, F.cross_entropy)
    state = torch.get_rng_state()
    found = gradient.explain(torch.zeros(4, 3, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert found.examples == 4
    assert found.expanded == ("scale",)
    assert [row.kind for row in found.rows] == ["conv"] * 3 + ["linear", "norm", "linear", "all else"]
    assert {name for row in found.rows for name in row.parameters} == {name for name, _ in model.named_parameters()}
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.seconds)
    assert all(row.bytes > 0 for row in found.rows[:-1])
    text = str(found)
    assert "0.0 (weight, bias)" in text or "0.0 (bias, weight)" in text
    assert all(row.method in text for row in found.rows)
    assert json.loads(json.dumps(found.to_dict()))["views"] == 1


@pytest.mark.filterwarnings("ignore:this model cannot be vectorised")
def test_explain_needs_the_fast_path():
    class Wandering(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float(x.sum())

    with pytest.raises(SfumatoError, match="one example at a time"):
        ClippedGradient(Wandering(4, 3), F.cross_entropy).explain(torch.zeros(2, 4))


def test_on_a_device_a_layer_keeps_its_gradients_where_there_is_room_for_those_of_64_examples(monkeypatch):
    monkeypatch.setattr("sfumato._devices.has_device_forms", lambda device: True)
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 3))
    larger = 64 * 4 * 16 * 16 * 9
    for room, methods in ((6 * larger, {"keep shifted"}), (6 * larger - 1, {"keep shifted", "drop shifted"})):
        monkeypatch.setattr("sfumato._devices.available_memory", lambda device, room=room: room)
        gradient = ClippedGradient(model, F.cross_entropy)
        gradient(torch.randn(2, 8, 8, 8), torch.zeros(2, dtype=torch.int64))  # few examples, and then many
        gradient(torch.randn(99, 8, 8, 8), torch.zeros(99, dtype=torch.int64))
        assert set(gradient.methods.values()) == methods
