"""The sum of users' clipped scatters: its bound, what one user moves it by, what counts as nothing, and its form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.embedding.whitening import MEAN, MEAN_SHARE, SCATTER, ClippedScatters, symmetric, triangle
from sfumato.gradients import GridSum, grid

WIDTH = 5
QUERY = ClippedScatters(width=WIDTH, max_norm=0.05)


def length(values: dict[str, torch.Tensor]) -> float:
    """In float64, of both parts together."""
    return float(torch.cat([value.double().flatten() for value in values.values()]).norm())


def user(seed: int, count: int = 7, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return scale * drawn, torch.arange(count) % 2


@settings(max_examples=25)
@given(
    max_norm=st.floats(1e-9, 1e6),
    scale=st.sampled_from([0.0, 1e-25, 1e-3, 1.0, 1e8, 1e19, 1e30]),
    count=st.integers(1, 9),
    seed=st.integers(0, 9),
)
@example(max_norm=0.05, scale=1.0, count=7, seed=0)
def test_no_user_exceeds_the_bound_as_computed(max_norm, scale, count, seed):
    found = ClippedScatters(width=WIDTH, max_norm=max_norm)(*user(seed, count, scale)).gradients
    elements = WIDTH * (WIDTH + 1) // 2 + WIDTH
    assert all(value.isfinite().all() for value in found.values())
    assert length(found) <= max_norm * (1 - grid.allowance(elements))


@settings(max_examples=12, deadline=None)
@given(
    users=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9), st.sampled_from([1e-2, 1.0, 1e3])), min_size=2),
    bad=st.sampled_from([None, float("nan"), float("inf"), 1e38]),
)
def test_removing_any_one_user_moves_the_sum_by_the_bound_at_most(users, bad):
    given_users = [user(seed, count, scale) for seed, count, scale in users]
    if bad is not None:
        given_users[0][0][0, 0] = bad

    def total(without: int | None) -> dict[str, torch.Tensor]:
        found = GridSum(QUERY.zeros(), max_norm=QUERY.max_norm)
        for place, one in enumerate(given_users):
            if place != without:
                found.add(QUERY(*one).gradients)
        return found.value()

    whole = total(None)
    for place in range(len(users)):
        rest = total(place)
        assert length({name: whole[name] - rest[name] for name in whole}) <= QUERY.sensitivity("add-or-remove")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_a_user_with_anything_not_finite_counts_as_zero(bad):
    vectors, labels = user(0)
    vectors[2, 1] = bad
    assert length(QUERY(vectors, labels).gradients) == 0


def test_a_user_without_records_is_one_that_is_not_there():
    found = QUERY(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64)).gradients
    assert {name: value.shape for name, value in found.items()} == {n: v.shape for n, v in QUERY.zeros().items()}
    assert length(found) == 0


def test_the_scatter_is_that_within_classes_and_the_mean_that_of_all_images():
    vectors, labels = user(3, 8)
    found = ClippedScatters(width=WIDTH, max_norm=1e6)(vectors, labels).gradients
    within = np.concatenate([vectors[labels == c].numpy() - vectors[labels == c].numpy().mean(0) for c in (0, 1)])
    np.testing.assert_allclose(symmetric(found[SCATTER]).numpy(), within.T @ within / 8, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[MEAN].numpy(), MEAN_SHARE * vectors.numpy().mean(0), rtol=1e-5, atol=1e-7)


def test_one_image_of_each_class_has_no_scatter():
    found = QUERY(user(0)[0], torch.arange(7)).gradients
    assert found[SCATTER].abs().max() == 0
    assert found[MEAN].abs().max() > 0


def test_the_vector_of_a_symmetric_matrix_has_its_norm_and_leads_back_to_it():
    matrix = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = matrix + matrix.T
    assert float(triangle(matrix).norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(symmetric(triangle(matrix)), matrix)


def test_what_no_theorem_speaks_of_is_refused():
    with pytest.raises(SfumatoError, match="adjacency must be"):
        QUERY.sensitivity("replace-one")
    with pytest.raises(SfumatoError, match="max_norm"):
        ClippedScatters(width=3, max_norm=0.0)
