"""Examples that the fast arithmetic cannot certify: they are computed again, exactly, without effect on others."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.batch_runner import BatchRunner
from sfumato.gradients.methods import sequential
from sfumato.gradients.methods.contributions import RowFunction
from sfumato.gradients.methods.vectorised import Objective
from sfumato.gradients.sums import QueuedSum


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = self.weight.flatten(1)
        weight = (weight - weight.mean(1, keepdim=True)) / weight.std(1, keepdim=True)
        return self._conv_forward(x, weight.reshape(self.weight.shape), self.bias)


class Tokens(nn.Module):
    """Several positions of a linear map, an expanded parameter, and dropout."""

    def __init__(self):
        super().__init__()
        self.inner, self.last, self.scale = nn.Linear(8, 6), nn.Linear(6, 3), nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.last((self.scale * torch.tanh(self.inner(x.flatten(1, 2)))).mean(1))


MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3)),
    "standardised": lambda: nn.Sequential(Standardised(2, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3)),
    "tokens": Tokens,
}
ODD = {
    "not a number": lambda x: x.fill_(torch.nan),
    "infinite": lambda x: x[0, 0, 0].fill_(torch.inf),
    "huge": lambda x: x.mul_(1e25),
    "beyond its square": lambda x: x.fill_(3e38),
    "denormal": lambda x: x.mul_(1e-42),
    "tiny": lambda x: x.mul_(1e-22),
    "cancelling": lambda x: x.mul_(1e-4).add_(1000),
    "nothing": lambda x: x.zero_(),
}


@pytest.fixture
def exactly(monkeypatch):
    """The places of examples that were computed again."""
    places, right = [], BatchRunner._exact_sum

    def spied(self, rows, *rest):
        places.extend(rows.tolist())
        return right(self, rows, *rest)

    monkeypatch.setattr(BatchRunner, "_exact_sum", spied)
    return places


def batch(seed=0, examples=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 2, 8, 8, generator=generator), torch.arange(examples) % 3


def compare(model, x, y, *, weights=None, max_norm=0.05):
    found = ClippedGradient(model, F.cross_entropy, max_norm=max_norm)(x, y, weights=weights)
    objective = Objective(model=model, loss=F.cross_entropy, views=1)
    own = None if weights is None else weights.double()
    with torch.enable_grad():
        truth = sequential.clipped_sum(objective, x, y, max_norm=max_norm, weights=own)
    for name, value in truth.gradients.items():
        torch.testing.assert_close(found.gradients[name], value, rtol=2e-4, atol=2e-6 * max_norm)
    taking = torch.ones(len(x), dtype=torch.bool) if weights is None else weights > 0
    same = torch.isfinite(truth.norms) & taking
    torch.testing.assert_close(found.norms[same], truth.norms[same], rtol=2e-4, atol=1e-12)
    assert torch.equal(torch.isfinite(found.norms) & taking, same)
    return found


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("places", [[2], [0, 1, 2, 3, 4]])
def test_odd_examples_among_plain_ones(kind, odd, places, exactly):
    torch.manual_seed(0)
    model, (x, y) = MODELS[kind](), batch()
    for place in places:
        ODD[odd](x[place])
    if odd == "cancelling":  # in float32 the gradient itself is not exact
        model, x = model.double(), x.double()
    compare(model, x, y)
    assert set(exactly) <= set(places)
    if odd == "not a number" or (odd == "beyond its square" and kind == "linear"):
        assert set(exactly) == set(places)


@pytest.mark.parametrize("odd", ODD)
def test_odd_padding_adds_nothing(odd, exactly):
    torch.manual_seed(0)
    model, (x, y) = MODELS["convolution"](), batch()
    ODD[odd](x[1])
    ODD[odd](x[3])
    weights = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0])
    found = compare(model, x, y, weights=weights)
    rest = weights > 0
    alone = ClippedGradient(model, F.cross_entropy, max_norm=0.05)(x[rest], y[rest], weights=weights[rest])
    for name, value in alone.gradients.items():
        torch.testing.assert_close(found.gradients[name], value, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["standardised", "tokens"])
def test_finite_padding_is_never_computed_again(kind, exactly, monkeypatch):
    """Otherwise the time would reveal its presence."""
    right = RowFunction.keep_hard
    monkeypatch.setattr(RowFunction, "keep_hard", lambda self, rows: exactly.extend(rows.tolist()) or right(self, rows))
    torch.manual_seed(0)
    model, (x, y) = MODELS[kind]().double(), batch()
    x = x.double()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.05)
    for odd, again in (("cancelling", True), ("nothing", False), ("tiny", False)):
        held = x.clone()
        ODD[odd](held[1])
        gradient(held, y)
        assert exactly == ([1] if again and kind == "standardised" else [])
        exactly.clear()
        gradient(held, y, weights=torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]))
        assert exactly == []


@pytest.mark.parametrize("kind", MODELS)
def test_what_plain_examples_give_is_the_same_bits_whoever_is_odd_beside_them(kind, exactly):
    torch.manual_seed(0)
    model, (x, y) = MODELS[kind](), batch()
    gradient, sums = ClippedGradient(model, F.cross_entropy, max_norm=0.05), []
    for odd in ("not a number", "infinite"):  # both add zero
        ODD[odd](x[2])
        found = gradient(x, y)
        sums.append((found.gradients, found.norms[[0, 1, 3, 4]]))
    assert exactly == [2, 2]
    for name, value in sums[0][0].items():
        assert torch.equal(value, sums[1][0][name])
    assert torch.equal(sums[0][1], sums[1][1])


def test_many_odd_ones_are_computed_in_pieces(exactly, monkeypatch):
    from sfumato.gradients import use

    monkeypatch.setattr(use, "TILE", 1000)
    torch.manual_seed(0)
    model, (x, y) = MODELS["linear"](), batch(examples=9)
    x[1:8] *= 1e25
    compare(model, x, y)
    assert exactly == list(range(1, 8))


def test_masks_of_dropout_are_the_same_when_an_example_is_computed_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 3))
    x, y = batch()
    x[2] *= 1e20
    gradient = ClippedGradient(model, lambda o, t: F.cross_entropy(1e-18 * o, t), max_norm=0.05)
    gradient(x, y)
    found = gradient(x, y).gradients["2.weight"]
    dropped = (found == 0).all(0)  # dropped by every mask
    assert 0 < dropped.sum() < 20


class Waiting:
    """Treats the CPU as an asynchronous device."""

    @pytest.fixture(autouse=True)
    def _behind(self, monkeypatch):
        monkeypatch.setattr(BatchRunner, "_asynchronous", lambda self, batch: True)


class TestQueued(Waiting):
    @pytest.mark.parametrize("odd", [None, "not a number", "huge"])
    @pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.5])])
    def test_a_sum_is_read_once_and_computed_again_where_it_is_void(self, odd, weights, exactly):
        torch.manual_seed(0)
        model, (x, y) = MODELS["standardised"](), batch()
        if odd is not None:
            ODD[odd](x[2])
        gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.05)
        found = gradient(x, y, weights=weights)
        assert isinstance(found, QueuedSum)
        assert exactly == []
        compare(model, x, y, weights=weights)
        values = found.gradients
        assert all(value.isfinite().all() for value in values.values())
        assert found.gradients is values
        assert (2 in exactly) == (odd is not None)

    @pytest.mark.parametrize(("odd", "wholly"), [("huge", 1), ("not a number", 2)])
    def test_what_a_sum_lacks_is_computed_by_itself_unless_the_sum_is_spoilt(self, odd, wholly, exactly, monkeypatch):
        torch.manual_seed(0)
        model, (x, y) = MODELS["standardised"](), batch()
        ODD[odd](x[2])
        runs: list[int] = []
        once = BatchRunner._sum_at_once

        def counted(self, *given, **how):
            runs.append(1)
            return once(self, *given, **how)

        monkeypatch.setattr(BatchRunner, "_sum_at_once", counted)
        gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.05)
        gradient(x, y).gradients  # noqa: B018
        assert len(runs) == wholly
        assert exactly == [2]

    @pytest.mark.parametrize("odd", ["huge", "not a number"])
    def test_what_a_sum_lacks_is_computed_in_the_precision_of_the_rest(self, odd):
        """Even if it is read outside of autocast."""
        torch.manual_seed(0)
        model, (x, y) = MODELS["standardised"](), batch()
        ODD[odd](x[2])
        gradient, found = ClippedGradient(model, F.cross_entropy, max_norm=0.05), []
        with torch.autocast(x.device.type, torch.bfloat16):
            found += [gradient(x, y), gradient(x, y)]
            values = found[0].gradients
        for name, value in found[1].gradients.items():
            assert torch.equal(value, values[name])

    def test_a_model_that_was_changed_meanwhile_is_refused(self):
        model, (x, y) = MODELS["linear"](), batch()
        gradient = ClippedGradient(model, F.cross_entropy)
        plain = gradient(x, y)
        x = x.clone()
        x[2] = torch.nan
        found = gradient(x, y)
        with torch.no_grad():
            model[1].weight += 1
        assert plain.gradients["1.weight"].isfinite().all()
        with pytest.raises(SfumatoError, match="were written to before the clipped sum was read"):
            found.gradients  # noqa: B018

    def test_a_batch_whose_memory_was_used_again_is_refused(self):
        model, (x, y) = MODELS["linear"](), batch()
        gradient = ClippedGradient(model, F.cross_entropy)
        for given in (x, y):
            x[2] = torch.nan
            found = gradient(x, y)
            given.zero_()
            with pytest.raises(SfumatoError, match="were written to before the clipped sum was read"):
                found.gradients  # noqa: B018

    def test_a_function_of_rows_is_measured_again_when_its_weight_was_written_to(self, exactly):
        torch.manual_seed(0)
        model, (x, y) = MODELS["standardised"](), batch()
        gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.05)
        for change in ("none", "counted", "uncounted", "none"):
            with torch.no_grad():
                if change == "counted":
                    model[0].weight += 0.1 * torch.randn_like(model[0].weight)
                if change == "uncounted":  # which torch does not count
                    model[0].weight.data.mul_(3)
            found = gradient(x, y)
            void = bool(found.__dict__["_incomplete"])
            assert void == (change == "uncounted")
            expected = sequential.clipped_sum(
                Objective(model=model, loss=F.cross_entropy, views=1), x, y, max_norm=0.05
            )
            for name, value in expected.gradients.items():
                torch.testing.assert_close(found.gradients[name], value, rtol=2e-4, atol=1e-7)
        assert exactly == []

    def test_what_only_looks_like_a_function_of_rows_is_not_trusted(self):
        """Of the kind at the first weights, and not at others."""

        class Turning(nn.Linear):
            def forward(self, x):
                norms = self.weight.norm(dim=1, keepdim=True)
                return F.linear(x, self.weight / norms * torch.where(norms > 100, self.weight.sum(), 1.0), self.bias)

        torch.manual_seed(0)
        model, (x, y) = nn.Sequential(nn.Flatten(), Turning(128, 3)), batch()
        gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.05)
        gradient(x, y).gradients  # noqa: B018
        with torch.no_grad():
            model[1].weight *= 1000
        for void in (True, False):  # then it is known to be none
            found = gradient(x, y)
            assert bool(found.__dict__["_incomplete"]) == void
            expected = sequential.clipped_sum(
                Objective(model=model, loss=F.cross_entropy, views=1), x, y, max_norm=0.05
            )
            for name, value in expected.gradients.items():
                torch.testing.assert_close(found.gradients[name], value, rtol=2e-4, atol=1e-7)
