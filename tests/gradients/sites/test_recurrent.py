"""Recurrent layers and cells against the oracle, which runs torch's own."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients import ClippedGradient

quick = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])

LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}

pytestmark = pytest.mark.usefixtures("a_whole_device")  # the counting one has no kernels of recurrent cells


class Sequences(nn.Module):
    """A recurrent layer of a batch (N, T, in); outputs and last states all count."""

    def __init__(self, layer, width, classes=3, initial=None):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, classes)
        self.initial = initial

    def forward(self, x):
        ahead = x if self.layer.batch_first else x.transpose(0, 1)
        outputs, ends = self.layer(ahead) if self.initial is None else self.layer(ahead, self.initial(len(x)))
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        ends = ends if isinstance(ends, tuple) else (ends,)
        steps = torch.linspace(1, 2, x.shape[1]).to(x)[:, None]
        rest = sum((end.transpose(0, 1).flatten(1).sin().sum(1, keepdim=True) for end in ends), x.new_zeros(()))
        return self.last((outputs * steps).sum(1)) * (1 + rest)


def randomise(model, scale=0.7):
    """Biases and weights large enough that every gate is used away from zero."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=scale)
    return model


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@quick
@given(
    kind=st.sampled_from(sorted(LAYERS)),
    examples=st.integers(1, 3),
    views=st.integers(1, 3),
    steps=st.integers(1, 4),
    inputs=st.integers(1, 3),
    hidden=st.integers(2, 4),
    depth=st.integers(1, 3),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    projected=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_layers(
    compare,
    kind,
    examples,
    views,
    steps,
    inputs,
    hidden,
    depth,
    bidirectional,
    batch_first,
    bias,
    projected,
    dtype,
    seed,
):
    torch.manual_seed(seed)
    extra = {"proj_size": 1} if kind == "lstm" and projected else {}
    layer = LAYERS[kind](
        inputs, hidden, depth, bias=bias, batch_first=batch_first, bidirectional=bidirectional, **extra
    )
    width = (1 if extra else hidden) * (2 if bidirectional else 1)
    # Rectified states grow with depth and steps: a sine of hundreds and a certain softmax would magnify their rounding.
    model = randomise(Sequences(layer, width), 0.3 if kind == "relu" else 0.7).to(dtype)
    for parameter in list(layer.parameters())[seed % 5 :: 5]:
        parameter.requires_grad_(False)
    lead = (examples,) if views == 1 else (examples, views)
    x = torch.randn(*lead, steps, inputs, dtype=dtype)
    gradient = compare(model, x, torch.arange(examples) % 3, views=views)
    assert gradient._batches.latest.fast
    assert not gradient._batches.latest.expanded


class LearnedStart(nn.Module):
    """States that are parameters."""

    def __init__(self, layer):
        super().__init__()
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        self.hidden = nn.Parameter(torch.randn(count, 1, layer.hidden_size))
        self.cell = nn.Parameter(torch.randn(count, 1, layer.hidden_size)) if isinstance(layer, nn.LSTM) else None

    def forward(self, examples):
        states = [s.expand(-1, examples, -1).contiguous() for s in (self.hidden, self.cell) if s is not None]
        return states[0] if len(states) == 1 else tuple(states)


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_learned_initial_states(compare, kind):
    layer = LAYERS[kind](2, 3, 2, batch_first=True, bidirectional=True)
    model = Sequences(layer, 6, initial=LearnedStart(layer)).double()
    gradient = compare(model, torch.randn(4, 2, 3, 2).double(), torch.arange(4) % 3, views=2)
    assert all(name.startswith("initial") for name in gradient._batches.latest.expanded)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_unbatched_sequences(compare, kind):
    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = LAYERS[kind](2, 3)

        def forward(self, x):
            return torch.stack([self.layer(one)[0].sum(0) for one in x.unbind()])

    compare(Unbatched().double(), torch.randn(3, 4, 2).double(), torch.arange(3))


class Cells(nn.Module):
    """A cell in a loop, from default zero states or from given states."""

    def __init__(self, cell, given, single):
        super().__init__()
        self.cell, self.given, self.single = cell, given, single

    def forward(self, x):
        if self.single:
            return torch.stack([self.run(one) for one in x.unbind()])
        return self.run(x.transpose(0, 1))

    def run(self, steps):
        state = None
        if self.given:
            zero = steps.new_zeros(*steps.shape[1:-1], self.cell.hidden_size) + 0.3
            state = (zero, zero * 2) if isinstance(self.cell, nn.LSTMCell) else zero
        for step in steps.unbind(0):
            state = self.cell(step, state)
        return state[0] + state[1].sin() if isinstance(state, tuple) else state


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize(("bias", "given", "single"), [(True, True, False), (False, False, True), (True, False, False)])
def test_cells(compare, make, bias, given, single):
    model = randomise(Cells(make(2, 3, bias=bias), given, single)).double()
    gradient = compare(model, torch.randn(4, 3, 2).double(), torch.arange(4) % 3)
    assert gradient._batches.latest.fast
    compare(model, torch.randn(4, 2, 3, 2).double(), torch.arange(4) % 3, views=2)


class Read(nn.Module):
    """Outputs, or the last state of the first layer."""

    def __init__(self, layer, first):
        super().__init__()
        self.layer, self.first = layer, first

    def forward(self, x):
        outputs, (ends, _) = self.layer(x)
        return ends[0] if self.first else outputs


def mean_square(outputs, targets):
    return outputs.square().mean()


@pytest.mark.parametrize("first", [False, True])
def test_dropout_is_between_layers_alone_and_drawn_anew_for_each_example(first):
    layer = nn.LSTM(2, 64, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 3, 2).expand(8, 3, 2)
    total = ClippedGradient(Read(layer, first), mean_square)(x, torch.zeros(8))
    assert len(set(total.losses.tolist())) == (1 if first else 8)
    layer.eval()
    total = ClippedGradient(Read(layer, first), mean_square)(x, torch.zeros(8))
    assert torch.allclose(total.losses, total.losses[:1])


def test_dropping_everything_leaves_the_second_layer_its_biases():
    layer = nn.LSTM(2, 4, 2, dropout=1.0, batch_first=True)
    total = ClippedGradient(Read(layer, False), mean_square)(torch.randn(3, 5, 2), torch.zeros(3))
    assert torch.allclose(total.losses, total.losses[:1])
    assert float(total.losses[0]) > 0
    assert float(total.gradients["layer.weight_ih_l0"].norm()) == 0
    assert float(total.gradients["layer.bias_ih_l1"].norm()) > 0


def test_packed_sequences_run_the_slow_exact_way(compare):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(2, 3, batch_first=True)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths + 1, batch_first=True, enforce_sorted=False)
            return self.layer(packed)[1][0]

    inputs = torch.randn(3, 4, 2).double(), torch.tensor([3, 1, 2])
    with pytest.warns(RuntimeWarning, match="cannot be vectorised"):
        compare(Packed().double(), inputs, torch.arange(3))
