"""The beginning of a loop of one's own: directory, ledger's first line, the owner's list, its budget."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sfumato.privacy import Ledger, PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.commitment import commitments
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import overlap, reserving, sentences, uses
from sfumato.runs.owner.called import BY_NUMBERS
from sfumato.training.own import pinned
from sfumato.training.own.records import OwnRecords


def begin(
    run: RunDirectory,
    known: Mapping[str, Any],
    plan: PrivacyPlan,
    key: RunKey,
    records: OwnRecords,
    checkpoint: Callable[[str, str], Checkpoint],
) -> str:
    """Lay down a new run, on the owner's list and within its budget; what the owner should know of earlier runs.

    Args:
        known: what settings.json says, but for the run's identity.
        checkpoint: that before the first step, by the run's identity and the hash of the ledger's first line.
    """
    identity, told, seeded = secrets.token_hex(32), list[str](), known["circumstances"]["seeded"]
    record = {"run": identity, **known}
    with reserved(run, record, plan, records), run.creating() as fresh:
        fresh.write_json(names.SETTINGS, record, private=True)
        key.save(fresh / names.RUN_KEY)
        fresh.write_json(names.PLAN, plan.to_dict())
        bound = {"key_check": key.check_value(identity), **commitments(record)}
        with Ledger(fresh / names.LEDGER) as ledger:
            opening = ledger.append("begin", pinned.opening(known, plan, identity) | bound)
            ledger.sync()
        checkpoint(identity, opening.hash).save(fresh / names.CHECKPOINT)
        if not known["circumstances"]["data_public"]:
            if earlier := uses.plans(records.materials, places=records.places):
                before = uses.seeded(records.materials, places=records.places)
                told.append(sentences.summary(earlier, plan, before + seeded))
            if not records.places:
                told.append(f"these records are {BY_NUMBERS}")
            known_by = {"places": records.places, "name": run.called, "budget": record.get("budget", {}).get("name")}
            told += overlap.notes_of_codes(records.materials, records.places, records.both, budget=known_by["budget"])
            overlap.remember_codes(records.materials, records.both)
            uses.record(records.materials, identity, plan, **known_by, seeded=seeded)
    return f"note: {'; '.join(one.removeprefix('note: ') for one in told)}" if told else ""


def reserved(
    run: RunDirectory, record: Mapping[str, Any], plan: PrivacyPlan, records: OwnRecords
) -> AbstractContextManager[None]:
    """Around the beginning of a run, and before it goes on: its whole plan is reserved in its budget, where it has one
    (`reserving.reserving`), or it does not begin."""
    if "budget" not in record:
        return nullcontext()
    coming = reserving.Coming(run=record["run"], place=run.called, use=plan, materials=records.materials)
    return reserving.reserving(record["budget"]["name"], coming)
