"""Which runs used which private data: each is on the owner's list before its first step, and found again there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import PrivateChoice
from sfumato.privacy.statements.presented import ceiling
from sfumato.privacy.unit import Example
from sfumato.runs.owner import budgets, codes, store
from sfumato.runs.owner.composition import Use, side_by_side, unit_of
from sfumato.runs.owner.known import Data
from sfumato.runs.owner.lines import CHOICE, Opened, Used


def record(
    data: Data,
    use: Use,
    *,
    run: str,
    name: str = "",
    figures: float | None = None,
    budget: str | None = None,
    seeded: bool = False,
) -> None:
    """Note that a run, or a private selection, on these data is about to take its first step.

    Args:
        data: its data, whose codes are remembered too, so that a part of them is known again.
        use: what it is about to release.
        run: its identity. One that is on the list with the same data and plan counts once.
        name: what the owner reads of it: its directory, by the last two names of the path.
        figures: epsilon of the figures that it is to publish of its test part; None where it publishes none.
        budget: the name of the budget that its whole plan is reserved in, or it is refused; None for none.
        seeded: whether its randomness follows from a seed, so that it promises nothing.

    **Guarantee.** After the call the use is on disk, in one line with its reservation. No two processes count without
    each other, and what is reserved never exceeds a budget's total.

    Errors: `SfumatoError` where the list cannot be read or extended, for another plan of the same run, and for what
    `budgets.admitted` refuses.
    """
    _require_material(data)
    line = Used(
        run=run,
        use=use,
        data=data.materials,
        places=data.places,
        name=name,
        users="" if unit_of(use) == Example.name else data.users,
        figures=figures,
        seeded=seeded,
        budget=budget,
    )
    own = _of_run(store.read(), run)
    if any(replace(line, name=one.name, cost=one.cost, date=one.date) == one for one in own):
        return
    known = data.codes is None or any(one.data == data.materials for one in own)
    now = None if known or data.codes is None else data.codes()
    with store.held() as held:
        if any(one.use != use for one in _of_run(held, run)):
            raise SfumatoError(
                f"run {run} is on the list of uses with another plan", "another plan is another run: give it a new one"
            )
        if budget is not None:
            line = budgets.admitted(held, line)
        if now is not None:
            codes.extend(held, codes.USED, data.materials[0], now)
        held.append(line)


def record_choice(data: Data, choice: PrivateChoice) -> None:
    """Note that a choice by right answers on the test part of these data is about to be made: see `record`."""
    _require_material(data)
    with store.held() as held:
        held.append(Used(run=secrets.token_hex(32), use=choice, data=data.materials, places=data.places))


def _of_run(found: store.Store, run: str) -> list[Used]:
    return [one for one in found.lines if isinstance(one, Used) and one.run == run]


def opened(run: str, before: str | None, salt: str) -> bool:
    """Write down the latest opening of a run; whether this is the one that it goes on from.

    Args:
        before: the salt of the opening before, as this copy of the run has it; None for none.

    **Guarantee.** Where two copies of an unfinished run go on, the second one is told so: each of them spends the whole
    plan on its own, and only one is on the owner's list.
    """
    with store.held() as held:
        salts = [one.salt for one in held.lines if isinstance(one, Opened) and one.run == run]
        held.append(Opened(run=run, salt=salt))
    return (salts[-1] if salts else before) == before


@dataclass(frozen=True)
class Earlier:
    """What the owner's list has of some data, or of what was then at one of their places.

    Args:
        data: the data.
        lines: the lines about them, in their order.
        runs: the plan of each run, or the private selection, by its identity. Promises for users are among them where
            the same records were the same users': what one calls a user may be several to another, and their losses
            don't compose.
        apart: how many runs promised for users who were told apart otherwise: they compose with none of these.
        seeded: how many of `runs` are by a seed: their plans count, and they promise nothing.
        figures: what each release about test images cost each of them: a run's figures, or a choice.
        others: the lines of all other runs of the owner's.
    """

    data: Data
    lines: tuple[Used, ...] = ()
    runs: dict[str, Use] = field(default_factory=dict)
    apart: int = 0
    seeded: int = 0
    figures: tuple[float, ...] = ()
    others: tuple[Used, ...] = ()

    @property
    def plans(self) -> list[Use]:
        """One for each run that counts, in the order in which they began."""
        return list(self.runs.values())


def earlier(data: Data, *, but: str | None = None) -> Earlier:
    """The uses of these data so far: the same records at another size, in another format, or as features have a
    material in common; records that were changed are known by their place alone.

    Args:
        but: the identity of a run that is left out.

    Errors: `SfumatoError` where the list cannot be read, or lacks a line between others: then what the runs cost
    together is not known.
    """
    used = [one for one in store.read().lines if isinstance(one, Used) and one.run != but]
    found = data.among(used)
    runs, users, figures, seeded, apart = dict[str, Use](), dict[str, set[str] | None](), dict[str, float](), set(), 0
    for line, known in found:
        if line.of_tests is not None:  # a later line that says less takes nothing back
            figures[line.run] = max(line.of_tests, figures.get(line.run, 0.0))
        if isinstance(line.use, PrivateChoice):
            continue
        runs[line.run] = line.use
        # Of data that were changed since, at one place, whose they are is taken to be said in one way.
        whose, before = {line.users} if known and line.unit != Example.name else None, users.get(line.run, set())
        users[line.run] = None if whose is None or before is None else whose | before
        if line.seeded:
            seeded.add(line.run)
    for run, whose in users.items():
        if not _for(whose, data.users):
            del runs[run]
            apart += 1
    counted = {line.run for line, _ in found}
    return Earlier(
        data=data,
        lines=tuple(line for line, _ in found),
        runs=runs,
        apart=apart,
        seeded=len(seeded & runs.keys()),
        figures=tuple(figures.values()),
        others=tuple(one for one in used if one.run not in counted and one.kind != CHOICE),
    )


def _for(whose: set[str] | None, users: str) -> bool:
    """Whether a run counts in the sum of those that took the same records for one user's."""
    return whose is None or users in whose


def spent(data: Data) -> dict[str, Any]:
    """What the owner's list knows of these data, or of what was read from their places, as plain data.

    Returns:
        `uses`: each run, private search, or choice by test images, in the order in which they began; `together`: what
        they come to, for each unit by itself (persons whom two runs told apart otherwise are apart too); `by_numbers`:
        how many runs, on whatever data, are known by the numbers of these alone; `disagreements`: what is wrong with
        the owner's lists, so that the sums are too small. Epsilons are rounded up to six decimals.

    Errors: `SfumatoError` where the list cannot be read, for then the sum is not known.
    """
    found = earlier(data)
    runs = dict[str, list[Used]]()
    for one in found.lines:
        runs.setdefault(one.run, []).append(one)
    whose = {run: lines[-1].users for run, lines in runs.items() if lines[0].kind != CHOICE}
    sums = []
    for users in dict.fromkeys(whose.values()):
        own = [runs[run][-1] for run, one in whose.items() if one == users]
        for one in side_by_side([line.use for line in own if not isinstance(line.use, PrivateChoice)]):
            seeded = sum(any(line.seeded for line in runs[of.run]) for of in own if of.unit == one.unit)
            sums.append(one._asdict() | {"epsilon": ceiling(one.epsilon, 6), "seeded": seeded})
    every = [*found.lines, *found.others]
    return {
        "uses": [*map(_row, runs.values())],
        "together": sums,
        "by_numbers": len({one.run for one in every if not one.places and one.kind != CHOICE}),
        "disagreements": [*codes.disagreements()],
    }


def _row(lines: Sequence[Used]) -> dict[str, Any]:
    """A use as plain data: one that goes on has further lines, and counts once."""
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


def _require_material(data: Data) -> None:
    if not data.materials:  # whose line nobody could read again
        raise SfumatoError(
            "the source has no material, by which the list of runs knows its records again", "open it by `open_source`"
        )
