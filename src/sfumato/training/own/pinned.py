"""What a loop of one's own must be to go on: its record, and the ledger's first line that binds it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.experiment.settings import Performance
from sfumato.gradients.checks.wrapped import of_logits
from sfumato.gradients.examples import Tree, call, each, loss_of_one, tensors
from sfumato.models.weights.about import OWN_LOOP
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import commitment, pins
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import MOVING
from sfumato.runs.directory import RunDirectory
from sfumato.training.own.records import OwnRecords
from sfumato.training.preparation.resume import PINNED

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
    examples: tuple[Tree, Tree],
    loss: Any,
    records: OwnRecords,
    circumstances: Circumstances,
    performance: Performance,
    with_state: Sequence[Any],
) -> dict[str, Any]:
    """What settings.json holds of a loop of one's own, but for its identity.

    Args:
        examples: made-up ones, on which what model and loss compute is known again.
    """
    constants = [
        {name: repr(value) for name, value in group.items() if name not in MOVING} for group in optimizer.param_groups
    ]
    return {
        "kind": KIND,
        "data": {"fingerprint": records.fingerprint, "material": records.materials[0], "records": records.count},
        "request": {},
        "places": list(records.places),
        "model": {"name": type(model).__qualname__, "function": _digest(model, loss, examples)},
        "optimizer": {"name": type(optimizer).__qualname__, "groups": constants},
        "later": [type(one).__qualname__ for one in with_state],
        "circumstances": circumstances.to_dict(),
        "performance": performance.to_dict(),
        "environment": pins.environment(),
    }


def _digest(model: nn.Module, loss: Any, examples: tuple[Tree, Tree]) -> str:
    """SHA-256 of the losses of made-up examples under made-up parameters, with the parameters' names and shapes."""
    copied = copy.deepcopy(model).cpu().eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        digest = hashlib.sha256(pins.made_up_parameters(copied))
        for row in range(len(tensors(examples)[0])):
            inputs, targets = (_row(tree, row) for tree in examples)
            value = loss_of_one(copied, of_logits(copied, loss), {}, inputs, targets, 1)
            digest.update(value.double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def made_up_losses(model: nn.Module, loss: Any, examples: tuple[Tree, Tree]) -> Callable[[], str]:
    """What gives, whenever it is asked, what the loss makes of these made-up examples' outputs as they are now: a loss
    with a state may be moved between steps, such as by its weight of a term."""
    copied = copy.deepcopy(model).cpu().eval()
    taken, rows = of_logits(model, loss), range(len(tensors(examples)[0]))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ones = [each(lambda one, row=row: one[row : row + 1].cpu(), examples) for row in rows]
        known = [(call(copied, {}, inputs), targets) for inputs, targets in ones]

    def losses() -> str:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return str([taken(outputs, targets).double().tolist() for outputs, targets in known])

    return losses


def state_digest(model: nn.Module, losses: str) -> str:
    """SHA-256 of all that a step's sum depends on and that is moved between steps: weights, modes, what is frozen, and
    what the loss does (`made_up_losses`)."""
    modes = [(name, module.training) for name, module in model.named_modules()]
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    return hashlib.sha256(f"{pins.weights_digest(model.state_dict())} {modes} {frozen} {losses}".encode()).hexdigest()


def _row(tree: Tree, row: int) -> Tree:
    return each(lambda one: one[row].cpu(), tree)


def key_of(seed: int | None, record: Mapping[str, Any], plan: PrivacyPlan, model: nn.Module) -> RunKey:
    """The key of a new run; with a seed one that is for these data, this plan, model and optimizer alone.

    **Guarantee.** Runs that differ in anything that their sums depend on have keys of their own: see `begun`.
    """
    if seed is None:
        return RunKey.fresh()
    decided = {name: record[name] for name in _BOUND}
    if (precision := record["performance"]["precision"]) != _devices.PRECISIONS[0]:
        decided["precision"] = precision
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
    for part in (*_BOUND, "performance"):
        before, now = (one[part] if isinstance(one[part], Mapping) else {"is": one[part]} for one in (recorded, record))
        pins.compare(part, before, now, remedy=_AGAIN, where=where)
    pins.compare_environment(recorded["environment"], record["environment"], remedy=PINNED["environment"], where=where)
