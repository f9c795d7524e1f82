"""A user's records give one vector, however many they are: against plain autograd, and one user against the bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sfumato._checks import SfumatoError
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=15)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 2),
    st.sampled_from([1, 2, 64]),
    st.floats(0.05, 5.0),
    st.data(),
)
def test_the_sum_is_that_of_plain_autograd_clipped_user_by_user(dtype, count, records, views, at_once, max_norm, data):
    """float64 shows the formula, float32 what users get."""
    model, exact = network().to(dtype), network().double()
    inputs, targets, shares = users(count, records, views, data.draw(st.integers(0, 9)))
    gradient = UserGradient(model, F.cross_entropy, max_norm=max_norm, views=views, at_once=at_once)
    found = gradient(inputs.to(dtype), targets, shares)
    wanted, norms = 0, []
    for one in zip(inputs.double(), targets, shares.double(), strict=True):
        whole = of_one(exact, *one)
        norms.append(whole.norm())
        wanted = wanted + min(1.0, max_norm / float(norms[-1])) * whole
    close = 1e-3 if dtype == torch.float32 else 1e-8
    assert float((flat(found.gradients) - wanted).norm()) <= close * max_norm * count
    torch.testing.assert_close(found.norms.double(), torch.stack(norms), rtol=close, atol=close * max_norm)


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


def test_dropout_follows_a_users_own_key_in_pieces_too():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, CLASSES))
    inputs, targets, shares = users(2, 4, 1, seed=4)
    keys = torch.arange(8).reshape(2, 4)
    for at_once in (64, 2):
        gradient = UserGradient(model, F.cross_entropy, at_once=at_once)
        gradient.self_check(SHAPE)
        assert gradient.uses_keys
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


class Fragile(nn.Module):
    """Not finite on a record of zeros, of ones, or with a value of 1e25; or moved by copies of a record."""

    def __init__(self, kind: str):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.last = kind, nn.Linear(4, 3)

    def forward(self, x):
        if self.kind == "norm":
            x = x / x.norm(dim=1, keepdim=True)
        elif self.kind == "std":
            x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        elif self.kind == "root":
            x = (x - 1).square().sum(1, keepdim=True).sqrt() * x
        elif self.kind == "square":
            x = x * x.square().sum(1, keepdim=True)
        elif self.kind == "hook":
            x = self.last(x)
            if torch.is_grad_enabled():
                x.register_hook(lambda gradient: gradient + 1)  # also where the share of a record is 0
            return x
        return self.last(x)


KINDS = ["norm", "std", "root", "square"]
SPECIAL = [0.0, 1.0, 1e25]


@settings(max_examples=30)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from([0.0, 1.0, 1e25, float("nan")]),
    st.sampled_from([2, 64]),
    st.integers(0, 99),
    st.data(),
)
def test_no_user_is_moved_by_what_others_are_padded_with(kind, counts, held, at_once, seed, data):
    """Each user contributes what they contribute by themselves, and at most C, whatever padding holds."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(counts), 5, 4, generator=generator)
    own = torch.arange(5) < torch.tensor(counts)[:, None]
    inputs[~own] = held
    if data.draw(st.booleans()):
        inputs[0, 0] = data.draw(st.sampled_from(SPECIAL))
    targets, shares = torch.randint(3, own.shape, generator=generator), own / own.sum(1, keepdim=True)
    gradient = UserGradient(Fragile(kind), F.cross_entropy, max_norm=0.1, at_once=at_once)
    together, alone = gradient(inputs, targets, shares), 0
    for user, count in enumerate(counts):
        rows = (slice(user, user + 1), slice(count))
        one = flat(gradient(inputs[rows], targets[rows], shares[rows]).gradients)
        assert float(one.norm()) <= 0.1
        alone = alone + one
    assert float((flat(together.gradients) - alone).norm()) <= 1e-5 * len(counts)


@pytest.mark.parametrize("kind", [*KINDS, "hook"])
@pytest.mark.parametrize("held", [0.0, 1.0, 1e25, float("nan")])
@pytest.mark.parametrize("at_once", [64, 2])
def test_a_user_without_records_is_padding_and_contributes_nothing(kind, held, at_once):
    gradient = UserGradient(Fragile(kind), F.cross_entropy, max_norm=0.1, at_once=at_once)
    inputs, targets = torch.rand(3, 3, 4), torch.zeros(3, 3).long()
    inputs[1], shares = held, torch.full((3, 3), 1 / 3)
    shares[1] = 0 if held else float("nan")  # the shares of a text without words
    total, rest = gradient(inputs, targets, shares), gradient(inputs[::2], targets[::2], shares[::2])
    torch.testing.assert_close(total.gradients, rest.gradients)
    torch.testing.assert_close(total.norms[::2], rest.norms)
    assert total.norms[1].isnan()
    assert total.losses[1].isnan()


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_piece_that_is_not_finite_makes_its_user_zero_and_nobody_else(place):
    gradient = UserGradient(Fragile("norm"), F.cross_entropy, max_norm=0.1, at_once=2)
    inputs, targets, shares = torch.rand(3, 5, 4), torch.zeros(3, 5).long(), torch.full((3, 5), 0.2)
    inputs[1, place] = 0
    total, rest = gradient(inputs, targets, shares), gradient(inputs[::2], targets[::2], shares[::2])
    torch.testing.assert_close(total.gradients, rest.gradients)
    assert total.norms.isfinite().tolist() == [True, False, True]


def test_the_pieces_of_a_user_have_different_dropout_masks():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, CLASSES))
    inputs, targets = torch.randn(1, 1, *SHAPE).expand(1, 4, *SHAPE), torch.zeros(1, 4).long()
    gradient, keys = UserGradient(model, F.cross_entropy, at_once=2), torch.arange(4)[None]
    gradient.self_check(SHAPE)
    first, third = (
        flat(gradient(inputs, targets, torch.eye(4)[[record]], keys).gradients) for record in (0, 2)
    )  # the first record of each of two pieces
    assert float((first - third).norm()) > 1e-3


@pytest.mark.parametrize("views", [1, 2])
def test_the_self_check_tries_users_beside_wider_ones(views):
    for kind in ("norm", "std", "root"):
        UserGradient(Fragile(kind), F.cross_entropy, views=views).self_check((4,))
    with pytest.raises(SfumatoError, match="differs from the plain computation"):
        UserGradient(Fragile("hook"), F.cross_entropy, views=views).self_check((4,))


def test_the_self_check_leaves_each_module_in_its_mode():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES), nn.BatchNorm1d(CLASSES).eval())
    UserGradient(model, F.cross_entropy).self_check(SHAPE)
    assert [module.training for module in model] == [True, True, False]
