"""Which runs used which private data, and what that means for a run, in words.

Each use is on the owner's list before its first step.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Source, find_known
from sfumato.privacy import PrivacyPlan, PrivateChoice
from sfumato.privacy.statements.display import ceiling, rounded_up
from sfumato.privacy.unit import Example
from sfumato.randomness import keys
from sfumato.runs.owner import budgets, store
from sfumato.runs.owner.budgets import JointCost, adjacency_of, joint_cost, joint_costs, percent, runs_text
from sfumato.runs.owner.lines import CHOICE, DataIdentity, DataUse, same_people
from sfumato.runs.owner.store import History

_NAMED = 3
"""The most runs that a note names."""


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
        seeded: whether the randomness follows from a seed, so that the run has no guarantee.
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
            store.add_codes(held, store.USED, data.data_digests[0], now)
        held.append(line)


def record_choice(data: DataIdentity, choice: PrivateChoice) -> None:
    """Record that a choice by the number of right answers on the test part of these data is about to be made: see
    `record`."""
    _require_material(data)
    with store.locked() as held:
        held.append(DataUse(run=secrets.token_hex(32), use=choice, data=data.data_digests, places=data.places))


def _uses_of_run(history: History, run: str) -> list[DataUse]:
    return [one for one in history.of(DataUse) if one.run == run]


@dataclass(frozen=True)
class EarlierUses:
    """The owner's earlier uses of some data, or of data that were then at one of their places.

    Args:
        data: the data.
        lines: the lines about them, in order.
        runs: the plan of each run, by identity.
        other_assignments: the number of those runs for users that put other records together. Their losses compose for
            a person who is one user in each run.
        seeded: the number of seeded runs in `runs`. Their plans count, although they have no guarantee.
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
    used = history.of(DataUse)
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
        "disagreements": [*store.disagreements(found.history)],
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


def notes_before(
    data: DataIdentity,
    coming: PrivacyPlan,
    *,
    seeded: bool,
    budget: str | None = None,
    figures: float | None = None,
    history: History | None = None,
) -> Iterator[str]:
    """Notes for the owner before a run on private data starts.

    Args:
        coming: what the run will release.
        seeded: whether the run is seeded.
        budget: the budget in which the run will be reserved.
        figures: epsilon of the figures that the run will publish.
        history: the owner's list as the run has read it.
    """
    found = earlier_uses(data, history)
    if budget is not None:
        yield from _budget_notes(budget, found, coming, figures)
    if found.plans:
        yield earlier_runs_note(found.plans, coming, found.seeded + seeded)
    if found.other_assignments:
        yield f"note: {other_assignments(found.other_assignments)}"
    yield from overlap_notes(found, budget)
    if figures is not None:
        for line in figures_sentences([*found.figures, (coming.unit.name, figures)]):
            yield f"note: with this one, {line}"
    if budget is None:
        for name in dict.fromkeys(
            one.budget for one in found.lines if one.budget and set(one.data) & set(data.data_digests)
        ):
            yield (
                f"note: runs on these data count in the budget {name}, but this one does not, since it names no budget"
            )


def disagreement_notes(history: History | None = None) -> Iterator[str]:
    """A note for the owner if the lists have lost entries. It comes before any total."""
    if found := [*store.disagreements(history)]:
        yield (
            f"note: your lists disagree: {'; '.join(found)}; lost entries are in no total, so every total is too "
            f"small until {keys.home()} is restored from a copy"
        )


def _budget_notes(name: str, found: EarlierUses, coming: PrivacyPlan, figures: float | None) -> Iterator[str]:
    """The state of a budget before a run is reserved in it, and the uses of the same data that it does not count."""
    account, same = budgets.read_budget(name, found.history), set(found.data.data_digests)
    cost = account.filter.cost(coming, figures)
    share = cost / account.filter.limit
    fits = account.filter.fits([*account.costs, cost])
    would = f"after which {percent(account.used + share)} is used" if fits else "which is too much"
    yield f"{account.description}; this plan takes {percent(share)}, {would}"
    if account.reservations and not set(account.reservations[0].data) & same:
        yield f"note: the budget {name} was first used for other records than these"
    others = dict[str, set[str]]()
    for one in found.lines:
        if one.budget not in (None, name) and set(one.data) & same:
            others.setdefault(one.budget, set()).add(one.run)
    for other, its in others.items():
        yield (
            f"note: the budget {other} also has {runs_text(len(its))} on these data: each budget counts its own runs, "
            "and neither total covers both"
        )
    counted = {one.run for one in account.reservations}.union(*others.values())
    apart = [use for one, use in found.runs.items() if one not in counted and use.unit.name == account.filter.unit]
    if apart:
        epsilon, delta = joint_cost(apart)
        is_or_are, comes = ("is", "comes") if len(apart) == 1 else ("are", "come")
        yield (
            f"note: {runs_text(len(apart))} of yours on these data {is_or_are} in no budget and {comes} to a further "
            f"epsilon {rounded_up(epsilon)} at delta {delta!r}"
        )


def overlap_notes(found: EarlierUses, budget: str | None = None) -> Iterator[str]:
    """Notes about lost lines, and about runs on other data sets that share records with these data.

    Args:
        budget: the budget of the coming run. Other runs in it count with the coming run, so they get no note.

    **Guarantee.** A run on a data set that shares a record with these data, by either of its codes, is among
    `found.lines`, in a note, or in the budget, as long as its codes were stored.
    """
    yield from disagreement_notes(found.history)
    counted = {one.run for one in found.others if budget is not None and one.budget == budget}
    own, common, named = None, np.zeros(0, bool), dict[str, str]()
    for material in dict.fromkeys(one.data[0] for one in found.others if one.run not in counted):
        among = store.read_codes(store.USED, material)
        if among is None or found.data.codes is None:
            continue
        own = found.data.codes() if own is None else own
        if (again := find_known(own, among)).any():
            common = again | common if len(common) else again
            others = [one for one in found.others if one.data[0] == material and one.run not in counted]
            named |= {one.run: one.name for one in others}
    if not named:
        return
    called = [*dict.fromkeys(filter(None, named.values()))]
    shown = f" ({', '.join([*called[:_NAMED], *(['...'] if len(called) > _NAMED else [])])})" if called else ""
    share = f"{max(0.1, 100 * common.mean()):.3g}%"
    yield (
        f"note: {common.sum():,} of these {len(common):,} records ({share}) {'were' if common.sum() > 1 else 'was'} "
        f"used by {runs_text(len(named))} of yours on {'other data sets' if len(named) > 1 else 'another data set'}"
        f"{shown}. No total has both. A record that is in all of them pays for all: leave such records out, or give "
        "all these runs one budget (sfumato budget)"
    )


def declared_public_note(source: Source, history: History | None = None) -> str | None:
    """A note if data are declared public that the owner's runs have used as private; else None."""
    if not source.public or source.published:
        return None
    found = earlier_uses(DataIdentity.from_source(source), history)
    count = len(found.plans)
    if not count:
        return None
    return (
        f"note: these data are declared public, but {runs_text(count)} of yours used them as private: a model trained "
        "here gives them no guarantee"
    )


def other_assignments(count: int, which: str = "earlier") -> str:
    """The text about runs with another assignment of records to users (`EarlierUses.other_assignments`)."""
    return (
        f"{count} {which} run{'s' if count > 1 else ''} of yours assigned these records to other users: the total is "
        "for a person who is one user in each run"
    )


def seeded_suffix(count: int) -> str:
    """The addition to a total for its seeded runs, starting with "; "; empty if there are none."""
    if count < 2:
        return "; 1 run was seeded and has no guarantee" if count else ""
    return f"; {count} runs were seeded and have no guarantee"


def earlier_runs_note(earlier: Sequence[PrivacyPlan], coming: PrivacyPlan, seeded: int = 0) -> str:
    """A note about the earlier runs on the same data and the joint cost with the coming run.

    Args:
        seeded: the number of seeded runs, including the coming one.
    """
    own, *others = joint_costs([coming, *earlier])
    count, like = len(earlier), own.runs - 1
    note = f"note: {count} earlier run{'s' if count > 1 else ''} of yours used these data"
    if like:
        under = adjacency_of([use for use in (*earlier, coming) if use.unit.name == own.unit])
        which = f", {like} of them with a guarantee for each single {own.unit}" if others else ""
        note += (
            f"{which}; together with this one they cost epsilon {rounded_up(own.epsilon)} at delta {own.delta!r} under "
            f"{under} adjacency, if all were planned in advance"
        )
    note += seeded_suffix(seeded)
    return "; ".join(
        [
            note,
            *map(other_unit_text, others),
            "a copy of the data in another place that was also changed is not counted",
        ]
    )


def joint_cost_sentences(used: Sequence[PrivacyPlan], plan: PrivacyPlan, seeded: int = 0) -> list[str]:
    """The joint cost of all runs on the same data, for each unit separately; empty for a single run.

    Args:
        used: all uses, including that of `plan`.
        seeded: the number of seeded runs among them.
    """
    own = [use for use in used if use.unit.name == plan.unit.name]
    others = joint_costs([use for use in used if use.unit.name != plan.unit.name])
    of_others = [f"On the same data {other_unit_text(other)}." for other in others]
    if len(own) < 2:
        return of_others
    epsilon, delta = joint_cost(own)
    one = "an example that" if plan.users is None else "a person who"
    total = (
        f"At least {len(own)} runs of yours have used these data. Together they are ({rounded_up(epsilon)}, {delta!r})-"
        f"differentially private under {adjacency_of(own)} adjacency for {one} is in all of them, if all were planned "
        f"in advance{seeded_suffix(seeded)}. A copy of the data in another place that was also changed is not counted."
    )
    return [total, *of_others]


def figures_sentences(figures: Sequence[tuple[str, float]]) -> list[str]:
    """The joint cost of several releases about test images, in a sentence for each unit; empty for a single release.

    Args:
        figures: (unit, epsilon) of each release.
    """
    found = []
    for unit, who in (("example", "an image that"), ("user", "a person who")):
        epsilons = [epsilon for of, epsilon in figures if of == unit]
        if epsilons and len(figures) > 1:
            are = "s of yours are" if len(epsilons) > 1 else " of yours is"
            found.append(
                f"{len(epsilons)} release{are} about test images of these data (a run's published figures, or the "
                f"choice of an aggregate), together ({rounded_up(math.fsum(epsilons))}, 0)-differentially private "
                f"under add-or-remove adjacency for {who} was in the test part each time; what is trained on it "
                "elsewhere comes on top."
            )
    return found


def other_unit_text(other: JointCost) -> str:
    """The text about runs with another unit, whose figures do not add up with these."""
    many, who = other.runs > 1, "a person" if other.unit == "user" else "an example"
    return (
        f"{other.runs} run{'s' if many else ''} with a guarantee for each single {other.unit} "
        f"{'come' if many else 'comes'} to epsilon {rounded_up(other.epsilon)} at delta {other.delta!r} for that, "
        f"which sfumato cannot add to the total: {who} that is in both pays for both"
    )
