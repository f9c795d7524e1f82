"""A round of DP-FedEmb: users drawn, virtual clients, their clipped sum, the server's step.

    users drawn -> virtual clients -> local training -> clip(start - end) -> sum + noise -> / m -> server's optimizer

An update has the sign of a gradient: the weights at the start minus those at the end ("pseudo-gradient", Reddi et al.
2021, arXiv 2003.00295). So any optimizer can be the server's. With learning rate 1 and no momentum, the new weights are
the mean of the clients' weights (FedAvg). m is the declared number of clients: a public constant, even if some clients
are empty.

Each user is assigned to a virtual client independently of all others (DP-FedEmb, section 3.3). Dividing the drawn users
into clients of equal size would not work under add-or-remove adjacency: without one user, others would move to other
clients, so one user would change many clients' updates, and no bound by a few C would hold. Under zero-out adjacency
the drawn users stay the same, and equal sizes are allowed (`assign_evenly`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.data import Source, by_user
from sfumato.experiment.client_choices import EVEN, Clients
from sfumato.experiment.users import known_groups
from sfumato.gradients import GridSum
from sfumato.gradients.clipping import accumulation_dtype, clip_factors, exact_squared_norms, exact_weighted_sum
from sfumato.observers.progress import Progress
from sfumato.privacy import QuantileClipping
from sfumato.randomness import NoiseState, RunKey
from sfumato.training.job import PublicJob, SourceJob
from sfumato.training.local import LocalTraining
from sfumato.training.step import NORM, following_norm
from sfumato.training.user_records import UserRecords
from sfumato.training.workers import ALONE, Workers

Assign = Callable[[RunKey, int, np.ndarray], np.ndarray]
"""Maps the run key, a round and the numbers of the drawn users, ascending (n,), to their clients: (n,) int64 from 0 to
m - 1."""


def assign_randomly(users: int, *, clients: int) -> Assign:
    """In each round, draws each user's client independently and uniformly from the run key and the user's number.

    Args:
        users: the number of users.
        clients: m, the number of virtual clients in each round.

    **Guarantee.** A user's client is a function of (key, round, the user's number, m). It is drawn whether or not the
    user takes part, so no user's presence affects another user's client: adding or removing one user changes the
    records of one client alone.

    >>> assign, key, drawn = assign_randomly(6, clients=3), RunKey.from_seed(0), np.arange(6)
    >>> [assign(key, 0, drawn).tolist() == assign(key, step, drawn).tolist() for step in (0, 1)]
    [True, False]
    """
    positive_integer(users=users, clients=clients)
    return lambda key, step, drawn: key.generator("clients", step).integers(clients, size=users)[drawn]


def assign_evenly(*, clients: int) -> Assign:
    """In each round, deals the drawn users in a secret order to clients of equal size, give or take one user: the
    paper's partition into exactly 8 or 4 users each (Xu et al. 2022, section 4).

    Args:
        clients: m, the number of virtual clients in each round.

    **Guarantee.** A user's client is a function of (key, round, who is drawn, m). Under zero-out adjacency a zeroed-out
    user is still drawn, so no other user's client changes: the records of one client alone change. Under other
    adjacencies this need not hold, so plans of other adjacencies are refused.

    >>> np.bincount(assign_evenly(clients=3)(RunKey.from_seed(0), 0, np.array([2, 3, 5, 7, 11, 13]))).tolist()
    [2, 2, 2]
    """
    positive_integer(clients=clients)
    return lambda key, step, drawn: key.generator("clients", step).permutation(len(drawn)) % clients


def assign_by_group(groups: np.ndarray, *, clients: int, fixed: bool = False) -> Assign:
    """Keeps the users of a group together: a keyed hash of the group's name chooses their client.

    Args:
        groups: (users,) text, each user's own public group, such as a site or a device.
        clients: m, the number of virtual clients in each round.
        fixed: whether a group keeps its client for the whole run. Otherwise the hash also depends on the round.

    **Guarantee.** A user's client is a function of (key, round, the user's own group, m), or of (key, the group, m) if
    it is fixed, so adding or removing one user changes the records of one client alone. With fixed groups a client's
    users are the same in all rounds: without all of them that client is empty, and its update is zero.

    >>> assign = assign_by_group(np.array(["a", "b", "a"]), clients=5, fixed=True)
    >>> assigned = assign(RunKey.from_seed(0), 7, np.arange(3))
    >>> bool(assigned[0] == assigned[2])
    True
    """
    positive_integer(clients=clients)
    groups = np.asarray(groups)
    if groups.ndim != 1 or groups.dtype.kind != "U":
        raise SfumatoError(
            f"groups must hold a text for each user, got {groups.dtype} of shape {groups.shape}",
            "give the name of each user's own group",
        )
    names, places = np.unique(groups, return_inverse=True)

    def assign(key: RunKey, step: int, drawn: np.ndarray) -> np.ndarray:
        stream, turn = ("client of a group", 0) if fixed else ("client of a group in a round", step)
        chosen = [int(key.generator(stream, turn, str(name)).integers(clients)) for name in names]
        return np.array(chosen, dtype=np.int64)[places[drawn]]

    return assign


ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedUpdateSum:
    """The clipped update of a client, or the sum of several.

    Attributes:
        gradients: by parameter name, the sum of clip_C(weights at the start - weights at the end).
        within: the sum over clients of 1/2 if the update's norm is at most C, else -1/2. Adaptive clipping adds noise
            to it (Andrew et al. 2021, arXiv 1905.03871). As private as the sum itself.
    """

    gradients: dict[str, Tensor]
    within: float


@dataclass(frozen=True, kw_only=True)
class ClippedUpdates:
    """``sum over clients of clip_C(update)``, one client at a time, so that memory does not grow with their number.

    Args:
        local: computes a client's update.
        max_norm: C, the bound on the L2 norm of a client's update over all parameters together.

    **Guarantee.** Unit: a user; adjacency: add or remove one user, zero one out, or replace one by another. Such a
    change reaches the records of one client, if every user's client is independent of the other users (`clients`), and
    that client's clipped update may move between any two points of the ball of radius C. So the sum moves by at most
    2 C in L2 norm, and `ClippedUpdateSum.within` by at most 1. All users of a client together move them by C and by
    1/2, since an empty client contributes nothing: this gives the promise for a group that is fixed for the run. Each
    update obeys the bound as computed (`clipping.clip_factors`), with room for the grid's rounding. An update that is
    not finite counts as zero. Source: Xu et al. 2022 (arXiv 2211.10844), section 3.3, whose own accounting takes the
    whole virtual client as the unit.
    """

    local: LocalTraining
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive(max_norm=self.max_norm)

    @property
    def sums_over(self) -> Literal["clients"]:
        """The unit of the sum: each virtual client's update is clipped."""
        return "clients"

    def with_max_norm(self, max_norm: float) -> ClippedUpdates:
        """The same sum with another bound C."""
        return replace(self, max_norm=max_norm)

    def sensitivity(self, adjacency: str) -> float:
        """The L2 distance by which one user can move the sum: 2 C."""
        one_of(ADJACENCIES, adjacency=adjacency)
        return 2 * self.max_norm

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no clients."""
        return {
            name: torch.zeros_like(value, dtype=accumulation_dtype(value.dtype))
            for name, value in self.local.start().items()
        }

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> ClippedUpdateSum:
        """The clipped update of one client, from all of its records. The arguments are those of `LocalTraining.update`.

        A client without records contributes zero to the update and to `within`, as if it did not exist.
        """
        if len(labels) == 0:
            return ClippedUpdateSum(gradients=self.zeros(), within=0.0)
        update = self.local.update(inputs, labels, generator)
        squares = sum(exact_squared_norms(value[None]) for value in update.values())
        assert isinstance(squares, Tensor)
        factors = clip_factors(squares, torch.zeros_like(squares), max_norm=self.max_norm, of=update.values())
        finite = bool(squares.isfinite())
        fits = not finite or bool(squares.sqrt() <= self.max_norm)
        return ClippedUpdateSum(
            gradients={name: exact_weighted_sum(value[None], factors) for name, value in update.items()},
            within=0.5 if fits else -0.5,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """The virtual clients of each round, with their records.

    Args:
        assign: assigns users to clients.
        users: the records of each user.
        labels: (N,) int64.
        inputs: maps record numbers (n,) to the module's inputs (n, ...).
        groups: (users,) int64, the number of each user's group if whole groups are drawn; else None.

    **Guarantee.** All records of a drawn user are in one client, the user's own. A client's records and its generator
    are a function of (key, round, client, its own drawn users and their records): no other user's presence changes
    them, as long as it changes no user's client (`assign`). Records are ordered by user number, then record number,
    whatever order the users were drawn in.
    """

    assign: Assign
    users: UserRecords
    labels: np.ndarray
    inputs: Callable[[np.ndarray], Tensor]
    groups: np.ndarray | None = None

    @classmethod
    def from_job(cls, job: SourceJob, progress: Progress | None = None) -> Rounds:
        """The rounds of a job with virtual clients.

        **Guarantee.** A user's client is a function of the run key and of that user alone. With fixed groups it is the
        user's own group. With clients of equal size, under zero-out adjacency alone, it also depends on who is drawn.
        """
        assert job.embedding is not None
        source, clients, groups = job.source, job.embedding.clients, None
        numbers, names = by_user(source.train)
        assign: Assign
        if clients.grouping == "random":
            assign = assign_randomly(len(names), clients=clients.count)
        elif clients.grouping == EVEN:
            assign = assign_evenly(clients=clients.count)
        elif clients.grouping == "group":
            assign = assign_by_group(groups_by_user(source), clients=clients.count)
        else:
            groups = fixed = np.unique(groups_by_user(source), return_inverse=True)[1]
            assign = lambda key, step, drawn: fixed[drawn]  # noqa: E731 - a fixed group is a client
        return cls(
            assign=assign,
            users=UserRecords.from_numbers(numbers, names, None),
            labels=source.train.labels,
            inputs=lambda rows: job.transform(torch.from_numpy(source.train.take(rows)).to(job.device)),
            groups=groups,
        )

    @property
    def units(self) -> int:
        """The number of users, or of groups if these are drawn as a whole."""
        return len(self.users) if self.groups is None else int(self.groups.max()) + 1

    def clients(self, key: RunKey, step: int, drawn: np.ndarray) -> dict[int, np.ndarray]:
        """{client: its record numbers} of a round, for the clients with records.

        Args:
            drawn: the numbers of the users who take part, in any order.
        """
        drawn = np.sort(drawn)
        assigned = self.assign(key, step, drawn)
        members = {int(client): drawn[assigned == client] for client in np.unique(assigned)}
        records = {
            client: np.concatenate([self.users.rows(user) for user in users]) for client, users in members.items()
        }
        return {client: rows for client, rows in records.items() if len(rows)}

    def micro_batches(
        self, key: RunKey, step: int, drawn: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[tuple[Tensor, Tensor, np.random.Generator]]:
        """Yields the arguments of `ClippedUpdates` for each client: inputs, labels, and the client's own generator.

        If several workers share the round, only the clients dealt to this worker; clients with most records are dealt
        first.

        Args:
            drawn: the numbers of the units that take part, in any order.
        """
        users = drawn if self.groups is None else np.flatnonzero(np.isin(self.groups, drawn))
        clients = list(self.clients(key, step, users).items())
        for place in workers.deal(step, np.sort(users), [len(rows) for _, rows in clients]):
            client, rows = clients[place]
            inputs = self.inputs(rows)
            labels = torch.from_numpy(self.labels[rows]).to(inputs.device)
            yield inputs, labels, key.generator("client", step, str(client))

    def halve(self) -> None:
        """Clients are trained one after the other, so there are no smaller pieces."""


def groups_by_user(source: Source) -> np.ndarray:
    """The name of each user's own group, text (users,).

    Errors: `SfumatoError` if the source has no groups, or if a user's records name two groups.
    """
    numbers, names = by_user(source.train)
    groups = known_groups(source)
    _, first = np.unique(numbers, return_index=True)
    of_users = groups[first]
    if not np.array_equal(of_users[numbers], groups):
        odd = names[numbers[np.flatnonzero(of_users[numbers] != groups)[0]]]
        raise SfumatoError("the records of one user name two groups", f"give each user one group (user {odd!r})")
    return of_users


class NoiselessSteps:
    """The mean of a round's clipped updates: no plan, no noise, no guarantee.

    Drawn users, clients, local training, clipping and the adaptive norm are those of a private round with the same key,
    except that the count for the adaptive norm is exact (Andrew et al. 2021, equation 2: C exp(-eta (b - gamma))).

    **Guarantee.** None: for public data only.
    """

    def __init__(self, job: PublicJob, key: RunKey, progress: Progress | None = None):
        assert job.embedding is not None
        assert job.embedding.rounds is not None
        clients, rounds = job.embedding.clients, job.embedding.rounds
        self._key, self._count, self._rounds = key, clients.count, Rounds.from_job(job)
        self._clipping, self._probability = rounds.clipping, job.batch_size / rounds.population
        self._query = updates_of(job.module, clients, rounds.max_norm)

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The server's gradient in this round, and the next round's norm if it follows a quantile."""
        clipping, bound = self._clipping, self._clipping.max_norm
        if NORM in state.tensors:
            bound = float(state.tensors[NORM])
        drawn = np.flatnonzero(self._key.generator("sampling", step).random(self._rounds.units) < self._probability)
        self._query, within = self._query.with_max_norm(bound), 0.0
        total = GridSum(self._query.zeros(), max_norm=bound)
        for client in self._rounds.micro_batches(self._key, step, drawn):
            clipped = self._query(*client)
            total.add(clipped.gradients)
            within += clipped.within
        following = NoiseState(step=step + 1)
        if isinstance(clipping, QuantileClipping):
            after = following_norm(clipping, bound, clipping.noisy_fraction(within, self._count))
            following.tensors[NORM] = torch.tensor(after, dtype=torch.float64)
        return {name: value / self._count for name, value in total.value().items()}, following

    def figures(self, step: int) -> dict[str, Any]:
        """The clipping norm of the last round. If it follows a quantile, it is an estimate of it."""
        return {"max_norm": self._query.max_norm}


def updates_of(module: nn.Module, clients: Clients, max_norm: float) -> ClippedUpdates:
    """The clipped updates of a model."""
    return ClippedUpdates(local=LocalTraining(module, clients.local), max_norm=max_norm)
