"""Linear maps over tokens on a device: bounds that hold as computed, in the types in use."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.gradients import products
from sfumato.gradients.sites.linear import LinearKernel
from sfumato.gradients.sites.token_gram import TOLERANCES, TokenGram

KINDS = ("plain", "common", "cancelling", "one token", "huge", "tiny", "spread")


def hostile(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int):
    """Inputs (B, T, p) and output gradients (B, T, d) of a kind."""
    generator = torch.Generator().manual_seed(seed)
    examples, tokens, inputs, outputs = shape
    x = torch.randn(examples, tokens, inputs, generator=generator, dtype=torch.float64)
    g = torch.randn(examples, tokens, outputs, generator=generator, dtype=torch.float64)
    if kind == "common":
        x += 10
    elif kind == "cancelling":
        x = x[:, :1] + 1e-3 * x
        g = g - g.mean(1, keepdim=True)
    elif kind == "one token":
        g[:, 1:] = 0
    elif kind in ("huge", "tiny"):
        x *= 1e8 if kind == "huge" else 1e-8
    elif kind == "spread":
        x *= 10.0 ** torch.randint(-6, 7, (examples, tokens, 1), generator=generator)
        g *= 10.0 ** torch.randint(-6, 7, (examples, tokens, 1), generator=generator)
    return x.to(dtype), g.to(dtype)


def terms(use: TokenGram, factors: torch.Tensor) -> torch.Tensor:
    """(B, d, p) float64: each example's term of the weighted sum, as it is computed."""
    return products.batched_product(use.g.transpose(1, 2), products.scaled(use.x, factors)).double()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.tuples(st.just(500), st.integers(1, 20), st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 2**31),
)
def test_no_term_exceeds_the_bound_and_norms_are_hardly_too_large(dtype, kind, shape, seed):
    use = TokenGram(LinearKernel(shape[3], shape[2]), *hostile(kind, shape, dtype, seed))
    norms = use.squared_norms().sqrt()
    sure = norms < torch.inf
    clipped = terms(use, torch.where(sure & (norms > 0), norms.reciprocal(), 0.0)).flatten(1).norm(dim=1)
    assert clipped.max() <= 1
    exact = torch.einsum("bto,bti->boi", use.g.double(), use.x.double()).flatten(1).norm(dim=1)
    assert (norms >= exact).all()
    assert (norms[sure] <= exact[sure] * (1 + 2 * TOLERANCES[dtype])).all()
    if kind == "plain":
        assert sure.double().mean() > 0.9  # in a few dimensions terms may cancel by chance


def test_hard_examples_are_kept_and_summed_as_they_are():
    x, g = hostile("cancelling", (8, 6, 5, 4), torch.bfloat16, 0)
    x[1:], g[1:] = hostile("plain", (7, 6, 5, 4), torch.bfloat16, 1)
    use = TokenGram(LinearKernel(4, 5), x, g)
    assert (use.squared_norms() == torch.inf).tolist() == [True] + 7 * [False]
    kept = use.keep_hard(torch.tensor([0]))
    exact = torch.einsum("bto,bti->boi", g.double(), x.double())
    torch.testing.assert_close(kept, exact[:1].flatten(1).square().sum(1), rtol=1e-4, atol=0)
    factors = torch.linspace(0.1, 1, 8, dtype=torch.float64)
    expected = torch.einsum("b,boi->oi", factors, exact)
    torch.testing.assert_close(use.weighted_sum(factors).double(), expected, rtol=0, atol=2e-2 * float(expected.norm()))


def test_what_is_not_finite_adds_nothing():
    x, g = hostile("plain", (3, 6, 5, 4), torch.bfloat16, 0)
    x[1, 2, 3], g[1, 0, 0] = float("nan"), float("inf")
    use = TokenGram(LinearKernel(4, 5), x, g)
    assert not use.squared_norms().isfinite()[1]
    factors = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    expected = torch.einsum("b,bto,bti->oi", factors[::2], g[::2].double(), x[::2].double())
    torch.testing.assert_close(use.weighted_sum(factors).double(), expected, rtol=0, atol=2e-2 * float(expected.norm()))
