"""Embeddings and embedding bags against the oracle, and their sparse gradients against dense ones."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.sites.embedding import EmbeddingSite, RowsUse
from sfumato.gradients.use import Exact, Instantiated, RowMap

quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Words(nn.Module):
    """Embeddings, then something that treats positions differently."""

    def __init__(self, table):
        super().__init__()
        self.table, self.last = table, nn.Linear(table.embedding_dim, 3)

    def forward(self, indices):
        x = self.table(indices)
        x = x * torch.linspace(1, 2, indices[0].numel()).to(x).reshape(*indices.shape[1:], 1)
        return self.last(x.tanh().flatten(1, -2).sum(1))


@quick
@given(
    examples=st.integers(1, 4),
    views=st.integers(1, 3),
    places=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    rows=st.integers(1, 6),
    width=st.integers(1, 4),
    padding=st.sampled_from([None, 0, -1]),
    sparse=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    index=st.sampled_from([torch.int64, torch.int32]),
    seed=st.integers(0, 99),
)
def test_embeddings(compare, examples, views, places, rows, width, padding, sparse, dtype, index, seed):
    torch.manual_seed(seed)
    table = nn.Embedding(rows, width, padding_idx=padding, sparse=sparse)
    nn.init.normal_(table.weight)
    lead = (examples,) if views == 1 else (examples, views)
    indices = torch.randint(rows, (*lead, *places), dtype=index)
    gradient = compare(Words(table).to(dtype), indices, torch.arange(examples) % 3, views=views)
    assert not gradient._batches.latest.expanded


@pytest.mark.parametrize("function", [F.embedding, F.embedding_bag])
def test_padding_counted_from_the_end(compare, function):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 3))

        def forward(self, indices):
            return function(indices, self.table, padding_idx=-2).sin().reshape(len(indices), -1, 3).sum(1)

    compare(Model().double(), torch.randint(4, (4, 5)), torch.arange(4) % 3)


class Bags(nn.Module):
    """Bags of embeddings, of a fixed length or given by offsets."""

    def __init__(self, bags, offsets=None, scales=None):
        super().__init__()
        self.bags, self.last = bags, nn.Linear(bags.embedding_dim, 3)
        self.register_buffer("offsets", offsets)
        self.scales = nn.Parameter(scales) if scales is not None else None

    def forward(self, indices):
        if self.offsets is None:
            scales = None if self.scales is None else self.scales.expand(indices.shape)
            return self.last(self.bags(indices, per_sample_weights=scales).tanh())
        return self.last(torch.stack([self.bags(row, self.offsets, self.scales).tanh().sum(0) for row in indices]))


@quick
@given(
    examples=st.integers(1, 4),
    views=st.integers(1, 3),
    places=st.integers(1, 5),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 1]),
    scaled=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_bags_of_a_fixed_length(compare, examples, views, places, mode, padding, scaled, dtype, seed):
    torch.manual_seed(seed)
    bags = nn.EmbeddingBag(4, 3, mode=mode, padding_idx=padding)
    nn.init.normal_(bags.weight)
    scales = torch.randn(places) if scaled and mode == "sum" else None
    lead = (examples,) if views == 1 else (examples, views)
    indices = torch.randint(4, (*lead, places))
    indices[0] = 1  # a bag of nothing but padding
    compare(Bags(bags, scales=scales).to(dtype), indices, torch.arange(examples) % 3, views=views)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags_with_offsets(compare, mode, last, padding):
    bags = nn.EmbeddingBag(5, 3, mode=mode, include_last_offset=last, padding_idx=padding)
    nn.init.normal_(bags.weight)
    offsets = torch.tensor([0, 2, 2, 5] if last else [0, 2, 2])
    scales = torch.randn(5) if mode == "sum" else None
    compare(Bags(bags, offsets, scales).double(), torch.randint(5, (4, 5)), torch.arange(4) % 3)


class Positions(nn.Module):
    """A table read at the same places for every example, another at each example's own, and one read twice."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(6, 4), nn.Embedding(5, 4)

    def forward(self, indices):
        x = self.words(indices) + self.places(torch.arange(indices.shape[1], device=indices.device))
        return (x.tanh() * self.words(indices.flip(1) // 2)).sum(1)


def test_shared_places_and_a_table_read_twice(compare):
    compare(Positions().double(), torch.randint(6, (4, 5)), torch.arange(4))
    compare(Positions().double(), torch.randint(6, (4, 2, 5)), torch.arange(4), views=2)


class Derived(nn.Module):
    """A table that is a function of parameters: rows of unit length with a gain."""

    def __init__(self):
        super().__init__()
        self.table = nn.utils.parametrizations.weight_norm(nn.Embedding(7, 9))

    def forward(self, indices):
        return self.table(indices).tanh().sum(1)


def test_a_table_that_is_a_function_of_parameters(compare):
    compare(Derived().double(), torch.randint(7, (4, 5)), torch.arange(4))
    compare(Derived(), torch.randint(7, (4, 2, 5)), torch.arange(4), views=2)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}], ids=str)
def test_scaling_by_frequency_and_renormalising_as_a_function_are_refused(kind, option):
    function = {nn.Embedding: F.embedding, nn.EmbeddingBag: F.embedding_bag}[kind]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, indices):
            return function(indices, self.weight, **option).reshape(len(indices), -1)

    with pytest.raises(SfumatoError, match=next(iter(option))):
        ClippedGradient(Model(), F.cross_entropy)(torch.randint(4, (2, 2)), torch.arange(2))


# The form by itself, against a dense gradient.


def rows_and_dense(examples=3, positions=7, rows=5, width=4, dtype=torch.float64):
    indices = torch.randint(rows, (examples, positions))
    values = torch.randn(examples, positions, width, dtype=torch.float64).to(dtype)
    dense = torch.zeros(examples, rows, width, dtype=torch.float64)
    for example in range(examples):
        for place in range(positions):
            dense[example, indices[example, place]] += values[example, place]
    return RowsUse.from_indices(indices, values, (rows, width)), dense


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_rows_equal_a_dense_gradient(rows, dtype):
    use, dense = rows_and_dense(rows=rows, dtype=dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    factors = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(use.squared_norms(), dense.square().sum((1, 2)), **close)
    torch.testing.assert_close(use.weighted_sum(factors).double(), torch.einsum("b,bvd->vd", factors, dense), **close)
    torch.testing.assert_close(use.instantiate().double(), dense, **close)
    weight, scales = torch.randn(rows, 4, dtype=dtype), torch.randn(rows, dtype=torch.float64)
    expected = Instantiated(dense).row_statistics(RowMap(weight.double(), scales, scales))
    found = use.row_statistics(RowMap(weight, scales, scales))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    assert (found.rounding >= 0.99 * expected.rounding).all()


def test_joined_rows_add_before_the_norm():
    uses = [rows_and_dense(positions=positions) for positions in (7, 2)]
    joined, dense = RowsUse.join([use for use, _ in uses]), uses[0][1] + uses[1][1]
    torch.testing.assert_close(joined.squared_norms(), dense.square().sum((1, 2)))
    torch.testing.assert_close(joined.instantiate(), dense)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e18, 1e30])
@pytest.mark.parametrize("rows", [2, 500])
def test_a_clipped_example_never_exceeds_its_norm(rows, scale):
    indices, values = torch.randint(rows, (1, 400)), torch.randn(1, 400, 8) * scale
    values[0, ::2] = -values[0, 1::2] * (1 + 1e-6)  # terms that nearly cancel where indices repeat
    use = RowsUse.from_indices(indices, values, (rows, 8))
    exact, size = Exact(use.instantiate()), use.instantiate().double().norm()
    assert torch.isinf(use.squared_norms()) == (scale > 1e18) or scale == 1e18
    for form in [exact] if torch.isinf(use.squared_norms()) else [use, exact]:
        factor = form.squared_norms().rsqrt().clamp_max(1)
        assert min(1, size) * (1 - 1e-5) <= form.weighted_sum(factor).double().norm() <= 1 + 1e-6


def test_an_excluded_example_is_never_multiplied():
    values = torch.randn(2, 3, 4)
    values[0] = torch.nan
    use = RowsUse.from_indices(torch.zeros(2, 3, dtype=torch.int64), values, (5, 4))
    assert use.weighted_sum(torch.tensor([0.0, 1.0]).double()).isfinite().all()
    assert use.squared_norms().isfinite().tolist() == [False, True]


def test_a_large_table_costs_no_memory_until_the_sum():
    site = EmbeddingSite(torch.zeros(1, 16).expand(10**9, 16).requires_grad_(), None)
    site.examples, site.views, site.roles = 8, 1, {"weight": "weight"}
    indices = torch.randint(10**9, (8, 5))
    _, saved = site.forward(indices)
    site.backward(saved, torch.randn(8, 5, 16), False)
    ((_, use),) = site.uses
    assert use.squared_norms().shape == (8,)
    assert use.bytes() < 10_000
