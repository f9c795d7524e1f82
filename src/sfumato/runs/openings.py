"""The openings of an unseeded run: each draws the steps that are not yet paid under a salt of its own.

The owner's list knows the latest opening. A directory whose ledger lacks it is a copy, or comes from a backup, and the
steps of the other copy are in no guarantee until they are counted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy import Ledger, PrivacyPlan
from sfumato.privacy.ledger import COPY, OPENING
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets, store
from sfumato.runs.owner.lines import DataUse, RunOpened, now
from sfumato.runs.owner.store import History


def open_run(run: RunDirectory, ledger: Ledger, *, copy: bool = False) -> None:
    """Open a run for the steps that are not yet paid, before any of them is taken.

    Args:
        copy: go on although another copy of the run went on, and count the steps that it may have taken as spent.

    **Guarantee.** Copies of an unfinished run, including restored backups, continue under different salts: they share
    no noise and no participants beyond the steps that were paid before they diverged (`RunKey.for_step`). The salt is
    written into the directory, then on the owner's list, then into the ledger, each safe on disk before the next. So a
    list whose last opening the ledger lacks, with a salt that this directory holds, shows a kill in between. A fresh
    salt takes its place, since a copy that was made in between holds that one too. If the list has any other opening
    that the ledger lacks, another copy went on: the run is refused, or all steps that other copies may have taken are
    in its ledger, and so in its statement (`Statement.spent`), and those that this copy may take are one more use on
    the owner's list. A list that does not know the run, as on another machine, and a copy that left within one opening,
    show nothing.

    Errors: `SfumatoError` for a copy, naming both openings; with `copy`, if the steps cannot be counted or exceed the
    budget.
    """
    record = run.read_json(names.SETTINGS)
    paid = ledger.paid
    salt, others = secrets.token_hex(16), list[RunOpened]()
    if not record["circumstances"]["data_public"]:
        known = {entry.body["salt"] for entry in ledger.entries if entry.kind in (OPENING, COPY)}
        with store.locked() as held:
            listed = [one for one in held.of(RunOpened) if one.run == record["run"]]
            last = max((place for place, one in enumerate(listed, 1) if one.salt in known), default=0)
            others = listed[last:]
            began = run.read_json(names.OPENED)["salts"] if (run / names.OPENED).exists() else []
            own = [one for one in began if one not in known]
            if own and own[-1] not in {one.salt for one in listed}:
                salt = own.pop()
            killed = bool(others) and others[-1].salt in own
            others = [one for one in others if one.salt not in own]
            if others and not (killed or copy):  # what a killed opening counted is on the list
                raise _is_copy(run, listed[:last], others[-1])
            line = RunOpened(run=record["run"], salt=salt, step=paid, copy=bool(others) and not killed)
            uses = _counted(held, run, line) if line.copy else []
            run.write_json(names.OPENED, {"salts": [*own, salt]}, private=True)
            for one in (*uses, line):
                held.append(one)
    for body in _of_copies(others, paid, ledger):
        ledger.append(COPY, body)
        ledger.notify(
            f"note: a copy of this run may have taken {body['last'] + 1 - body['first']} steps with other noise. They "
            "are counted as spent: in the ledger, in the statement and on your list"
        )
    ledger.append(OPENING, {"step": paid, "salt": salt})
    ledger.sync()


def _of_copies(others: Sequence[RunOpened], paid: int, ledger: Ledger) -> list[dict[str, Any]]:
    """For each other copy the salt of its last opening, and the steps that it may have taken, also before it."""
    found, last = list[dict[str, Any]](), ledger.entries[0].body["plan"]["steps"] - 1
    for one in others:
        if one.copy or not found:
            found.append({"first": min(one.step, paid), "last": last})
        found[-1]["salt"] = one.salt
    return found


def _counted(held: History, run: RunDirectory, line: RunOpened) -> list[DataUse]:
    """The use that the steps of this copy are: one more run of the steps that are left, on the same data.

    Errors: `SfumatoError` if no theorem counts them, or if they do not fit into the budget.
    """
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    plan.with_copies(plan.steps)
    uses = [one for one in held.of(DataUse) if one.run in (line.run, line.salt)]
    if line.step == plan.steps or uses[-1].run == line.salt:
        return []
    use = replace(uses[-1], run=line.salt, use=replace(plan, steps=plan.steps - line.step), date=now(), cost=0.0)
    return [use if use.budget is None else budgets.reservation(held, use)]


def _is_copy(run: RunDirectory, known: Sequence[RunOpened], other: RunOpened) -> SfumatoError:
    """The refusal of a copy."""
    own = f"its opening of {known[-1].date}, at step {known[-1].step}" if known else "no opening"
    return SfumatoError(
        f"the run in {run.path} knows {own}, but your list has a later one of {other.date}, at step {other.step}: "
        "another copy of it went on, or this one comes from a backup",
        "continue the other copy; or give `copy=True`, which counts the steps that it may have taken as spent",
    )
