"""What one data set was used for: each run of the owner's with its date, and what all of them cost together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.privacy import PrivacyPlan, PrivateChoice, PrivateSelection
from sfumato.privacy.statements.presented import ceiling
from sfumato.privacy.unit import Example
from sfumato.runs.owner import budgets, called, compared, composition, uses
from sfumato.runs.owner.composition import Together, Use


@dataclass(frozen=True, kw_only=True)
class Used:
    """A run, a private search, or a choice by test images.

    Args:
        date: when it began, in UTC.
        run: its identity.
        name: its directory, by the last two names of the path; what else it was; or "" where that is not known.
        kind: "run", "search" or "choice".
        unit: what it promises for: "example" or "user".
        adjacency: the relation under which it holds.
        epsilon, delta: of it by itself; of a choice for each test image.
        figures: epsilon of what it publishes of test images; None where it publishes nothing.
        budgets: names of the budgets that it was reserved in.
        seeded: whether it is by a seed: its plan counts, and it promises nothing.
    """

    date: str
    run: str
    name: str
    kind: str
    unit: str
    adjacency: str
    epsilon: float
    delta: float
    figures: float | None
    budgets: tuple[str, ...]
    seeded: bool = False


@dataclass(frozen=True, kw_only=True)
class Spent:
    """All of them.

    Args:
        uses: in the order in which they began.
        together: what they come to, for each unit by itself; persons whom two runs told apart otherwise are apart too.
        by_numbers: how many runs on the list, of whatever data, are known by the numbers of these alone.
        disagreements: what is wrong with the owner's lists, so that the sums are too small (`compared`).
    """

    uses: tuple[Used, ...]
    together: tuple[Together, ...]
    by_numbers: int = 0
    disagreements: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data; epsilons rounded up to six decimals."""
        listed = [asdict(one) | {"epsilon": ceiling(one.epsilon, 6), "budgets": list(one.budgets)} for one in self.uses]
        sums = [one._asdict() | {"epsilon": ceiling(one.epsilon, 6)} for one in self.together]
        lists = {"by_numbers": self.by_numbers, "disagreements": list(self.disagreements)}
        return {"uses": listed, "together": sums, **lists}


def spent(materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = ()) -> Spent:
    """What the owner's list knows of these data, or of what was read from these places.

    Errors: `SfumatoError` where the list or a budget cannot be read, for then the sum is not known.
    """
    reserved: dict[str, tuple[str, ...]] = {}
    for name in budgets.names():
        for one in budgets.read_budget(name).reservations:
            reserved[one.run] = (*reserved.get(one.run, ()), name)
    found: dict[str, Used] = {}
    plans: dict[str, tuple[str, Use]] = {}
    for entry, use, _ in uses.lines(materials, directory, places):
        run = entry["run"]
        if run not in found:  # one that goes on has further lines, and counts once
            found[run] = _used(entry, use, reserved.get(run, ()))
        if not isinstance(use, PrivateChoice):
            whose = "" if composition.unit_of(use) == Example.name else entry[uses.USERS]
            plans[run] = (whose, use)
    sums = []
    for own in dict.fromkeys(whose for whose, _ in plans.values()):
        runs = {run: use for run, (whose, use) in plans.items() if whose == own}
        for one in composition.side_by_side(list(runs.values())):
            seeded = sum(found[run].seeded for run, use in runs.items() if composition.unit_of(use) == one.unit)
            sums.append(one._replace(seeded=seeded))
    return Spent(
        uses=tuple(found.values()),
        together=tuple(sums),
        by_numbers=len({entry["run"] for entry in uses.trainings() if not called.places_of(entry)}),
        disagreements=tuple(compared.disagreements()),
    )


def _used(entry: dict[str, Any], use: Use | PrivateChoice, reserved: tuple[str, ...]) -> Used:
    known = {"date": entry[uses.DATE], "run": entry["run"], "name": entry.get(uses.NAME, ""), "budgets": reserved}
    known["seeded"] = entry.get(uses.SEEDED, False)
    if isinstance(use, PrivateChoice):
        released = {"kind": "choice", "unit": Example.name, "adjacency": "add-or-remove", "figures": None}
        return Used(**known, **released, epsilon=use.epsilon, delta=0.0)
    plan: PrivacyPlan = use.plan if isinstance(use, PrivateSelection) else use
    return Used(
        **known,
        kind="search" if isinstance(use, PrivateSelection) else "run",
        unit=plan.unit.name,
        adjacency=plan.adjacency,
        epsilon=use.epsilon(),
        delta=plan.delta,
        figures=entry.get(uses.FIGURES),
    )
