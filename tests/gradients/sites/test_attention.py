"""Multi-head attention and transformer layers against the oracle, with every option that they have."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Attended(nn.Module):
    """Attention of tokens to themselves or to others that are computed from them."""

    def __init__(self, attention, width, *, other=None, causal=False, mask=None, padding=False, weights=False):
        super().__init__()
        self.attention, self.last = attention, nn.Linear(width, 3)
        self.other, self.causal, self.mask, self.padding, self.weights = other, causal, mask, padding, weights

    def forward(self, x):
        key = value = x
        if self.other is not None:
            key, value = x[:, 1:, : self.other[0]].sin(), x[:, 1:, : self.other[1]].cos()
        padded = None
        if self.padding:  # depends on the data, and never hides all
            padded = key[..., 0] > 0.3
            padded = torch.cat([torch.zeros_like(padded[:, :1]), padded[:, 1:]], dim=1)
        first = self.attention.batch_first
        tokens = [t if first else t.transpose(0, 1) for t in (x, key, value)]
        outputs, weights = self.attention(
            *tokens,
            key_padding_mask=padded,
            need_weights=self.weights,
            attn_mask=None if self.mask is None else self.mask.to(x.device),
            is_causal=self.causal,
        )
        outputs = outputs if first else outputs.transpose(0, 1)
        scores = self.last(outputs.tanh().sum(1))
        return scores if weights is None else scores * (1 + weights[..., 0].sin().sum(1, keepdim=True))


def causal_mask(size, dtype):
    return (
        torch.triu(torch.ones(size, size, dtype=torch.bool), diagonal=1)
        if dtype is bool
        else (nn.Transformer.generate_square_subsequent_mask(size, dtype=dtype))
    )


@quick
@given(
    examples=st.integers(1, 3),
    views=st.integers(1, 3),
    tokens=st.integers(2, 4),
    heads=st.integers(1, 2),
    bias=st.booleans(),
    key_bias=st.booleans(),
    zero=st.booleans(),
    batch_first=st.booleans(),
    sort=st.sampled_from(["self", "cross", "other widths"]),
    mask=st.sampled_from([None, "causal", "added", "padding"]),
    weights=st.booleans(),
    training=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_multi_head_attention(
    compare,
    examples,
    views,
    tokens,
    heads,
    bias,
    key_bias,
    zero,
    batch_first,
    sort,
    mask,
    weights,
    training,
    dtype,
    seed,
):
    torch.manual_seed(seed)
    other = {"self": None, "cross": (4, 4), "other widths": (3, 2)}[sort]
    widths = {} if sort != "other widths" else {"kdim": 3, "vdim": 2}
    attention = nn.MultiheadAttention(
        4, heads, bias=bias, add_bias_kv=key_bias, add_zero_attn=zero, batch_first=batch_first, **widths
    )
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    kinds = {"padding": mask == "padding", "weights": weights}
    if mask in ("causal", "added"):
        size = (tokens, tokens if other is None else tokens - 1)
        if mask == "causal" and other is None:
            kinds["mask"], kinds["causal"] = causal_mask(tokens, dtype), not weights and not (key_bias or zero)
        else:
            kinds["mask"] = torch.randn(size, dtype=dtype)
    model = Attended(attention, 4, other=other, **kinds).to(dtype).train(training)
    for parameter in list(attention.parameters())[seed % 4 :: 4]:
        parameter.requires_grad_(False)
    lead = (examples,) if views == 1 else (examples, views)
    gradient = compare(model, torch.randn(*lead, tokens, 4, dtype=dtype), torch.arange(examples) % 3, views=views)
    assert gradient._batches.latest.fast


def test_a_mask_that_is_a_parameter(compare):
    model = Attended(nn.MultiheadAttention(4, 2, batch_first=True), 4)
    model.mask = nn.Parameter(torch.randn(5, 5))
    compare(model.double(), torch.randn(3, 5, 4).double(), torch.arange(3))
    compare(model.double(), torch.randn(3, 2, 5, 4).double(), torch.arange(3), views=2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_a_query_whose_every_key_is_masked_gets_zeros_as_torch_s(compare, dtype):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            tokens, mask = self.tokens(x), (x[..., 0] <= 0.9)[:, None]
            mask = (
                mask
                if dtype == torch.bool
                else torch.zeros(mask.shape, dtype=dtype, device=x.device).masked_fill(~mask, -torch.inf)
            )
            return self.last(F.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=mask).sum(1))

    inputs = torch.randn(3, 5, 4).double()
    inputs[1, :, 0] = 1
    gradient = compare(Masked().double(), inputs, torch.arange(3))
    assert gradient._batches.latest.fast


class Encoder(nn.Module):
    def __init__(self, encoder, batch_first=True):
        super().__init__()
        self.encoder, self.batch_first = encoder, batch_first

    def forward(self, x):
        outputs = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return (outputs if self.batch_first else outputs.transpose(0, 1)).sin().sum(1)


@pytest.mark.parametrize(("training", "norm_first", "batch_first"), [(True, True, False), (False, False, True)])
def test_encoder_layers(compare, training, norm_first, batch_first):
    make = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(4, 2, 6, activation=F.gelu, **make)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4), enable_nested_tensor=False)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    model = Encoder(encoder, batch_first).double().train(training)
    gradient = compare(model, torch.randn(3, 5, 4).double(), torch.arange(3))
    assert gradient._batches.latest.fast
    assert not gradient._batches.latest.expanded
    compare(model, torch.randn(3, 2, 5, 4).double(), torch.arange(3), views=2)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_fast_path_of_frozen_layers_in_eval_mode(compare, frozen):
    """The library would run a frozen layer in one fused call that no batching rule covers."""
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True).eval().requires_grad_(not frozen)
    encoder = nn.TransformerEncoder(layer, 2)
    model = nn.Sequential(encoder.eval(), nn.Flatten(), nn.Linear(20, 3))
    gradient = compare(model.double(), torch.randn(3, 5, 4).double(), torch.arange(3))
    assert gradient._batches.latest.fast


class Product(nn.Module):
    """Queries, keys and values by hand, then the fused product."""

    def __init__(self, causal=False, scale=None, mask=None):
        super().__init__()
        self.maps = nn.Linear(4, 12)
        self.causal, self.scale, self.mask = causal, scale, mask

    def forward(self, x):
        query, key, value = self.maps(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mask = self.mask
        if mask == "data":
            mask = x[:, None, :, :1] + x[:, None, None, :, 1]
        if mask == "hidden":
            mask = (x[:, None, None, :, 0] > 0) | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        found = F.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal, scale=self.scale)
        return found.transpose(1, 2).flatten(2).tanh().sum(1)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"scale": 0.3}, {"mask": "data"}, {"mask": "hidden"}])
@pytest.mark.parametrize("views", [1, 2])
def test_scaled_dot_products(compare, options, views):
    x = torch.randn(*((3,) if views == 1 else (3, views)), 5, 4).double()
    compare(Product(**options).double(), x, torch.arange(3), views=views)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has no such loss")
def test_a_loss_with_a_last_layer_inside(compare):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x, y):
            return F.linear_cross_entropy(self.first(x).tanh(), self.last.weight, y, linear_bias=self.last.bias)

    inputs = torch.randn(4, 3).double(), torch.arange(4)
    gradient = compare(Model().double(), inputs, torch.zeros(4), loss=lambda outputs, targets: outputs.mean())
    assert not gradient._batches.latest.expanded


def test_a_loss_that_calls_a_module(compare):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.distance = nn.Linear(3, 4), nn.Bilinear(4, 4, 1)

        def forward(self, x):
            near, far = (self.first(part) for part in x.split(3, dim=-1))
            distance = lambda a, b: self.distance(a, b).exp()  # noqa: E731
            return F.triplet_margin_with_distance_loss(near, far, near.sin(), distance_function=distance, margin=9.0)

    compare(Model().double(), torch.randn(4, 6).double(), torch.zeros(4), loss=lambda outputs, targets: outputs.mean())
