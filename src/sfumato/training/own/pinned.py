"""What a loop of one's own must be to go on: its record, and the ledger's first line that binds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.experiment.settings import Performance
from sfumato.models.weights.about import OWN_LOOP
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import commitment, pins
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import MOVING
from sfumato.runs.directory import RunDirectory
from sfumato.training.own.records import OwnRecords
from sfumato.training.preparation.resume import as_compared, compare_draws

KIND = OWN_LOOP
"""What the record of such a run calls its kind."""
_AGAIN = "call it as the run began, or give another `directory`"
_BOUND = ("data", "optimizer", "model", "later", "circumstances")
"""What of the record the ledger's first line binds: all that the sums and the releases depend on."""


def stated(records: OwnRecords, *, declared: bool, public: bool, seeded: bool) -> Circumstances:
    """What the statement of such a run must say, but for its noise.

    Args:
        declared: whether the number of examples was.
    """
    facts = records.facts
    read = tuple(fact for fact in facts.read if not (declared and fact == "examples"))
    more = {"data_public": public or facts.data_public, "seeded": seeded, "origins": ("own model",), "own_loop": True}
    return replace(facts, read=read, **more)


def record_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: OwnRecords,
    circumstances: Circumstances,
    performance: Performance,
    with_state: Sequence[Any],
) -> dict[str, Any]:
    """What settings.json holds of a loop of one's own, but for its identity."""
    shapes = {name: [*value.shape] if value.requires_grad else "frozen" for name, value in model.named_parameters()}
    constants = [
        {name: repr(value) for name, value in group.items() if name not in MOVING} for group in optimizer.param_groups
    ]
    return {
        "kind": KIND,
        "data": {"fingerprint": records.fingerprint, "material": records.materials[0], "records": records.count},
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
    """The key of a new run; with a seed one that is for these data, this plan, model and optimizer alone.

    **Guarantee.** Runs that differ in anything that their sums depend on have keys of their own: see `begun`.
    """
    if seed is None:
        return RunKey.fresh()
    decided = {name: record[name] for name in _BOUND} | {"precision": record["performance"]["precision"]}
    weights = pins.weights_digest(model.state_dict())
    return RunKey.from_seed(seed, json.dumps([plan.fingerprint, weights, decided], sort_keys=True))


def opening(record: Mapping[str, Any], plan: PrivacyPlan, identity: str) -> dict[str, Any]:
    """The ledger's first entry, but for the key's check value: all that the run's sums depend on."""
    decided = {name: record[name] for name in _BOUND}
    return commitment.opening(plan, identity, data=record["data"]["fingerprint"], decided=decided)


def refuse_other(run: RunDirectory, record: Mapping[str, Any], plan: PrivacyPlan) -> None:
    """Refuse to go on with a run as anything but what it was, naming the difference."""
    recorded, where = run.read_json(names.SETTINGS), str(run.path)
    if recorded.get("kind") != KIND:
        raise SfumatoError(
            f"{where} holds a run that was no loop of one's own", "go on with it as it began, or give another directory"
        )
    pins.compare("plan", run.read_json(names.PLAN), plan.to_dict(), remedy=_AGAIN, where=where)
    pins.compare("budget", recorded.get("budget", {}), record.get("budget", {}), remedy=_AGAIN, where=where)
    for part in _BOUND:
        before, now = (one[part] if isinstance(one[part], Mapping) else {"is": one[part]} for one in (recorded, record))
        pins.compare(part, before, now, remedy=_AGAIN, where=where)
    before, now = (as_compared(one["performance"]) for one in (recorded, record))
    pins.compare("performance", before, now, remedy=_AGAIN, where=where)
    compare_draws(recorded, record, where=where)
