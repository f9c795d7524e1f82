"""A round from users to the server's step: what one user can reach, and FedAvg where nothing is clipped."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.embedding import ClippedUpdates, LocalTraining, Rounds, assign_by_group
from sfumato.embedding.rounds import assign_evenly
from sfumato.gradients import GridSum
from sfumato.training.step import descend

USERS, CLIENTS, PER_USER = 24, 5, 6
QUIET = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
DRAWN = st.sets(st.integers(0, USERS - 1), min_size=1).map(sorted).map(np.array)


def total(query: ClippedUpdates, rounds: Rounds, step: int, drawn: np.ndarray) -> tuple[dict[str, torch.Tensor], float]:
    """The sum of a round, and that of its indicators."""
    added, within = GridSum(query.zeros(), max_norm=query.max_norm), 0.0
    for client in rounds.micro_batches(step, drawn):
        found = query(*client)
        added.add(found.gradients)
        within += found.within
    return added.value(), within


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([(value - other[name]).flatten() for name, value in one.items()]).norm())


def changed(rounds: Rounds, step: int, drawn: np.ndarray, leaver: int) -> set[int]:
    """The clients that are not the same, records, order and generator, once one user has left."""

    def seen(taking_part: np.ndarray) -> dict[int, tuple]:
        clients = rounds.clients(step, taking_part)
        draws = [generator.random() for _, _, generator in rounds.micro_batches(step, taking_part)]
        return {client: (*found.tolist(), draw) for (client, found), draw in zip(clients.items(), draws, strict=True)}

    before, after = seen(drawn), seen(drawn[drawn != leaver])
    return {client for client in before | after if before.get(client) != after.get(client)}


def caught(rounds: Rounds) -> bool:
    """Whether one user's leaving reaches more clients than one, in some of many rounds."""
    drawn = np.arange(0, USERS, 2)
    return any(len(changed(rounds, step, drawn, leaver)) > 1 for step in range(3) for leaver in drawn)


def with_groups(rounds: Rounds, *, fixed: bool) -> Rounds:
    groups = np.array([f"site {user % 6}" for user in range(USERS)])
    return replace(rounds, assign=assign_by_group(rounds.key, groups, clients=CLIENTS, fixed=fixed))


@QUIET
@given(drawn=DRAWN, step=st.integers(0, 99), data=st.data())
def test_a_user_who_leaves_changes_one_client_alone(rounds, drawn, step, data):
    leaver = data.draw(st.sampled_from(drawn.tolist()))
    for each in (rounds, with_groups(rounds, fixed=False), with_groups(rounds, fixed=True)):
        assert changed(each, step, drawn, leaver) == {int(each.assign(step, np.array([leaver]))[0])}


@QUIET
@given(drawn=DRAWN, step=st.integers(0, 99))
def test_all_records_of_a_drawn_user_are_in_one_client_in_their_order(rounds, drawn, step):
    found = rounds.clients(step, np.random.default_rng(0).permutation(drawn))
    assert all(len(records) for records in found.values())
    together = np.concatenate(list(found.values()))
    assert sorted(together) == np.flatnonzero(np.isin(rounds.users, drawn)).tolist()
    for client, records in found.items():
        owners = rounds.users[records]
        assert (rounds.assign(step, owners) == client).all()
        assert np.array_equal(np.lexsort((records, owners)), np.arange(len(records)))


def test_of_even_clients_a_user_who_leaves_moves_others_and_one_who_falls_silent_moves_nobody(rounds):
    """So they are for zero-out adjacency alone."""
    even = replace(rounds, assign=assign_evenly(rounds.key, clients=CLIENTS))
    drawn = np.arange(0, USERS, 2)
    assert caught(even)
    for step, silent in enumerate(drawn):
        heard = rounds.users != silent
        quiet = replace(even, users=rounds.users[heard], labels=rounds.labels[heard])
        numbers = np.flatnonzero(heard)  # what each record of the others is called with nobody silent
        before = {client: found.tolist() for client, found in even.clients(step, drawn).items()}
        after = {client: numbers[found].tolist() for client, found in quiet.clients(step, drawn).items()}
        assert len([client for client in before | after if before.get(client) != after.get(client)]) == 1


def test_one_user_moves_the_round_s_sum_by_at_most_two_bounds(backbone, settings, rounds):
    """And the indicators by at most 1."""
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.02)
    drawn = np.arange(0, USERS, 2)
    whole, within = total(query, rounds, 3, drawn)
    moved = []
    for leaver in drawn:
        found, remaining = total(query, rounds, 3, drawn[drawn != leaver])
        moved.append(distance(whole, found))
        assert abs(within - remaining) <= 1
    assert 0 < max(moved) <= query.sensitivity("add-or-remove")


def test_a_whole_client_of_fixed_groups_moves_every_sum_by_at_most_one_bound(backbone, settings, rounds):
    rounds = with_groups(rounds, fixed=True)
    query = ClippedUpdates(local=LocalTraining(backbone, settings), max_norm=0.02)
    drawn = np.arange(0, USERS, 2)
    everybody = rounds.assign(0, np.arange(USERS))
    gone = everybody == everybody[drawn[0]]
    for step in range(3):
        whole, within = total(query, rounds, step, drawn)
        found, remaining = total(query, rounds, step, drawn[~gone[drawn]])
        assert distance(whole, found) <= query.max_norm
        assert abs(within - remaining) == 0.5


def test_rounds_differ_and_are_replayed(rounds):
    drawn = np.arange(USERS)

    def seen(step: int) -> list:
        return [(labels.tolist(), draws.random()) for _, labels, draws in rounds.micro_batches(step, drawn)]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert len({draw for _, draw in seen(1)}) == CLIENTS, "clients have draws of their own"


def test_federated_averaging_is_the_mean_of_the_clients_weights(backbone, settings, rounds):
    local = LocalTraining(backbone, settings)
    ends = [local.trained_weights(*client) for client in rounds.micro_batches(0, np.arange(USERS))]
    assert len(ends) == CLIENTS
    summed, _ = total(ClippedUpdates(local=local, max_norm=1e3), rounds, 0, np.arange(USERS))
    server = torch.optim.SGD(backbone.parameters(), lr=1.0)
    descend(server, dict(backbone.named_parameters()), {name: value / CLIENTS for name, value in summed.items()})
    for name, value in backbone.named_parameters():
        assert torch.allclose(value, sum(end[name] for end in ends) / CLIENTS, rtol=0, atol=5e-7)
