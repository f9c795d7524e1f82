"""What the owner reads of all runs on the same data: notes before a run, sentences after it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sfumato.data import Source
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import rounded_up
from sfumato.runs.owner.composition import Together, Use, adjacency_of, side_by_side, together, unit_of
from sfumato.runs.owner.uses import other_assignments, plans, seeded


def called_public(source: Source) -> str | None:
    """What to say where data are declared public that runs of the owner's have used as private; else None."""
    if not source.public or source.published:
        return None
    known = {"places": source.places, "users": source.assignment}
    earlier = len(plans(source.materials, **known)) + other_assignments(source.materials, **known)
    if not earlier:
        return None
    return (
        f"note: these data are declared public, and {earlier} run{'s' if earlier > 1 else ''} of yours used them as "
        "private: what is trained here promises them nothing"
    )


def of_other_assignments(count: int, which: str = "earlier") -> str:
    """What the owner should know of so many runs that are `other_assignments`."""
    return (
        f"{count} {which} run{'s' if count > 1 else ''} of yours on these data promised for users who were "
        "told apart otherwise than here: what they cost does not add up with these, and is not in any sum"
    )


def of_seeded(count: int) -> str:
    """What to say beside a total of so many runs by a seed, with what stands before it; nothing of none."""
    if count < 2:
        return "; 1 run was seeded and promises nothing" if count else ""
    return f"; {count} runs were seeded and promise nothing"


def seeded_uses(source: Source) -> int:
    """How many of the owner's runs on these data are by a seed; none of public data, which need no list."""
    return 0 if source.public else seeded(source.materials, places=source.places, users=source.assignment)


def before(source: Source, coming: Use, *, seeded: bool) -> str | None:
    """The same as `summary` of all runs on this source so far; None where there are none, or it is public.

    Args:
        seeded: whether the coming one is by a seed.
    """
    known = {"places": source.places, "users": source.assignment}
    if source.public or not (earlier := plans(source.materials, **known)):
        return None
    return summary(earlier, coming, seeded_uses(source) + seeded)


def summary(earlier: Sequence[Use], coming: Use, seeded: int = 0) -> str:
    """What the owner should know before another run on the same data is paid for.

    Args:
        seeded: how many of all of them are by a seed.
    """
    own, *others = side_by_side([coming, *earlier])
    count, like = len(earlier), own.runs - 1
    note = f"note: {count} earlier run{'s' if count > 1 else ''} of yours used these data"
    if like:
        under = adjacency_of([use for use in (*earlier, coming) if unit_of(use) == own.unit])
        which = f", {like} of them with a promise for each single {own.unit}" if others else ""
        note += (
            f"{which}; together with this one, if all were planned in advance, they come to epsilon "
            f"{rounded_up(own.epsilon)} at delta {own.delta!r}, for {under} adjacency, which each of them holds for"
        )
    note += of_seeded(seeded)
    return "; ".join(
        [note, *map(of_other_unit, others), "a copy of the data in another place that was also changed is not counted"]
    )


def of_all_uses(used: Sequence[Use], plan: PrivacyPlan, seeded: int = 0) -> list[str]:
    """What all runs on the same data come to, for each unit by itself; nothing of one that stands alone.

    Args:
        used: all of them, that of `plan` included.
        seeded: how many of them are by a seed.
    """
    own = [use for use in used if unit_of(use) == plan.unit.name]
    others = side_by_side([use for use in used if unit_of(use) != plan.unit.name])
    of_others = [f"On the same data {of_other_unit(other)}." for other in others]
    if len(own) < 2:
        return of_others
    epsilon, delta = together(own)
    users = plan.users is not None
    return [of_all(len(own), epsilon, delta, adjacency_of(own), users=users, seeded=seeded), *of_others]


def of_figures(epsilons: Sequence[float]) -> list[str]:
    """What several releases about test images come to, in a sentence; nothing of one alone."""
    if len(epsilons) < 2:
        return []
    return [
        f"{len(epsilons)} releases of yours are about test images of these data (a run's published figures, or the "
        f"choice of an aggregate), which are together ({rounded_up(math.fsum(epsilons))}, 0)-differentially private "
        "under add-or-remove adjacency for an image that was in the test part each time; what is trained on it "
        "elsewhere comes on top."
    ]


def of_all(runs: int, epsilon: float, delta: float, adjacency: str | None, *, users: bool, seeded: int = 0) -> str:
    """What so many runs with one unit come to, in a sentence."""
    one = "a person who" if users else "an example that"
    return (
        f"At least {runs} runs of yours have used these data; planned in advance, they are together "
        f"({rounded_up(epsilon)}, {delta!r})-differentially private under {adjacency} adjacency, which each of them "
        f"holds for, for {one} is in all of them{of_seeded(seeded)}. A copy of the data in another place that was also "
        "changed is not counted."
    )


def of_other_unit(other: Together) -> str:
    """What to say of runs whose unit is another one: figures of two units don't add up."""
    many = other.runs > 1
    return (
        f"{other.runs} run{'s' if many else ''} with a promise for each single {other.unit} "
        f"{'come' if many else 'comes'} to epsilon {rounded_up(other.epsilon)} at delta {other.delta!r} for that, "
        "which does not add up with other units"
    )
