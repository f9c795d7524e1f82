"""The bound holds in floating point: over scales, sizes and values that are not finite."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.gradients import clipping


def factors_of(values, max_norm=1.0, squares=None):
    squares = clipping.squared_norms(values) if squares is None else squares
    losses = torch.zeros(values.shape[0])
    return clipping.clip_factors(squares, losses, max_norm=max_norm, of=[values[0]])


@settings(max_examples=30)
@given(
    exponent=st.integers(-20, 20),
    bound_exponent=st.integers(-20, 20),
    offset=st.sampled_from([0.0, 1.0, 1000.0]),
    size=st.integers(1, 5000),
    seed=st.integers(0, 99),
)
def test_one_clipped_example_obeys_the_bound(exponent, bound_exponent, offset, size, seed):
    generator = torch.Generator().manual_seed(seed)
    values = (torch.randn(1, size, generator=generator) + offset) * 10.0**exponent
    bound = 10.0**bound_exponent
    norm, exact = values.double().norm(), clipping.exact_squared_norms(values)
    factors = factors_of(values, bound, exact)
    total = clipping.exact_weighted_sum(values, factors).double().norm()
    assert total <= bound * (1 + 1e-6)
    assert total >= min(bound, norm) * (1 - 1e-5)
    bound = max(bound, 1e-12)  # the minimum for a gradient
    squares = clipping.squared_norms(values)
    factors = factors_of(values, bound, squares)
    doubtful = clipping.doubtful(factors)
    assert doubtful.item() == (norm > 10**18 or factors.item() < 1e-30) or 1e16 < norm < 1e24
    if not doubtful:
        total = clipping.weighted_sum(values, factors, excluding=False).double().norm()
        assert total <= bound * (1 + 1e-6)
        assert total >= min(bound, norm) * (1 - 1e-5)


def test_norm_of_many_elements_is_not_too_small():
    values = torch.full((1, 40_000_000), 0.1)
    exact = 40_000_000 * float(torch.tensor(0.1)) ** 2
    assert exact <= clipping.squared_norms(values).item() <= exact * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 65, 1000])
@pytest.mark.parametrize("norms", [clipping.squared_norms, clipping.exact_squared_norms])
def test_no_norm_is_too_small_by_a_single_digit(dtype, size, norms):
    values = torch.randn(15, size, dtype=torch.float64).to(dtype)
    for found, row in zip(norms(values).tolist(), values.tolist(), strict=True):
        exact = sum(Fraction(value) ** 2 for value in row)
        assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 10**5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_term_exceeds_the_bound_by_a_single_digit(dtype):
    """With nearly exact norms, the factors alone must cover the rounding of the product."""
    values, bound = torch.randn(200, 3, dtype=dtype), 0.1
    exact = [float(sum(Fraction(value) ** 2 for value in row)) for row in values.tolist()]
    squares = torch.tensor(exact, dtype=torch.float64)
    factors = clipping.clip_factors(squares, torch.zeros(200), max_norm=bound, of=[torch.empty(200, dtype=dtype)])
    for row, factor in zip(values.split(1), factors.split(1), strict=True):
        term = clipping.weighted_sum(row, factor)
        assert sum(Fraction(value) ** 2 for value in term.tolist()) <= Fraction(bound) ** 2


@pytest.mark.parametrize("bound", [1e-4, 1e-8, 1e-12])
def test_a_factor_that_float32_cannot_hold_loses_no_digits(bound):
    values = torch.randn(20, 1, 5) * 1e36
    for row in values:
        squares = clipping.exact_squared_norms(row)
        factors = factors_of(row, bound, squares)
        assert clipping.doubtful(factors).all()
        total = clipping.exact_weighted_sum(row, factors).double().norm()
        assert bound * (1 - 1e-5) <= total <= bound * (1 + 1e-6)


def test_norm_beyond_float32_is_finite():
    values = torch.full((1, 100), 3e38)
    assert clipping.squared_norms(values).tolist() == [float("inf")]
    squares = clipping.exact_squared_norms(values)
    assert values.double().norm() <= squares.sqrt().item() <= values.double().norm() * (1 + 1e-5)
    total = clipping.exact_weighted_sum(values, factors_of(values, squares=squares))
    assert total.double().norm() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("exponent", [-19, -21, -25, -40])
def test_squares_that_vanish_are_allowed_for(exponent):
    values = torch.full((1, 1000), 10.0**exponent)
    exact = sum(Fraction(value) ** 2 for value in values[0].tolist())
    assert exact <= Fraction(clipping.squared_norms(values).item()) <= exact + Fraction(1, 10**34)
    assert exact <= Fraction(clipping.exact_squared_norms(values).item()) <= exact * (1 + Fraction(1, 10**9))


def test_an_exact_norm_of_nothing_is_zero():
    assert clipping.exact_squared_norms(torch.zeros(2, 1000)).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_adds_exactly_zero(bad):
    values = torch.randn(3, 50)
    values[1, 7] = bad
    zeroed = values.clone()
    zeroed[1] = 0
    expected = clipping.weighted_sum(zeroed, factors_of(zeroed))
    assert torch.equal(clipping.weighted_sum(values, factors_of(values)), expected)


def test_a_loss_that_is_not_finite_excludes_its_example():
    factors = clipping.clip_factors(
        torch.ones(2).double(), torch.tensor([1.0, float("nan")]), max_norm=2.0, of=[torch.ones(1)]
    )
    assert factors.tolist() == [1.0, 0.0]


def test_half_precision_is_summed_in_float32():
    values = torch.ones(3, 4, dtype=torch.bfloat16)
    total = clipping.weighted_sum(values, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, torch.ones(4))


def test_no_elements():
    assert clipping.squared_norms(torch.ones(2, 0)).tolist() == [0, 0]


def test_what_is_computed_again():
    """Not finite, or a factor too small for float32; but not an example left out because of its weight."""
    squares = torch.tensor([1.0, float("inf"), float("nan"), 1.0, 1e62, 1.0]).double()
    losses = torch.tensor([1.0, 1.0, 1.0, float("inf"), 1.0, 1.0])
    weights = torch.tensor([1, 1, 1, 1, 1, 0]).double()
    factors = clipping.clip_factors(squares, losses, max_norm=1.0, of=[torch.ones(1)])
    assert clipping.doubtful(factors).tolist() == [False, True, True, True, True, False]
    assert clipping.doubtful(factors, weights).tolist() == [False, True, True, True, True, False]
    assert clipping.doubtful(torch.ones(2).double(), torch.tensor([1e-31, 0.0]).double()).tolist() == [True, False]
