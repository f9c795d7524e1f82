"""How a run counts against a budget: its whole plan is reserved before its first step, or it does not begin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import rounded_up
from sfumato.runs.owner import uses
from sfumato.runs.owner.account import Account, Reservation, percent, runs
from sfumato.runs.owner.budgets import WHAT, account_in, names, now, path_of, read_budget, restored
from sfumato.runs.owner.chained import held
from sfumato.runs.owner.composition import Use, together, unit_of

if TYPE_CHECKING:
    from sfumato.data import Source


@dataclass(frozen=True, kw_only=True)
class Coming:
    """A run that is to count against a budget; fields as of `Reservation`."""

    run: str
    place: str
    use: Use
    figures: float | None = None
    materials: Sequence[str] = ()
    users: str = ""


@contextmanager
def reserving(name: str, coming: Coming) -> Iterator[None]:
    """Around the beginning of a run: what comes of it exists only if its whole plan fits, and is then reserved.

    The budget is held from before the look at what is left until the reservation is on disk. A run that is refused
    leaves nothing behind; one that was cut before its reservation has taken no step, and is reserved when it goes on;
    one whose reservation stands is counted once, however often it goes on.

    **Guarantee.** No two processes count without each other, and what is reserved never exceeds the total.

    Errors: `SfumatoError` for a plan beyond what is left, one of another unit or adjacency, and for the same records
    with other users.
    """
    read_budget(name)  # a name that was misspelt makes no file
    with held(path_of(name), WHAT) as file:
        account = account_in(name, file)
        assert account is not None, "a budget is never unset"
        account = restored(account, file)
        if (before := account.of_run(coming.run)) is not None:
            if (before.use, before.figures) != (coming.use, coming.figures):
                raise SfumatoError(
                    f"the run {coming.place} has another plan in the budget {name}", "give another `directory`"
                )
            moved = before.users != coming.users and account.filter.unit == "user"
            if moved or (before.materials and not set(before.materials) & set(coming.materials)):
                raise SfumatoError(
                    f"the run {coming.place} has been reserved in the budget {name} on other records, or other users'",
                    "give the data that it began with; other data are another run",
                )
            yield
            return
        reservation = admitted(account, coming)
        yield
        file.append(reservation.to_dict())


def admitted(account: Account, coming: Coming) -> Reservation:
    """The reservation of a run, or the refusal of it."""
    own = account.filter
    cost = cost_of(account, coming.use, coming.figures)
    for one in account.reservations:
        if own.unit == "user" and set(one.materials) & set(coming.materials) and one.users != coming.users:
            raise SfumatoError(
                f"the budget {account.name} has been used on these records for users who were told apart otherwise, "
                "whose losses do not add up",
                "declare users as before, or set a budget of another name",
            )
    if not own.planned(coming.use, [one.use for one in account.reservations]):
        raise SfumatoError(
            f"the budget {account.name} is for {len(own.plans)} plans that were fixed beforehand, and this is none of "
            "those that are left",
            "give one of them, or set a budget with accounting renyi, which plans may be chosen under one after the "
            "other",
        )
    if not own.fits([*account.costs, cost]):
        raise SfumatoError(*_beyond(account, coming, cost))
    return Reservation(
        **{**vars(coming), "materials": tuple(coming.materials)},
        date=now(),
        cost=cost,
    )


def refuse_seeded(name: str | None, seed: int | None) -> None:
    """Refuse a run by a seed under a budget: a total of promises counts none that promises nothing."""
    if name is not None and seed is not None:
        raise SfumatoError(
            f"`seed` is {seed}, and a run by a seed promises nothing, so it cannot count in the budget {name}",
            "leave the seed out, or the budget",
        )


def refuse_beyond(name: str, many: Sequence[Use]) -> None:
    """Refuse several plans that do not all fit into what is left; nothing is reserved of them yet."""
    account = read_budget(name)
    costs = [cost_of(account, use, None) for use in many]
    if not account.filter.fits([*account.costs, *costs]):
        raise SfumatoError(
            f"the budget {name} has {percent(1 - account.used)} left, and {runs(len(many))} need "
            f"{percent(math.fsum(costs) / account.filter.limit)}",
            "give fewer of them, or a smaller epsilon",
        )


def cost_of(account: Account, use: Use, figures: float | None) -> float:
    """What it takes of the budget's limit, or a refusal that names the budget."""
    try:
        return account.filter.cost(use, figures)
    except SfumatoError as error:
        raise SfumatoError(error.problem.replace("the budget", f"the budget {account.name}", 1), error.remedy) from None


def _beyond(account: Account, coming: Coming, cost: float) -> tuple[str, str]:
    """What to say of a plan that does not fit: the problem, and the remedy."""
    own, costs = account.filter, math.fsum([*account.costs, cost])
    problem = (
        f"the budget {account.name} has epsilon {own.epsilon:g} at delta {own.delta!r}, of which "
        f"{runs(len(account.reservations))} took {percent(account.used)}; this one needs {percent(cost / own.limit)} "
        f"and would bring it to epsilon {rounded_up(own.epsilon_of(costs))}"
    )
    if coming.figures is not None and own.cost_of_pure(coming.figures) > account.left:
        return problem, "publish no figures (`report_epsilon`), or at a smaller epsilon"
    less = own.most_noise_left(coming.use, account.left) if isinstance(coming.use, PrivacyPlan) else None
    if less is None:
        return problem, "train on other data, or set a larger total, which the budget's history shows"
    return problem, (
        f"plan for at most epsilon {math.floor(less.epsilon() * 1000) / 1000:g} (noise multiplier "
        f"{math.ceil(less.noise_multiplier * 1e4) / 1e4:g} at the same steps)"
    )


def uncounted(source: Source) -> Iterator[str]:
    """What to tell the owner of a run without a budget on data that have one."""
    for name in names():
        if any(set(one.materials) & set(source.materials) for one in read_budget(name).reservations):
            yield f"note: runs on these data count in the budget {name}, and this one does not, as it names none"


def lost_words(account: Account) -> Iterator[str]:
    """What the owner should know of a budget whose file lacks runs."""
    if account.lost:
        yield (
            f"note: the file of the budget {account.name} lacks {', '.join(account.lost)}, which the list of uses has "
            "under it: lines were lost, or an old copy was restored; what they stood for counts all the same"
        )


def notes(account: Account, source: Source, cost: float) -> Iterator[str]:
    """What the owner should know before a run on this source is reserved: how the budget stands, and what of the same
    data does not count in it."""
    after = account.used + cost / account.filter.limit
    would = (
        f"after which {percent(after)} is used" if account.filter.fits([*account.costs, cost]) else "too much for it"
    )
    yield from lost_words(account)
    yield f"{account.words}; this plan takes {percent(cost / account.filter.limit)}, {would}"
    first = next(iter(account.reservations), None)
    if first is not None and not set(first.materials) & set(source.materials):
        yield f"note: these are other records than those that the budget {account.name} was first used for"
    counted = {one.run for one in account.reservations}
    for other in names():
        if other == account.name:
            continue
        found = read_budget(other)
        same = [one for one in found.reservations if set(one.materials) & set(source.materials)]
        counted.update(one.run for one in same)
        if same:
            yield (
                f"note: the budget {other} has {runs(len(same))} on these data too: each budget counts its own, and "
                "neither total covers both"
            )
    earlier = uses.runs(source.materials, places=source.places, users=source.assignment)
    apart = [use for run, use in earlier.items() if run not in counted and unit_of(use) == account.filter.unit]
    if apart:
        epsilon, delta = together(apart)
        is_or_are, comes = ("is", "comes") if len(apart) == 1 else ("are", "come")
        yield (
            f"note: {runs(len(apart))} of yours on these data {is_or_are} under no budget, and {comes} to epsilon "
            f"{rounded_up(epsilon)} at delta {delta!r} on top of it"
        )
