"""Which virtual client each user belongs to: decided for every user apart from all others (DP-FedEmb, section 3.3).

Putting the users who happen to be drawn into clients of one size would not do where a user may be missing altogether:
whoever leaves moves others on, so that one user changes many clients' updates, and no bound in terms of a few C holds.
Where a user may fall silent instead, who is drawn stays the same, and it does (`evenly`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sfumato._checks import SfumatoError, positive_integer
from sfumato.randomness import RunKey

Assign = Callable[[int, np.ndarray], np.ndarray]
"""Of a round and the numbers of those who are drawn, ascending (n,), each one's client: (n,) int64 from 0 to m - 1."""


def anew(key: RunKey, users: int, *, clients: int) -> Assign:
    """In each round each user's client is an independent uniform draw of the run key for the user's number.

    Args:
        key: the run key.
        users: how many there are.
        clients: m, virtual clients in each round.

    **Guarantee.** A user's client is a function of (key, round, the user's number, m). It is drawn whether or not the
    user takes part, so nobody's presence moves anybody else: adding or removing one user changes the records of one
    client alone.

    >>> assigned, drawn = anew(RunKey.from_seed(0), 6, clients=3), np.arange(6)
    >>> [assigned(0, drawn).tolist() == assigned(step, drawn).tolist() for step in (0, 1)]
    [True, False]
    """
    positive_integer("users", users)
    positive_integer("clients", clients)
    return lambda step, drawn: key.generator("clients", step).integers(clients, size=users)[drawn]


def evenly(key: RunKey, *, clients: int) -> Assign:
    """In each round the users who are drawn are dealt to clients of one size, one user more or less, in a secret order:
    the paper's partition into exactly 8 or 4 users each (Xu et al. 2022, section 4).

    Args:
        key: the run key.
        clients: m, virtual clients in each round.

    **Guarantee.** A user's client is a function of (key, round, who is drawn, m). Under zero-out adjacency a user who
    falls silent is drawn all the same, so nobody else moves: the records of one client alone change. Where a user may
    be missing, or another in their place, that need not hold, so plans of other adjacencies are refused.

    >>> np.bincount(evenly(RunKey.from_seed(0), clients=3)(0, np.array([2, 3, 5, 7, 11, 13]))).tolist()
    [2, 2, 2]
    """
    positive_integer("clients", clients)
    return lambda step, drawn: key.generator("clients", step).permutation(len(drawn)) % clients


def by_group(key: RunKey, groups: np.ndarray, *, clients: int, fixed: bool = False) -> Assign:
    """Users of one group are always together; which client that is, a keyed hash of the group's name decides.

    Args:
        key: the run key.
        groups: (users,) text, each user's own public group, such as a site or a device.
        clients: m, virtual clients in each round.
        fixed: whether a group keeps its client for the whole run; otherwise the hash takes the round in.

    **Guarantee.** A user's client is a function of (key, round, the user's own group, m), or of (key, the group, m)
    where it is fixed, so adding or removing one user changes the records of one client alone. With fixed groups a
    client's users are the same in all rounds: without all of them together that client is empty, and its update zero.

    >>> assigned = by_group(RunKey.from_seed(0), np.array(["a", "b", "a"]), clients=5, fixed=True)(7, np.arange(3))
    >>> bool(assigned[0] == assigned[2])
    True
    """
    positive_integer("clients", clients)
    groups = np.asarray(groups)
    if groups.ndim != 1 or groups.dtype.kind != "U":
        raise SfumatoError(
            f"groups must be a text for each user, got {groups.dtype} of shape {groups.shape}",
            "give the name of each user's own group",
        )
    names, places = np.unique(groups, return_inverse=True)

    def assign(step: int, drawn: np.ndarray) -> np.ndarray:
        stream, turn = ("client of a group", 0) if fixed else ("client of a group in a round", step)
        chosen = [int(key.generator(stream, turn, str(name)).integers(clients)) for name in names]
        return np.array(chosen, dtype=np.int64)[places[drawn]]

    return assign
