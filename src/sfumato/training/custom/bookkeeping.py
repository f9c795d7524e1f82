"""Records of a custom loop: its settings, the ledger's first line that binds them, and its files."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError, parse_json
from sfumato._files import write
from sfumato.experiment.settings import Performance
from sfumato.models.description import OWN_LOOP
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, Statement
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs import pins, releases
from sfumato.runs.checkpoint import METADATA, MOVING, Checkpoint, read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import sentences, uses
from sfumato.runs.owner.lines import BY_NUMBERS, DataIdentity
from sfumato.runs.releases import commitments
from sfumato.training.conclusion import run_report
from sfumato.training.conclusion.finish import close
from sfumato.training.custom.records import LoopRecords
from sfumato.training.preparation.resume import as_compared, compare_draws

KIND = OWN_LOOP
"""The kind of such a run in its record."""
_AGAIN = "give the original arguments of the run, or another `directory`"
_RECORDS = "give the original records, on a machine with the owner's key that began the run, or another `directory`"
_BOUND = ("data", "optimizer", "model", "later", "circumstances")
"""The entries of the record that the ledger's first line binds: all that the sums and the releases depend on."""


def circumstances_of(records: LoopRecords, *, counted: bool, public: bool, seeded: bool, **more: Any) -> Circumstances:
    """The circumstances of the run, without those of its noise.

    Args:
        counted: whether the number of examples was read from the data, not declared.
        more: further circumstances.
    """
    facts = records.facts
    read = tuple(fact for fact in facts.read if counted or fact != "examples")
    more |= {"data_public": public or facts.data_public, "seeded": seeded, "origins": ("own model",), "own_loop": True}
    return replace(facts, read=read, **more)


def record_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: LoopRecords,
    circumstances: Circumstances,
    performance: Performance,
    with_state: Sequence[Any],
) -> dict[str, Any]:
    """The content of settings.json, without the run's identity."""
    shapes = {name: [*value.shape] if value.requires_grad else "frozen" for name, value in model.named_parameters()}
    constants = [
        {name: repr(value) for name, value in group.items() if name not in MOVING} for group in optimizer.param_groups
    ]
    return {
        "kind": KIND,
        "data": {"fingerprint": records.fingerprint, "material": records.data_digests[0], "records": records.count},
        "request": {},
        "places": list(records.places),
        "model": {"name": type(model).__qualname__, "parameters": shapes},
        "optimizer": {"name": type(optimizer).__qualname__, "groups": constants},
        "later": [type(one).__qualname__ for one in with_state],
        "circumstances": circumstances.to_dict(),
        "performance": performance.to_dict(),
        "environment": pins.environment(),
    }


def key_of(seed: int | None, record: Mapping[str, Any], plan: PrivacyPlan, model: nn.Module) -> RunKey:
    """The key of a new run; with a seed, a key for these data, this plan, model and optimizer only.

    **Guarantee.** Runs that differ in anything that their sums depend on have different keys: see `common_setup`.
    """
    if seed is None:
        return RunKey.fresh()
    decided = {name: record[name] for name in _BOUND} | {"precision": record["performance"]["precision"]}
    weights = pins.weights_digest(model.state_dict())
    return RunKey.from_seed(seed, json.dumps([plan.fingerprint, weights, decided], sort_keys=True))


def opening_entry(record: Mapping[str, Any], plan: PrivacyPlan, identity: str) -> dict[str, Any]:
    """The ledger's first entry, without the key's check value: all that the run's sums depend on."""
    decided = {name: record[name] for name in _BOUND}
    return releases.first_entry(plan, identity, data=record["data"]["fingerprint"], decided=decided)


def refuse_other(run: RunDirectory, record: Mapping[str, Any], plan: PrivacyPlan) -> None:
    """Refuse to resume a run that differs from its record, naming the difference."""
    recorded, where = run.read_json(names.SETTINGS), str(run.path)
    if recorded.get("kind") != KIND:
        raise SfumatoError(
            f"{where} holds a run that was not made with private_steps",
            "resume it in the same way as it was started, or give another directory",
        )
    pins.require_same("plan", run.read_json(names.PLAN), plan.to_dict(), remedy=_AGAIN, where=where)
    pins.require_same("budget", recorded.get("budget", {}), record.get("budget", {}), remedy=_AGAIN, where=where)
    for part in _BOUND:
        before, now = (one[part] if isinstance(one[part], Mapping) else {"is": one[part]} for one in (recorded, record))
        pins.require_same(part, before, now, remedy=_RECORDS if part == "data" else _AGAIN, where=where)
    before, now = (as_compared(one["performance"]) for one in (recorded, record))
    pins.require_same("performance", before, now, remedy=_AGAIN, where=where)
    compare_draws(recorded, record, where=where)


def create_run(
    run: RunDirectory,
    known: Mapping[str, Any],
    plan: PrivacyPlan,
    key: RunKey,
    records: LoopRecords,
    checkpoint: Callable[[str, str], Checkpoint],
) -> str:
    """Creates a new run, on the owner's list and within its budget. Returns a note about earlier runs.

    Args:
        known: the content of settings.json, without the run's identity.
        checkpoint: makes the initial checkpoint from the run's identity and the hash of the ledger's first line.
    """
    identity, told = secrets.token_hex(32), list[str]()
    record = {"run": identity, **known}
    with run.creating() as fresh:
        fresh.write_json(names.SETTINGS, record, private=True)
        key.save(fresh / names.RUN_KEY)
        fresh.write_json(names.PLAN, plan.to_dict())
        bound = {"key_check": key.check_value(identity), **commitments(record)}
        with Ledger(fresh / names.LEDGER) as ledger:
            opening = ledger.append("begin", opening_entry(known, plan, identity) | bound)
            ledger.sync()
        checkpoint(identity, opening.hash).save(fresh / names.CHECKPOINT)
        if not known["circumstances"]["data_public"]:
            if not records.places:
                told.append(f"these records are {BY_NUMBERS}")
            seeded, budget = known["circumstances"]["seeded"], record.get("budget", {}).get("name")
            told += sentences.notes_before(_data(records), plan, seeded=seeded, budget=budget)
            record_use(run, record, plan, records)
    return f"note: {'; '.join(one.removeprefix('note: ') for one in told)}" if told else ""


def record_use(run: RunDirectory, record: Mapping[str, Any], plan: PrivacyPlan, records: LoopRecords) -> None:
    """Put a run on the owner's list, and so into its budget, before its first step and before it resumes."""
    facts, budget = record["circumstances"], record.get("budget", {}).get("name")
    if not facts["data_public"]:
        known = {"run": record["run"], "name": run.short_name, "budget": budget, "seeded": facts["seeded"]}
        uses.record(_data(records), plan, **known)


def _data(records: LoopRecords) -> DataIdentity:
    return DataIdentity(records.data_digests, records.places, records.users, codes=lambda: records.identifiers)


def conclude(run: RunDirectory, ledger: Ledger, model: nn.Module, statement: Statement, steps: int) -> None:
    """Write the files of the finished run. If it is killed and called again, it writes the same bytes."""
    run.write_json(names.STATEMENT, statement.to_dict())
    carried = replace(statement, computed=None).to_dict()
    about = {"format": models.FORMAT, "kind": KIND, "statement": carried}
    write(run / names.MODEL, to_bytes(dict(model.state_dict()), {METADATA: json.dumps(about, sort_keys=True)}))
    write(run / names.REPORT, run_report.report(run).encode(), private=True)
    close(ledger, run, steps, {})
    write(run / names.DONE, b"")
    run.clean()


def load_finished(run: RunDirectory, model: nn.Module, plan: PrivacyPlan, records: LoopRecords) -> Statement:
    """Loads the weights of a finished run into the model. Returns the run's statement.

    Errors: `SfumatoError` for a run of another plan, data or model.
    """
    written: dict[str, Any] = run.read_json(names.STATEMENT)
    if written.get("plan") != plan.to_dict():
        raise SfumatoError(
            f"the run in {run.path} is finished, and had another plan",
            "give another `directory` to train again; the privacy costs of both add up",
        )
    recorded = run.read_json(names.SETTINGS)
    if (recorded.get("data") or {}).get("fingerprint") not in (None, records.fingerprint):
        raise SfumatoError(
            f"the run in {run.path} is finished, and had other data", "give its data, or another `directory`"
        )
    weights, metadata = read_safetensors(run / names.MODEL)
    if parse_json(metadata[METADATA]).get("kind") != KIND:
        raise SfumatoError(f"the run in {run.path} was not made with private_steps", "give another `directory`")
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if shapes != {name: value.shape for name, value in weights.items()}:
        raise SfumatoError(
            f"the run in {run.path} is finished, and its model had other parameter names or shapes",
            "give its model, or another `directory`",
        )
    model.load_state_dict(weights)
    return Statement.from_dict(written)
