"""The end of a loop of one's own: statement, model file, the ledger's last line, and no key."""

from __future__ import annotations

import json
from typing import Any

from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError, parse_json
from sfumato._files import write
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, Statement
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory
from sfumato.training.conclusion import run_page
from sfumato.training.conclusion.finish import close
from sfumato.training.own.pinned import KIND
from sfumato.training.own.records import OwnRecords


def conclude(run: RunDirectory, ledger: Ledger, model: nn.Module, statement: Statement, steps: int) -> None:
    """Write what the run leaves behind. Killed at any point and called again, it writes the same bytes again."""
    run.write_json(names.STATEMENT, statement.to_dict())
    about = {"format": models.FORMAT, "kind": KIND, "statement": statement.to_dict()}
    write(run / names.MODEL, to_bytes(dict(model.state_dict()), {METADATA: json.dumps(about, sort_keys=True)}))
    write(run / names.REPORT, run_page.report(run).encode(), private=True)
    close(ledger, run, steps, {})
    write(run / names.DONE, b"")
    run.clean()


def finished(run: RunDirectory, model: nn.Module, plan: PrivacyPlan, records: OwnRecords) -> Statement:
    """The statement of a run that was concluded, whose weights go into the model: the same call gives the same again.

    Errors: `SfumatoError` for a run of another plan, whose cost would add up to this one's.
    """
    written: dict[str, Any] = run.read_json(names.STATEMENT)
    if written.get("plan") != plan.to_dict():
        raise SfumatoError(
            f"the run in {run.path} is finished, and had another plan",
            "give another `directory` to train anew; privacy costs of both add up",
        )
    recorded = run.read_json(names.SETTINGS)
    if (recorded.get("data") or {}).get("fingerprint") not in (None, records.fingerprint):
        raise SfumatoError(
            f"the run in {run.path} is finished, and had other data", "give its data, or another `directory`"
        )
    weights, metadata = read_safetensors(run / names.MODEL)
    if parse_json(metadata[METADATA]).get("kind") != KIND:
        raise SfumatoError(f"the run in {run.path} was no loop of one's own", "give another `directory`")
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if shapes != {name: value.shape for name, value in weights.items()}:
        raise SfumatoError(
            f"the run in {run.path} is finished, and had a model of other names or shapes",
            "give its model, or another `directory`",
        )
    model.load_state_dict(weights)
    return Statement(plan=plan, circumstances=Circumstances.from_dict(written["circumstances"]))
