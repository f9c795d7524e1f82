"""Which virtual client each user belongs to: decided for every user apart from all others (DP-FedEmb, section 3.3).

Putting the users who happen to be drawn into clients one after the other would not do: whoever leaves moves everybody
after them on, so that one user changes many clients' updates, and no bound in terms of a few C holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sfumato._checks import SfumatoError, positive_integer
from sfumato.randomness import RunKey

Assign = Callable[[int], np.ndarray]
"""Of a round, the virtual client of each user, drawn or not: (users,) int64 from 0 to m - 1."""


def anew(key: RunKey, users: int, *, clients: int) -> Assign:
    """In each round each user's client is an independent uniform draw of the run key for the user's number.

    Args:
        key: the run key.
        users: how many there are.
        clients: m, virtual clients in each round.

    **Guarantee.** A user's client is a function of (key, round, the user's number, m). It is drawn whether or not the
    user takes part, so nobody's presence moves anybody else: adding or removing one user changes the records of one
    client alone.

    >>> assigned = anew(RunKey.from_seed(0), 6, clients=3)
    >>> assigned(0).tolist() == assigned(0).tolist(), assigned(0).tolist() == assigned(1).tolist()
    (True, False)
    """
    positive_integer("users", users)
    positive_integer("clients", clients)
    return lambda step: key.generator("clients", step).integers(clients, size=users)


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

    >>> assigned = by_group(RunKey.from_seed(0), np.array(["a", "b", "a"]), clients=5, fixed=True)(7)
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

    def assign(step: int) -> np.ndarray:
        stream, turn = ("client of a group", 0) if fixed else ("client of a group in a round", step)
        chosen = [int(key.generator(stream, turn, str(name)).integers(clients)) for name in names]
        return np.array(chosen, dtype=np.int64)[places]

    return assign
