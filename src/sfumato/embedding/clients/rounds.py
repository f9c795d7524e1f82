"""A round of DP-FedEmb: users drawn, virtual clients, their clipped sum, the server's step.

    users drawn -> virtual clients -> local training -> clip(start - end) -> sum + noise -> / m -> server's optimizer

An update has the sign of a gradient: the weights at the start less those at the end ("pseudo-gradient", Reddi et al.
2021, arXiv 2003.00295). So the server's optimizer is any optimizer that descends, and its learning rate 1 without
momentum puts the mean of the clients' weights in place (FedAvg). m is the declared number of clients, a public
constant, however many of them happen to be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.embedding.clients.assignment import Assign
from sfumato.randomness import RunKey
from sfumato.training.workers import ALONE, Workers


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """The virtual clients of each round, with their records.

    Args:
        key: the run key.
        assign: which client each user belongs to.
        users: (N,) int64, the number of the user whose record each one is.
        labels: (N,) int64.
        inputs: of record numbers (n,) the inputs (n, ...) that the module takes.

    **Guarantee.** All records of a drawn user are in one client, the user's own; a client's records and its generator
    are a function of (key, round, client, its own drawn users and their records): no other user's presence changes
    them, as far as it changes nobody's client (`assign`). Records come in the order of user numbers, then record
    numbers, whatever order they were drawn in.
    """

    key: RunKey
    assign: Assign
    users: np.ndarray
    labels: np.ndarray
    inputs: Callable[[np.ndarray], Tensor]
    _order: np.ndarray = field(init=False, repr=False)
    _ordered: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.users.shape != self.labels.shape or self.users.ndim != 1 or self.users.dtype.kind not in "iu":
            raise SfumatoError(
                f"users must be a number for each record {self.labels.shape}, got {self.users.dtype} "
                f"of shape {self.users.shape}",
                "number the users from 0",
            )
        order = np.argsort(self.users, kind="stable")
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_ordered", self.users[order])

    def records(self, user: int) -> np.ndarray:
        """A user's record numbers, ascending."""
        start, end = np.searchsorted(self._ordered, (user, user + 1))
        return self._order[start:end]

    def clients(self, step: int, drawn: np.ndarray) -> dict[int, np.ndarray]:
        """{client: its record numbers} of a round, of those clients that have any.

        Args:
            drawn: the numbers of the users who take part, in any order.
        """
        drawn = np.sort(drawn)
        assigned = self.assign(step, drawn)
        members = {int(client): drawn[assigned == client] for client in np.unique(assigned)}
        found = {client: np.concatenate([self.records(user) for user in users]) for client, users in members.items()}
        return {client: records for client, records in found.items() if len(records)}

    def micro_batches(
        self, step: int, drawn: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[tuple[Tensor, Tensor, np.random.Generator]]:
        """One client after the other, as `ClippedUpdates` takes it: inputs, labels, and the client's own generator.

        Where several workers take the round, those that are dealt to this one: clients with most records first.
        """
        clients = list(self.clients(step, drawn).items())
        for place in workers.deal(step, np.sort(drawn), [len(records) for _, records in clients]):
            client, records = clients[place]
            inputs = self.inputs(records)
            labels = torch.from_numpy(self.labels[records]).to(inputs.device)
            yield inputs, labels, self.key.generator("client", step, str(client))
