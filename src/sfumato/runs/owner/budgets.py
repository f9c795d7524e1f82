"""Budgets of the owner's: one total for each named data set.

They lie beside the owner's key, outside the run directories: a run directory that is deleted gives nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, positive
from sfumato.privacy import PrivacyFilter
from sfumato.privacy.statements.presented import rounded_up
from sfumato.randomness import keys
from sfumato.runs.owner import uses
from sfumato.runs.owner.account import Account, Reservation, Total, runs
from sfumato.runs.owner.called import checked
from sfumato.runs.owner.chained import Chained, held, read

FOLDER = "budgets"
WHAT = "the budget"


def names() -> list[str]:
    """Of all budgets that there are."""
    folder = keys.home() / FOLDER
    return sorted(path.stem for path in folder.glob("*.jsonl") if path.stat().st_size) if folder.is_dir() else []


def read_budget(name: str) -> Account:
    """A budget as it stands: a run that its file lacks, and the list of uses has under it, counts all the same.

    Errors: `SfumatoError` where there is none of this name, and where a line of it was changed or is gone from between
    others.
    """
    path = path_of(name)
    account = account_in(name, read(path, WHAT))
    if account is not None:
        lost = lost_from(account)
        return replace(account, reservations=(*account.reservations, *lost), lost=tuple(one.place for one in lost))
    known = f"; there {'is' if len(names()) == 1 else 'are'} {', '.join(names())}" if names() else ""
    raise SfumatoError(
        f"there is no budget {name}{known}", f"set it first (sfumato budget {name} --epsilon 8 --delta 1e-5)"
    )


def set_budget(name: str, *, epsilon: float, delta: float | None = None, **fixed: Any) -> Account:
    """Set a budget for the owner's data set of this name, or another total for one that there is.

    Args:
        name: of the data set: letters, digits, "_", "-" and ".". The name is what counts: which records it stands for
            is the owner's to say.
        epsilon: the total.
        delta: at which it is given; fixed from the first time on.
        fixed: `unit`, `adjacency`, `accounting` and `plans` of `PrivacyFilter`, fixed from the first time on.

    **Guarantee.** All runs under the budget together keep to the total: see `PrivacyFilter`. With another total later
    on the promise is about that one, at the same order. A total that is raised in view of results is a choice that no
    filter covers: the history shows each total with its date.

    Errors: `SfumatoError` for a total below what is spent, and for anything fixed that is given otherwise.
    """
    positive("epsilon", epsilon, remedy="give the budget of all runs together, a number such as 8")
    fixed = {key: value for key, value in fixed.items() if value not in (None, (), [])}
    with held(path_of(name), WHAT) as file:
        before = account_in(name, file)
        if before is None:
            if delta is None:
                raise SfumatoError(f"delta is missing of the budget {name}", "give one well below 1/N, such as 1e-5")
            known = {"plans": tuple(fixed.pop("plans", ()))}
            own = PrivacyFilter.of(epsilon=epsilon, delta=delta, **known, **fixed)
            file.append({"date": now(), "budget": own.to_dict()})
        else:
            before = restored(before, file)
            _refuse_other(before, {"delta": delta, **fixed})
            changed = replace(before.filter, epsilon=epsilon)
            changed.check_planned()
            if not changed.fits(before.costs):
                raise SfumatoError(
                    f"epsilon {epsilon:g} is a budget below what was spent: {runs(len(before.reservations))} under "
                    f"{name} come to {rounded_up(before.epsilon)}",
                    f"give at least {rounded_up(before.epsilon)}: what was released cannot be taken back",
                )
            if epsilon != before.filter.epsilon:
                file.append({"date": now(), "epsilon": epsilon})
        after = account_in(name, file)
        assert after is not None
        return after


def _refuse_other(account: Account, given: Mapping[str, Any]) -> None:
    """Refuse what was fixed when the budget was set, and is given otherwise."""
    for name, value in given.items():
        own = getattr(account.filter, name)
        if value is not None and (tuple(value) if name == "plans" else value) != own:
            shown = "other ones" if name == "plans" else repr(value)
            raise SfumatoError(
                f"{name} of the budget {account.name} was fixed when it was set"
                + ("" if name == "plans" else f", to {own!r}")
                + f"; got {shown}",
                "leave it out, or set a budget of another name",
            )


def account_in(name: str, file: Chained) -> Account | None:
    """The budget by its lines; None where it has none."""
    account: Account | None = None
    for number, entry in enumerate(file.entries, start=1):
        try:
            if account is None:
                own = PrivacyFilter.from_dict(entry["budget"])
                account = Account(name=name, filter=own, totals=(Total(date=entry["date"], epsilon=own.epsilon),))
            elif "epsilon" in entry:
                total = Total(**entry)
                own = replace(account.filter, epsilon=total.epsilon)
                account = replace(account, filter=own, totals=(*account.totals, total))
            else:
                reservation = Reservation.from_dict(entry)
                account = replace(account, reservations=(*account.reservations, reservation))
        except (KeyError, TypeError, AttributeError) as error:
            raise SfumatoError(
                f"entry {number} of the budget {name} cannot be read ({error!r})",
                "go back to the version of sfumato that wrote it",
            ) from None
    return account


def lost_from(account: Account) -> list[Reservation]:
    """What its file lacks of the runs that the list of uses has under this budget: lines that were cut from its end, or
    were written after the copy that it was restored from.

    **Guarantee.** As long as one of the two lists has a run's line, the run counts. A run that was cut between both
    lines has taken no step and counts too, which makes the sum no smaller.
    """
    known = {one.run for one in account.reservations}
    return [
        Reservation(
            date=entry[uses.DATE],
            run=run,
            place=entry.get(uses.NAME, ""),
            use=use,
            figures=(figures := entry.get(uses.FIGURES)),
            cost=account.filter.cost(use, figures),
            materials=tuple(entry[key] for key in ("data", "pixels") if key in entry),
            users=entry.get(uses.USERS, ""),
        )
        for run, (entry, use) in uses.under(account.name).items()
        if run not in known
    ]


def restored(account: Account, file: Chained) -> Account:
    """The same with the lines that its file had lost, which are written again."""
    for one in lost_from(account):
        file.append(one.to_dict())
    found = account_in(account.name, file)
    assert found is not None
    return found


def path_of(name: str) -> Path:
    """The file of a budget."""
    return keys.home() / FOLDER / f"{checked('budget', name)}.jsonl"


def now() -> str:
    """The date of a line."""
    return datetime.now(UTC).isoformat(timespec="seconds")
