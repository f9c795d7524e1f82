"""An audit within the run: canaries among its examples, and what the released model gives away of which were in."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source, refuse_absent
from sfumato.evaluation import accuracy
from sfumato.models.losses import LOSSES
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import audited
from sfumato.runs import directory as names
from sfumato.runs.directory import file_hash
from sfumato.training.parts.canaries import Canaries, made_up, of_public
from sfumato.training.parts.directions import SOURCE, refuse_moving
from sfumato.training.parts.part import Asked, Early, Ending, Part, Trained

FEWEST = 10
MOST = 1e30
"""The loss of a canary on which a model that has diverged has none."""


@dataclass(frozen=True, kw_only=True)
class Audit(Part):
    """Canaries within a run.

    Args:
        canaries: which may be in.
        plan: of the run.
    """

    options = ("audit", "audit_source")
    canaries: Canaries
    plan: PrivacyPlan

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse a number of canaries that shows nothing, and a source of none."""
        count, source = early.options.get("audit"), early.options.get("audit_source")
        if source is not None:
            if count is None:
                raise SfumatoError(f"audit_source is {source}, and no canaries are wanted", "give `audit`, such as 100")
            if source != SOURCE:
                refuse_absent(source)
        check_count(count)

    @classmethod
    def of(cls, asked: Asked) -> Audit | None:
        """With so many canaries as were asked for."""
        count, spec = asked.options.get("audit"), asked.options.get("audit_source")
        if count is None or spec == SOURCE:
            return None
        refuse_unsound(count, asked)
        canaries = made_up(count, asked.source) if spec is None else of_public(spec, count, asked.source)
        return cls(canaries=canaries, plan=asked.plan)

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """As many as the run began with, from where they were."""
        known = record.get("audit", {})
        return {name: known[key] for name, key in (("audit", "canaries"), ("audit_source", "source")) if key in known}

    def in_steps(self, source: Source, key: RunKey) -> Source:
        """With the canaries that are in behind the training records: the steps alone see them."""
        return self.canaries.behind(source, key)

    @property
    def keyed(self) -> dict[str, dict[str, Any]]:
        """How many canaries there are, and which: with others the run's sums are others, and so is its key."""
        spec = {} if self.canaries.spec is None else {"source": self.canaries.spec}
        return {"audit": {"canaries": len(self.canaries), "hash": self.canaries.digest, **spec}}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With their number."""
        return replace(facts, audit=len(self.canaries))

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """Of what they cost."""
        count, units = len(self.canaries), plan.population
        yield (
            f"audit: about {count // 2} of {count} canaries, records of nobody's with labels of chance, train beside "
            f"the {units:,} {plan.unit.drawn} of the plan ({count / 2 / units:.1%} more, noise to the model); "
            "sampling probability, divisor and epsilon stay the plan's, and no figure is measured on them"
        )

    def end(self, ending: Ending) -> None:
        """Score the canaries by the released model, guess which were in, and write down what that shows."""
        if ending.key is None:  # the coins are lost with it
            return
        scores = scores_of(self.canaries, ending.trained, ending.decided.settings.objective.loss)
        found = audited.of_canaries(self.plan, scores.tolist(), self.canaries.coins(ending.key).tolist())
        audited.save(ending.run, found)
        ending.bound |= {audited.ENTRY: file_hash(ending.run / names.AUDIT)}


def check_count(count: int | None) -> None:
    """Refuse a number of canaries that shows nothing."""
    remedy = "give a number such as 100"
    if count is not None and positive_integer("audit", count, remedy=remedy) < FEWEST:
        raise SfumatoError(f"audit must be at least {FEWEST} canaries, got {count}", remedy)


def refuse_unsound(count: int, asked: Asked) -> None:
    """Refuse canaries where no bound here would hold, or where they would be somebody's business.

    Errors: `SfumatoError` for candidates of a private selection, features, participations in which further records move
    the others, and noise that is not independent between steps.
    """
    given, plan = f"audit is {count}", asked.plan
    refuse_moving(given, plan, candidate=asked.candidate)
    if asked.source.cache is not None:
        raise SfumatoError(
            f"{given}, and the source holds features, of which canaries cannot be made",
            f"train on the images, or take audit_source {SOURCE}",
        )
    if plan.unit.drawn not in ("examples", "users"):
        raise SfumatoError(
            f"{given}, and the plan draws {plan.unit.drawn}", "audit a plan that draws examples or users"
        )


def scores_of(canaries: Canaries, trained: Trained, loss: str) -> np.ndarray:
    """A score (M,) of each canary, higher where it looks as if it had been in: minus the released model's loss.

    **Guarantee.** A function of the released weights and of public constants alone: neither the coins nor anything that
    a step has seen plays a part.
    """
    own: nn.Module = copy.deepcopy(trained.module)
    own.load_state_dict(trained.weights)
    records, device = canaries.records, torch.device(trained.device)
    blocks = (
        trained.transform(torch.from_numpy(records.take(slice(start, start + accuracy.BATCH))).to(device))
        for start in range(0, len(records), accuracy.BATCH)
    )
    outputs, labels = accuracy.logits_alone(own, blocks).double(), torch.from_numpy(records.labels)
    losses = torch.stack([LOSSES[loss](one[None], label[None]) for one, label in zip(outputs, labels, strict=True)])
    return -losses.nan_to_num(nan=MOST).numpy()
