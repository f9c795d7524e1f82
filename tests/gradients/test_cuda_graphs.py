"""Sums that are recorded once and replayed: they give the same bits as without recording, or are not recorded.

No GPU is needed: without one torch's own operations are recorded, and run again on the same tensors without any Python
of the model's or the engine's. As on a device, a question about a number cannot be recorded. With
`SFUMATO_TEST_DEVICE=cuda` they are CUDA graphs.
"""

import re
import warnings
from contextlib import nullcontext

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from sfumato import _devices
from sfumato.gradients import ClippedGradient
from sfumato.gradients.sums import QueuedSum
from tests.gradients.conftest import ASKED, DEVICE, on_device
from tests.gradients.test_doubtful import MODELS
from tests.recorders import NO_QUESTION, recording

pytestmark = pytest.mark.skipif(ASKED not in ("cpu", "forms", "cuda"), reason="this device records nothing")


@pytest.fixture
def recorders(monkeypatch, forms_of_devices):
    """What was recorded: on a CPU a `Recorder` for each graph."""
    with recording(monkeypatch, DEVICE) as found:
        yield found


def batches(shape, *, count=7, size=5, classes=3, views=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    lead = (size,) if views == 1 else (size, views)
    for _ in range(count):
        inputs = torch.randn(*lead, *shape, generator=generator, dtype=dtype)
        weights = torch.randint(2, (size,), generator=generator).double() * 0.5 + 0.5
        yield on_device((inputs, torch.randint(classes, (size,), generator=generator), weights))


def moved(model):
    """Changes weights in place, like an optimizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9).add_(0.01)


def same_bits(found, expected):
    assert torch.equal(found.norms, expected.norms)
    assert torch.equal(found.losses, expected.losses)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, value in expected.gradients.items():
        assert torch.equal(found.gradients[name], value), name


def both(model, **options):
    model = model.to(DEVICE)
    return [ClippedGradient(model, F.cross_entropy, max_norm=0.1, capture=one, **options) for one in (True, False)]


def compared(model, shape, *, views=1, classes=3, dtype=torch.float32, weighted=False):
    captured, plain = both(model.to(dtype), views=views)
    for inputs, targets, weights in batches(shape, views=views, classes=classes, dtype=dtype):
        given = (inputs, targets, None, weights) if weighted else (inputs, targets)
        found = captured(*given)
        assert not found.__dict__["_incomplete"], "computed twice"
        same_bits(found, plain(*given))
        moved(model)


@pytest.mark.parametrize(("views", "dtype"), [(1, torch.float32), (2, torch.float64)])
@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_sum_has_the_bits_of_one_that_is_not_while_weights_move(name, views, dtype, recorders):
    compared(MODELS[name](), (2, 8, 8), views=views, dtype=dtype, weighted=views == 2)
    assert len(recorders) == 1


def test_a_whole_network_is_recorded(recorders):
    compared(timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32, depth=1), (3, 32, 32))
    assert len(recorders) == 1


@pytest.mark.parametrize("name", ["standardised", "tokens"])
def test_casts_of_weights_are_made_anew(name, recorders):
    """Autocast caches them while it is enabled."""
    with torch.autocast(DEVICE, torch.bfloat16):
        compared(MODELS[name](), (2, 8, 8))
    assert len(recorders) == 1


class Multiplied:
    """A recording whose sums are wrong by a factor."""

    def __init__(self, recording, outputs, factor):
        self.recording, self.outputs, self.factor = recording, outputs, factor

    def replay(self):
        self.recording.replay()
        for value in self.outputs[0].gradients.values():
            value.mul_(self.factor)


def test_elsewhere_than_in_deterministic_mode_bits_may_differ_and_sums_may_not(recorders, monkeypatch):
    right = _devices.capture_graph
    for factor, used in ((1 + 1e-6, True), (1.1, False)):

        def other(function, device, earlier, factor=factor):
            recording, outputs = right(function, device, earlier)
            return Multiplied(recording, outputs, factor), outputs

        monkeypatch.setattr(_devices, "capture_graph", other)
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
        gradient, _ = both(MODELS["convolution"]())
        with nullcontext() if used else pytest.warns(RuntimeWarning, match="it gives another sum"):
            found = [gradient(inputs, targets) for inputs, targets, _ in batches((2, 8, 8))]
        assert bool(gradient._batches.captures._graphs) == used
        assert found


def test_sums_that_wait_do_not_overwrite_each_other(recorders):
    captured, plain = both(MODELS["convolution"]())
    given = [pair for *pair, _ in batches((2, 8, 8))]
    found = [captured(*pair) for pair in given]
    assert all(isinstance(one, QueuedSum) for one in found)
    for one, pair in zip(found, given, strict=True):
        same_bits(one, plain(*pair))


@pytest.mark.parametrize("name", ["standardised", "tokens"])
def test_examples_that_are_not_finite_are_left_out_of_a_recorded_sum_too(name, recorders):
    model = MODELS[name]()
    captured, plain = both(model)
    for number, (inputs, targets, _) in enumerate(batches((2, 8, 8))):
        if number > 4:
            inputs[1], inputs[3] = torch.nan, 1e25 * inputs[3]
        found, expected = captured(inputs, targets), plain(inputs, targets)
        same = torch.isfinite(expected.norms)
        assert torch.equal(same, torch.isfinite(found.norms))
        assert torch.equal(found.norms[same], expected.norms[same])
        for key, value in expected.gradients.items():
            assert torch.isfinite(value).all()
            assert torch.equal(found.gradients[key], value)
        moved(model)
    assert len(recorders) == 1


def test_a_model_whose_tensors_lie_elsewhere_is_recorded_anew(recorders):
    model = MODELS["standardised"]()
    captured, plain = both(model)
    for number, (inputs, targets, _) in enumerate(batches((2, 8, 8), count=12)):
        if number == 6:
            for parameter in model.parameters():
                parameter.data = parameter.detach() * 2
        same_bits(captured(inputs, targets), plain(inputs, targets))
    assert len(recorders) == 2


def test_other_modes_sizes_and_precisions_are_computed_as_they_are(recorders):
    model = nn.Sequential(MODELS["convolution"](), nn.Softplus())
    captured, plain = both(model)
    for number, (inputs, targets, _) in enumerate(batches((2, 8, 8), count=12)):
        model.train(number < 7)
        size = 3 if number == 4 else 5
        with torch.autocast(DEVICE, torch.bfloat16, enabled=number in (6, 10)):
            same_bits(captured(inputs[:size], targets[:size]), plain(inputs[:size], targets[:size]))
    assert len(recorders) == 2


def test_each_size_is_recorded_by_itself_and_all_work_in_the_same_memory(recorders):
    captured, plain = both(MODELS["standardised"]())
    for number, (inputs, targets, _) in enumerate(batches((2, 8, 8), count=14)):
        size = 5 - number % 2
        same_bits(captured(inputs[:size], targets[:size]), plain(inputs[:size], targets[:size]))
        moved(captured._model)
    assert len(recorders) == 2


def test_of_many_sizes_some_are_recorded(recorders, monkeypatch):
    monkeypatch.setattr("sfumato.gradients.cuda_graphs.MOST_GRAPHS", 1)
    captured, plain = both(MODELS["linear"]())
    for number, (inputs, targets, _) in enumerate(batches((2, 8, 8), count=14)):
        size = 5 - number % 2
        same_bits(captured(inputs[:size], targets[:size]), plain(inputs[:size], targets[:size]))
    assert len(recorders) == 1


def test_the_self_check_records_nothing(recorders):
    captured, _ = both(MODELS["convolution"]())
    for _ in range(3):
        captured.self_check((2, 8, 8))
    assert not recorders


def test_a_model_with_dropout_is_not_recorded(recorders):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 3))
    captured, plain = both(model)
    for inputs, targets, _ in batches((2, 8, 8)):
        keys = on_device(torch.arange(20).reshape(5, 4))
        same_bits(captured(inputs, targets, keys), plain(inputs, targets, keys))
    assert not recorders


class Asking(nn.Module):
    """A layer that reads one of its weights as a number."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.linear(x.flatten(1)) * float(self.scale)


def test_what_cannot_be_recorded_goes_on_with_one_warning(recorders):
    captured, plain = both(Asking())
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for inputs, targets, _ in batches((2, 8, 8)):
            same_bits(captured(inputs, targets), plain(inputs, targets))
    assert len(shown) == 1
    assert re.sub(r"\(.*\)", "(REASON)", str(shown[0].message)) == (
        "clipped sums are not recorded as a CUDA graph (REASON): training continues, and launches kernels one by one"
    )
    assert NO_QUESTION in str(shown[0].message)


def test_a_recording_that_gives_other_bits_is_not_used(recorders, monkeypatch):
    right = _devices.capture_graph

    def wrong(function, device, earlier):
        recording, outputs = right(function, device, earlier)
        return Multiplied(recording, outputs, 1 + 1e-6), outputs

    monkeypatch.setattr(_devices, "capture_graph", wrong)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.warns(RuntimeWarning, match="it does not give the same bits"):
        compared(MODELS["tokens"](), (2, 8, 8))


@pytest.mark.skipif(ASKED == "cuda", reason="nobody knows what a CUDA graph reads")
def test_what_a_graph_reads_from_elsewhere_lives_as_long(recorders):
    model = MODELS["standardised"]()
    gradient, _ = both(model)
    for inputs, targets, _ in batches((2, 8, 8)):
        gradient(inputs, targets)
    (graph,) = gradient._batches.captures._graphs.values()
    kept = {one.untyped_storage().data_ptr() for one in graph.external}
    assert {one.data_ptr() for one in model.parameters()} <= kept
    made, read = set(), set()
    for _, args, kwargs, found in recorders[0].done:
        read |= {
            one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)
        } - made
        made |= {one.untyped_storage().data_ptr() for one in tree_leaves(found) if isinstance(one, torch.Tensor)}
    assert read <= kept
