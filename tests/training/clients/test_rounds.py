"""A round from users to the server's step: who shares a client, what one user can reach, how updates are clipped, and
FedAvg where nothing is clipped."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from sfumato import RunKey, SfumatoError
from sfumato.experiment.client_choices import LocalSGD
from sfumato.gradients import GridSum, grid
from sfumato.training.clients import ClippedUpdates, Rounds, assign_by_group, assign_evenly, assign_randomly
from sfumato.training.local import BackboneWithHead, LocalTraining
from sfumato.training.step import descend
from sfumato.training.user_records import UserRecords

KEY, ALL = RunKey.from_seed(3), np.arange(50)
GROUPS = np.array([f"site {number % 40}" for number in range(50)])
USERS, CLIENTS, PER_USER = 24, 5, 6
QUIET = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
DRAWN = st.sets(st.integers(0, USERS - 1), min_size=1).map(sorted).map(np.array)


def length(values: dict[str, torch.Tensor]) -> float:
    """The norm of all parameters together, in float64."""
    return float(torch.cat([value.double().flatten() for value in values.values()]).norm())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return length({name: value - other[name] for name, value in one.items()})


# -- the assignment of users to clients --------------------------------------------------------------------------------


def test_clients_are_uniform_and_independent_of_each_other_and_of_the_round():
    assign = assign_randomly(50, clients=8)
    drawn = np.array([assign(KEY, step, ALL) for step in range(400)])
    assert drawn.dtype == np.int64
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=8)).pvalue > 1e-6
    for first, second in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        pairs = np.bincount((8 * first + second).ravel(), minlength=64)
        assert stats.chisquare(pairs).pvalue > 1e-6


def test_a_replayed_round_has_the_same_clients():
    for assign in (assign_randomly(50, clients=8), assign_by_group(GROUPS, clients=8)):
        assert (assign(KEY, 4, ALL) == assign(KEY, 4, ALL)).all()
        assert (assign(KEY, 4, ALL) != assign(KEY, 5, ALL)).any()


@pytest.mark.parametrize("fixed", [False, True])
@settings(max_examples=30)
@given(absent=st.sets(st.integers(0, 49), max_size=49))
def test_a_group_s_client_does_not_depend_on_who_else_is_there(fixed, absent):
    there = np.array([number not in absent for number in range(50)])
    whole = assign_by_group(GROUPS, clients=4, fixed=fixed)(KEY, 2, ALL)
    fewer = assign_by_group(GROUPS[there], clients=4, fixed=fixed)(KEY, 2, np.arange(there.sum()))
    assert (fewer == whole[there]).all()


def test_users_of_a_group_are_together_and_groups_are_spread_evenly():
    names = np.array([str(number) for number in range(2000)])
    assigned = assign_by_group(np.concatenate([names, names]), clients=8)(KEY, 0, np.arange(4000))
    assert (assigned[:2000] == assigned[2000:]).all()
    assert stats.chisquare(np.bincount(assigned[:2000], minlength=8)).pvalue > 1e-6


def test_fixed_groups_stay_for_the_run_and_follow_the_key():
    assign = assign_by_group(GROUPS, clients=8, fixed=True)
    assert (assign(KEY, 0, ALL) == assign(KEY, 9, ALL)).all()
    assert (assign(KEY, 0, ALL) != assign(RunKey.from_seed(4), 0, ALL)).any()


@given(drawn=st.sets(st.integers(0, 999), min_size=1, max_size=60), clients=st.integers(1, 12))
def test_even_clients_have_as_many_users_as_each_other(drawn, clients):
    """And follow who is drawn alone, in whose place nobody's records have a part."""
    numbers, assign = np.array(sorted(drawn)), assign_evenly(clients=clients)
    assigned = assign(KEY, 3, numbers)
    sizes = np.bincount(assigned, minlength=clients)
    assert sizes.max() - sizes.min() <= 1
    assert (assigned == assign(KEY, 3, numbers)).all()


def test_each_user_of_a_round_is_in_any_even_client_alike():
    assigned = np.array([assign_evenly(clients=4)(KEY, step, ALL) for step in range(400)])
    assert stats.chisquare(np.bincount(assigned[:, 7], minlength=4)).pvalue > 1e-6
    together = (assigned[:, 0] == assigned[:, 1]).mean()
    assert abs(together - 12 / 49) < 0.12


def test_what_cannot_be_assigned_is_refused():
    with pytest.raises(SfumatoError, match="clients must be at least 1"):
        assign_randomly(5, clients=0)
    with pytest.raises(SfumatoError, match=r"groups must hold a text for each user, got int64 of shape \(3,\)"):
        assign_by_group(np.arange(3), clients=2)


# -- the clipped update of one client ----------------------------------------------------------------------------------


def records(count: int = 12, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return scale * torch.randn(count, 6, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 3


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    max_norm=st.floats(1e-9, 1e6),
    rate=st.sampled_from([1e-20, 1e-5, 0.05, 3.0, 1e4]),
    scale=st.sampled_from([1e-10, 1.0, 1e8]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(max_norm=1e-3, rate=3.0, scale=1.0, dtype=torch.float64)
def test_no_client_exceeds_the_bound_as_computed(backbone, max_norm, rate, scale, dtype):
    """In float64 the grid's rounding is what room is left for, in float32 that of the product."""
    local = LocalTraining(backbone.to(dtype), LocalSGD(learning_rate=rate, epochs=2, batch_size=5))
    inputs, labels = records(scale=scale)
    clipped = ClippedUpdates(local=local, max_norm=max_norm)(inputs.to(dtype), labels, generator())
    elements = sum(value.numel() for value in backbone.parameters())
    assert length(clipped.gradients) <= max_norm * (1 - grid.allowance(elements))
    assert all(value.isfinite().all() for value in clipped.gradients.values())


def test_a_short_update_is_summed_as_it_is_and_a_long_one_keeps_its_direction(backbone, settings):
    """The indicator is of the norm before clipping."""
    local = LocalTraining(backbone, settings)
    update = local.update(*records(), generator())
    norm = length(update)
    for max_norm, factor, within in ((1.01 * norm, 1.0, 0.5), (norm / 7, 1 / 7, -0.5), (0.99 * norm, 0.99, -0.5)):
        clipped = ClippedUpdates(local=local, max_norm=max_norm)(*records(), generator())
        assert clipped.within == within
        for name, value in update.items():
            assert torch.allclose(clipped.gradients[name], factor * value, rtol=1e-5, atol=0)


def test_a_client_without_records_is_one_that_is_not_there(backbone, settings):
    query = ClippedUpdates(local=LocalTraining(backbone, settings))
    clipped = query(*(value[:0] for value in records()), generator())
    assert clipped.within == 0
    assert clipped.gradients.keys() == query.zeros().keys()
    assert length(clipped.gradients) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_counts_as_zero(backbone, settings, bad):
    inputs, labels = records()
    inputs[3, 2] = bad
    local = LocalTraining(backbone, settings)
    assert not all(value.isfinite().all() for value in local.update(inputs, labels, generator()).values())
    clipped = ClippedUpdates(local=local)(inputs, labels, generator())
    assert length(clipped.gradients) == 0
    assert clipped.within == 0.5


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
def test_one_user_moves_the_sum_by_two_bounds(backbone, settings, adjacency):
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.3)
    assert query.sensitivity(adjacency) == 0.6
    assert query.sums_over == "clients"
    with pytest.raises(SfumatoError, match="adjacency must be one of"):
        query.sensitivity("add-one")


def test_one_user_s_presence_may_turn_a_client_s_update_around():
    """So C is not the sensitivity to a user, as the authors' accounting has it, and 2 C is not too much.

    One user's large records are of the class that the model takes them least for, another one's small records, alike
    but for that, of the class that it takes them for.
    """
    torch.manual_seed(0)
    model = BackboneWithHead(nn.Linear(6, 4, bias=False), classes=2, width=4, generator=generator())
    local = LocalTraining(model, LocalSGD(learning_rate=0.1, head="global", batch_size=8))
    query = ClippedUpdates(local=local, max_norm=1e-3)
    inputs, small = torch.cat([20 * torch.ones(4, 6), torch.ones(4, 6)]), slice(4, 8)
    taken_for = model(inputs).argmax(1)
    labels = torch.where(torch.arange(8) < 4, 1 - taken_for, taken_for)
    both = query(inputs, labels, generator()).gradients
    alone = query(inputs[small], labels[small], generator()).gradients
    assert 1.9 * query.max_norm < distance(both, alone) <= query.sensitivity("add-or-remove")


# -- rounds ------------------------------------------------------------------------------------------------------------


def total(query: ClippedUpdates, rounds: Rounds, step: int, drawn: np.ndarray) -> tuple[dict[str, torch.Tensor], float]:
    """The sum of a round, and that of its indicators."""
    added, within = GridSum(query.zeros(), max_norm=query.max_norm), 0.0
    for client in rounds.micro_batches(KEY, step, drawn):
        clipped = query(*client)
        added.add(clipped.gradients)
        within += clipped.within
    return added.value(), within


def changed(rounds: Rounds, step: int, drawn: np.ndarray, leaver: int) -> set[int]:
    """The clients that are not the same, records, order and generator, once one user has left."""

    def seen(taking_part: np.ndarray) -> dict[int, tuple]:
        clients = rounds.clients(KEY, step, taking_part)
        draws = [draws.random() for _, _, draws in rounds.micro_batches(KEY, step, taking_part)]
        return {client: (*rows.tolist(), draw) for (client, rows), draw in zip(clients.items(), draws, strict=True)}

    before, after = seen(drawn), seen(drawn[drawn != leaver])
    return {client for client in before | after if before.get(client) != after.get(client)}


def with_groups(rounds: Rounds, *, fixed: bool) -> Rounds:
    groups = np.array([f"site {user % 6}" for user in range(USERS)])
    return replace(rounds, assign=assign_by_group(groups, clients=CLIENTS, fixed=fixed))


def owners(rounds: Rounds) -> np.ndarray:
    """The number of each record's user."""
    numbers = np.empty(len(rounds.labels), np.int64)
    numbers[rounds.users.order] = np.repeat(np.arange(USERS), PER_USER)
    return numbers


@QUIET
@given(drawn=DRAWN, step=st.integers(0, 99), data=st.data())
def test_a_user_who_leaves_changes_one_client_alone(rounds, drawn, step, data):
    leaver = data.draw(st.sampled_from(drawn.tolist()))
    for each in (rounds, with_groups(rounds, fixed=False), with_groups(rounds, fixed=True)):
        assert changed(each, step, drawn, leaver) == {int(each.assign(KEY, step, np.array([leaver]))[0])}


@QUIET
@given(drawn=DRAWN, step=st.integers(0, 99))
def test_all_records_of_a_drawn_user_are_in_one_client_in_their_order(rounds, drawn, step):
    clients, numbers = rounds.clients(KEY, step, np.random.default_rng(0).permutation(drawn)), owners(rounds)
    assert all(len(rows) for rows in clients.values())
    together = np.concatenate(list(clients.values()))
    assert sorted(together) == np.flatnonzero(np.isin(numbers, drawn)).tolist()
    for client, rows in clients.items():
        assert (rounds.assign(KEY, step, numbers[rows]) == client).all()
        assert np.array_equal(np.lexsort((rows, numbers[rows])), np.arange(len(rows)))


def test_of_even_clients_a_user_who_leaves_moves_others_and_one_who_falls_silent_moves_nobody(rounds):
    """So they are for zero-out adjacency alone."""
    even, numbers = replace(rounds, assign=assign_evenly(clients=CLIENTS)), owners(rounds)
    drawn = np.arange(0, USERS, 2)
    assert any(len(changed(even, step, drawn, leaver)) > 1 for step in range(3) for leaver in drawn)
    for step, silent in enumerate(drawn):
        heard = numbers != silent
        users = UserRecords.from_numbers(numbers[heard], np.arange(USERS), None)
        quiet, rows_of = replace(even, users=users), np.flatnonzero(heard)  # rows as they are with nobody silent
        before = {client: rows.tolist() for client, rows in even.clients(KEY, step, drawn).items()}
        after = {client: rows_of[rows].tolist() for client, rows in quiet.clients(KEY, step, drawn).items()}
        assert len([client for client in before | after if before.get(client) != after.get(client)]) == 1


def test_one_user_moves_the_round_s_sum_by_at_most_two_bounds(backbone, settings, rounds):
    """And the indicators by at most 1."""
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.02)
    drawn = np.arange(0, USERS, 2)
    whole, within = total(query, rounds, 3, drawn)
    moved = []
    for leaver in drawn:
        fewer, remaining = total(query, rounds, 3, drawn[drawn != leaver])
        moved.append(distance(whole, fewer))
        assert abs(within - remaining) <= 1
    assert 0 < max(moved) <= query.sensitivity("add-or-remove")


def test_a_whole_client_of_fixed_groups_moves_every_sum_by_at_most_one_bound(backbone, settings, rounds):
    rounds = with_groups(rounds, fixed=True)
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.02)
    drawn = np.arange(0, USERS, 2)
    everybody = rounds.assign(KEY, 0, np.arange(USERS))
    gone = everybody == everybody[drawn[0]]
    for step in range(3):
        whole, within = total(query, rounds, step, drawn)
        fewer, remaining = total(query, rounds, step, drawn[~gone[drawn]])
        assert distance(whole, fewer) <= query.max_norm
        assert abs(within - remaining) == 0.5


def test_rounds_differ_and_are_replayed(rounds):
    drawn = np.arange(USERS)

    def seen(step: int) -> list:
        return [(labels.tolist(), draws.random()) for _, labels, draws in rounds.micro_batches(KEY, step, drawn)]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert len({draw for _, draw in seen(1)}) == CLIENTS, "clients have draws of their own"


def test_federated_averaging_is_the_mean_of_the_clients_weights(backbone, settings, rounds):
    local = LocalTraining(backbone, settings)
    ends = [local.trained_weights(*client) for client in rounds.micro_batches(KEY, 0, np.arange(USERS))]
    assert len(ends) == CLIENTS
    summed, _ = total(ClippedUpdates(local=local, max_norm=1e3), rounds, 0, np.arange(USERS))
    server = torch.optim.SGD(backbone.parameters(), lr=1.0)
    descend(server, dict(backbone.named_parameters()), {name: value / CLIENTS for name, value in summed.items()})
    for name, value in backbone.named_parameters():
        assert torch.allclose(value, sum(end[name] for end in ends) / CLIENTS, rtol=0, atol=5e-7)
