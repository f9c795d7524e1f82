"""A user's records give one vector, however many they are: against plain autograd, and one user against the bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sfumato._checks import SfumatoError
from sfumato.gradients import clipping, grid
from sfumato.gradients.user_gradient import UserGradient

SHAPE, CLASSES = (1, 6, 6), 4


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, CLASSES))


def users(count: int, records: int, views: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and shares, with random numbers of records and arbitrary padding."""
    generator = torch.Generator().manual_seed(seed)
    lead = (count, records) if views == 1 else (count, records, views)
    inputs = torch.randn(*lead, *SHAPE, generator=generator)
    targets = torch.randint(CLASSES, (count, records), generator=generator)
    own = torch.rand(count, records, generator=generator) < 0.7
    own[:, 0] = True
    inputs[~own] = 1e3
    return inputs, targets, own / own.sum(1, keepdim=True)


def of_one(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The gradient of one user's mean loss, by plain autograd, in one vector."""
    model.zero_grad()
    loss = torch.zeros(())
    for image, label, share in zip(inputs, targets, shares, strict=True):
        if share > 0:
            views = image if image.dim() == 4 else image[None]
            loss = loss + share * F.cross_entropy(model(views), label.expand(len(views)))
    loss.backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    model.zero_grad(set_to_none=True)
    return flat


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in gradients.values()]).double()


def rounding(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """By how much rounding to float32 may move each coordinate of one user's gradient, to first order in u = 2^-24.

    In whatever order: a sum of n products is off by at most n u times the sum of their magnitudes (Higham 2002, section
    3.1), and each error is carried through all that follows, by magnitudes. `model` and all else in float64.
    """
    u, n = 2.0**-24, 16 * inputs.numel() // 36  # the longest sum: positions, of all records and views
    convolution, linear = model[0], model[3]
    views = inputs.flatten(0, -4)
    weight = shares.repeat_interleave(len(views) // len(shares)) / (len(views) // len(shares))
    label = F.one_hot(targets, CLASSES).repeat_interleave(len(views) // len(shares), dim=0).double()
    kernel, bias, matrix, offset = (
        value.detach() for layer in (convolution, linear) for value in (layer.weight, layer.bias)
    )
    patches = F.unfold(views, 3)  # (views, 9, 16)
    h = (F.conv2d(views, kernel, bias).flatten(2)).tanh()
    h_error = (10 * u) * (kernel.flatten(1).abs() @ patches.abs() + bias.abs()[:, None]) + 4 * u * h.abs()
    h, h_error, wide = h.flatten(1), h_error.flatten(1), matrix.abs()
    z = h @ matrix.T + offset
    z_error = h_error @ wide.T + 49 * u * (h.abs() @ wide.T + offset.abs())
    p = z.softmax(1)
    p_error = p * (2 * z_error.amax(1, keepdim=True) + 16 * u)
    e = weight[:, None] * (p - label)
    e_error = weight[:, None] * p_error + 4 * u * e.abs()
    back, slope = e @ matrix, 1 - h.square()
    back_error = e_error @ wide + 4 * u * (e.abs() @ wide)
    c = back * slope
    c_error = back_error * slope + back.abs() * (2 * h.abs() * h_error + 4 * u)
    of_kernel = (c_error + n * u * c.abs()).unflatten(1, (3, 16))
    of_matrix = (e_error + n * u * e.abs()).T @ h.abs() + e.abs().T @ h_error
    parts = (
        torch.einsum("bcp,bkp->ck", of_kernel, patches.abs()),
        of_kernel.sum((0, 2)),
        of_matrix,
        (e_error + n * u * e.abs()).sum(0),
    )
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 2),
    st.sampled_from([1, 2, 64]),
    st.floats(0.05, 5.0),
    st.data(),
)
def test_the_sum_is_that_of_plain_autograd_clipped_user_by_user(dtype, count, records, views, at_once, max_norm, data):
    """Within what clipping takes off on purpose, and rounding: float64 shows the formula, float32 what users get.

    A clipped user's term is smaller by its norm's margin (33 u for half of 66 u), by 8 u, and by the grid's share: a
    part of each term, which does not shrink where the terms of two users cancel.
    """
    model, exact = network().to(dtype), network().double()
    inputs, targets, shares = users(count, records, views, data.draw(st.integers(0, 9)))
    gradient = UserGradient(model, F.cross_entropy, max_norm=max_norm, views=views, at_once=at_once)
    found = gradient(inputs.to(dtype), targets, shares)
    wanted, allowed, norms, off = 0, 0, [], []
    eps = torch.finfo(dtype).eps
    for one in zip(inputs.double(), targets, shares.double(), strict=True):
        whole, own = of_one(exact, *one), one[2] > 0
        error = rounding(exact, one[0][own], one[1][own], one[2][own]) * (2 * eps / 2.0**-23)  # twice: higher orders
        norm, relative = whole.norm(), clipping.margin(dtype, whole.device) / 2 + 4 * eps + grid.allowance(len(whole))
        relative = relative + 2 * error.norm() / norm + 4 * eps  # the norm's own error, and products with the factor
        factor = min(1.0, max_norm / float(norm))
        wanted, allowed = wanted + factor * whole, allowed + factor * (error + relative * whole.abs())
        norms, off = [*norms, norm], [*off, error.norm() + relative * norm]
    allowed = allowed + count * eps * abs(wanted)
    assert bool(((flat(found.gradients) - wanted).abs() <= allowed).all())
    assert bool(((found.norms - torch.stack(norms)).abs() <= torch.stack(off)).all())
    assert float(allowed.norm()) < (1e-3 if dtype == torch.float32 else 1e-8) * max_norm * count


@pytest.mark.parametrize("at_once", [64, 2])
def test_one_user_moves_the_sum_by_no_more_than_the_bound_however_many_records_they_have(at_once):
    """Also in pieces: clipped piece by piece, the seven records would count several times."""
    gradient = UserGradient(network(), F.cross_entropy, max_norm=0.1, at_once=at_once)
    inputs, targets, _ = users(3, 7, 1, seed=1)
    inputs[0], targets[0] = inputs[0, 0], targets[0, 0]  # alike, so that pieces add up
    shares = torch.ones(3, 7)  # a sum in place of a mean
    total, without = gradient(inputs, targets, shares), gradient(inputs[1:], targets[1:], shares[1:])
    moved = float((flat(total.gradients) - flat(without.gradients)).norm())
    assert 0.0999 < moved <= gradient.sensitivity("add-or-remove") == 0.1


@pytest.mark.parametrize("at_once", [64, 2])
def test_a_user_with_anything_that_is_not_finite_contributes_nothing(at_once):
    gradient = UserGradient(network(), F.cross_entropy, at_once=at_once)
    inputs, targets, shares = users(2, 5, 1, seed=2)
    inputs[0, 0] = torch.nan
    found = gradient(inputs, targets, shares)
    torch.testing.assert_close(found.gradients, gradient(inputs[1:], targets[1:], shares[1:]).gradients)
    assert not found.norms[0].isfinite()


def test_a_record_keeps_its_own_label():
    gradient = UserGradient(network(), F.cross_entropy)
    inputs, _, _ = users(1, 2, 1, seed=3)
    shares = torch.full((1, 2), 0.5)
    one, other = (gradient(inputs, torch.tensor([labels]), shares).gradients for labels in ([0, 1], [1, 0]))
    assert float((flat(one) - flat(other)).norm()) > 0.1


def test_dropout_follows_a_users_own_key_in_pieces_too():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, CLASSES))
    inputs, targets, shares = users(2, 4, 1, seed=4)
    keys = torch.arange(8).reshape(2, 4)
    for at_once in (64, 2):
        gradient = UserGradient(model, F.cross_entropy, at_once=at_once)
        gradient.self_check(SHAPE)
        assert gradient.draws
        alone = gradient(inputs[:1], targets[:1], shares[:1], keys[:1]).gradients
        both, other = (
            gradient(inputs[rows], targets[rows], shares[rows], keys[rows]).gradients for rows in ([0, 1], [1])
        )
        torch.testing.assert_close(flat(both), flat(alone) + flat(other))
        again = gradient(inputs[:1], targets[:1], shares[:1], keys[:1] + 1).gradients
        assert float((flat(again) - flat(alone)).norm()) > 1e-3


def test_no_users_are_a_sum_of_zeros():
    gradient = UserGradient(network(), F.cross_entropy)
    found = gradient(torch.zeros(0, 3, *SHAPE), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3))
    assert flat(found.gradients).norm() == 0


def test_other_shapes_are_refused():
    gradient = UserGradient(network(), F.cross_entropy)
    with pytest.raises(SfumatoError, match=r"are \(2, 3\), \(2, 3\) and \(2, 2\); give \(users, records\)"):
        gradient(torch.zeros(2, 3, *SHAPE), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2))
