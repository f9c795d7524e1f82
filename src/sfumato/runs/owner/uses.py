"""Which runs used which private data: each use is on the owner's list before its first step, and is found there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import PrivacyPlan, PrivateChoice
from sfumato.privacy.statements.display import ceiling
from sfumato.privacy.unit import Example
from sfumato.runs.owner import budgets, codes, store
from sfumato.runs.owner.budgets import joint_costs
from sfumato.runs.owner.lines import CHOICE, DataIdentity, DataUse, same_people
from sfumato.runs.owner.store import History


def record(
    data: DataIdentity,
    use: PrivacyPlan,
    *,
    run: str,
    name: str = "",
    figures: float | None = None,
    budget: str | None = None,
    seeded: bool = False,
    history: History | None = None,
) -> None:
    """Record that a run on these data is about to take its first step.

    Args:
        data: the data. Their codes are stored too, so that a part of them is recognised later.
        use: what the run will release.
        run: the identity of the run. A run that is on the list with the same data and plan counts once.
        name: the name shown to the owner: the last two parts of the run directory's path.
        figures: epsilon of the published figures of the test part; None if none will be published.
        budget: the name of the budget in which to reserve the whole plan; None for none. A plan that does not fit is
            refused.
        seeded: whether the randomness follows from a seed, so that the run promises nothing.
        history: the owner's list as the run has read it.

    **Guarantee.** After the call the use is on disk, in one line with its reservation. No process counts without the
    lines of all others, and the reservations never exceed a budget's total.

    Errors: `SfumatoError` if the list cannot be read or extended, if the same run has another plan, and for whatever
    `budgets.reservation` refuses.
    """
    _require_material(data)
    line = DataUse(
        run=run,
        use=use,
        data=data.data_digests,
        places=data.places,
        name=name,
        users="" if use.unit.name == Example.name else data.users,
        figures=figures,
        seeded=seeded,
        budget=budget,
    )
    history = history or store.read()
    own = _uses_of_run(history, run)
    if any(replace(line, name=one.name, cost=one.cost, date=one.date) == one for one in own):
        return
    known = data.codes is None or any(one.data == data.data_digests for one in own)
    now = None if known or data.codes is None else data.codes()
    with store.locked() as held:
        if any(one.use != use for one in _uses_of_run(held, run)):
            raise SfumatoError(
                f"run {run} is on the list of uses with another plan",
                "another plan is another run: give a new identity",
            )
        if budget is not None:
            line = budgets.reservation(held, line)
        if now is not None:
            codes.extend(held, codes.USED, data.data_digests[0], now)
        held.append(line)


def record_choice(data: DataIdentity, choice: PrivateChoice) -> None:
    """Record that a choice by the number of right answers on the test part of these data is about to be made: see
    `record`."""
    _require_material(data)
    with store.locked() as held:
        held.append(DataUse(run=secrets.token_hex(32), use=choice, data=data.data_digests, places=data.places))


def _uses_of_run(history: History, run: str) -> list[DataUse]:
    return [one for one in history.lines if isinstance(one, DataUse) and one.run == run]


@dataclass(frozen=True)
class EarlierUses:
    """The owner's earlier uses of some data, or of data that were then at one of their places.

    Args:
        data: the data.
        lines: the lines about them, in order.
        runs: the plan of each run, by identity.
        other_assignments: the number of those runs for users that put other records together. Their losses compose for
            a person who is one user in each run.
        seeded: the number of seeded runs in `runs`. Their plans count, although they promise nothing.
        figures: (unit, epsilon for each of them in the test part) of each release about test images (a run's figures,
            or a choice).
        others: the lines of all other runs.
        history: the list that they were read from.
    """

    data: DataIdentity
    lines: tuple[DataUse, ...] = ()
    runs: dict[str, PrivacyPlan] = field(default_factory=dict)
    other_assignments: int = 0
    seeded: int = 0
    figures: tuple[tuple[str, float], ...] = ()
    others: tuple[DataUse, ...] = ()
    history: History | None = field(default=None, repr=False)

    @property
    def plans(self) -> list[PrivacyPlan]:
        """The plan of each run in `runs`, oldest first."""
        return list(self.runs.values())


def earlier_uses(data: DataIdentity, history: History | None = None) -> EarlierUses:
    """The uses of these data on the owner's list; without `history` it is read now.

    The same records at another size, in another format, or as features share a material. Records that were changed are
    recognised by their place alone.

    Errors: `SfumatoError` if the list cannot be read or lacks a line between others, since the joint cost of the runs
    is then unknown.
    """
    history = history or store.read()
    used = [one for one in history.lines if isinstance(one, DataUse)]
    found = data.matching(used)
    runs, users, seeded = dict[str, PrivacyPlan](), dict[str, list[str]](), set()
    figures = dict[str, tuple[str, float]]()
    for line, known in found:
        if line.test_epsilon is not None:  # a later line with a smaller epsilon takes nothing back
            figures[line.run] = (line.unit, max(line.test_epsilon, figures.get(line.run, ("", 0.0))[1]))
        if isinstance(line.use, PrivateChoice):
            continue
        runs[line.run] = line.use
        if known and line.unit != Example.name:  # data that were changed since, at the same place, count as alike
            users.setdefault(line.run, []).append(line.users)
        if line.seeded:
            seeded.add(line.run)
    whose = data.users or (next(reversed(users.values()))[-1] if users else "")
    others = sum(not any(same_people(one, whose) for one in assigned) for assigned in users.values())
    counted = {line.run for line, _ in found}
    return EarlierUses(
        data=data,
        lines=tuple(line for line, _ in found),
        runs=runs,
        other_assignments=others,
        seeded=len(seeded),
        figures=tuple(figures.values()),
        others=tuple(one for one in used if one.run not in counted and one.kind != CHOICE),
        history=history,
    )


def uses_report(data: DataIdentity) -> dict[str, Any]:
    """All recorded uses of these data, or of what was read from their places, as plain data.

    Returns:
        `uses`: each run, or choice by test images, oldest first; `together`: their joint cost, for each
        unit separately; `other_assignments`: see `EarlierUses`; `by_numbers`: the number of runs, on any data,
        whose data are known by their numbers alone; `disagreements`: losses in the owner's lists, because of which the
        sums are too small. Epsilons are rounded up to six decimals.

    Errors: `SfumatoError` if the list cannot be read, since the sum is then unknown.
    """
    found = earlier_uses(data)
    runs = dict[str, list[DataUse]]()
    for one in found.lines:
        runs.setdefault(one.run, []).append(one)
    sums = []
    for one in joint_costs(found.plans):
        seeded = sum(
            any(line.seeded for line in runs[run]) for run, use in found.runs.items() if use.unit.name == one.unit
        )
        sums.append(one._asdict() | {"epsilon": ceiling(one.epsilon, 6), "seeded": seeded})
    every = [*found.lines, *found.others]
    return {
        "uses": [*map(_row, runs.values())],
        "together": sums,
        "other_assignments": found.other_assignments,
        "by_numbers": len({one.run for one in every if not one.places and one.kind != CHOICE}),
        "disagreements": [*codes.disagreements(found.history)],
    }


def _row(lines: Sequence[DataUse]) -> dict[str, Any]:
    """A use as plain data. A run that resumed has several lines and counts once."""
    first = lines[0]
    return {
        "date": first.date,
        "run": first.run,
        "name": first.name,
        "kind": first.kind,
        "unit": first.unit,
        "adjacency": first.adjacency,
        "epsilon": ceiling(first.epsilon, 6),
        "delta": first.delta,
        "figures": first.figures,
        "budgets": [*dict.fromkeys(one.budget for one in lines if one.budget is not None)],
        "seeded": first.seeded,
    }


def _require_material(data: DataIdentity) -> None:
    if not data.data_digests:  # `from_dict` could not recognise its line
        raise SfumatoError(
            "the source has no material, by which the list of runs recognises its records", "open it with `open_source`"
        )
