"""Weights of single steps that a run keeps, for averages, ensembles and intervals that are made of them afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from sfumato._checks import positive_integer
from sfumato.averaging import kept_steps, number_by_rule
from sfumato.data import Preparation
from sfumato.models.losses import exclusive
from sfumato.privacy import Circumstances
from sfumato.runs import kept
from sfumato.runs.checkpoint import read_safetensors
from sfumato.training.descent import trained_bytes
from sfumato.training.kind import OfRecords
from sfumato.training.parts.over_steps import over_steps
from sfumato.training.parts.part import Asked, Early, Ending, Part


@dataclass(frozen=True, kw_only=True)
class KeptWeights(Part):
    """After which steps weights are kept.

    Args:
        asked: how many; None for a rule's number.
        of: how many steps the run has.
        steps: after which; none until the model is there.
    """

    options = ("keep",)
    asked: int | None
    total: int
    steps: tuple[int, ...] = ()

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse what is no number."""
        check_count(early.options.get("keep"))

    @classmethod
    def of(cls, asked: Asked) -> KeptWeights:
        """As many as are asked for; a candidate of a selection keeps none."""
        return cls(asked=0 if asked.candidate else asked.options.get("keep"), total=asked.plan.steps)

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """As many as the run began with."""
        return {"keep": len(record["circumstances"]["kept"])}

    def with_model(self, module: nn.Module, transform: Preparation) -> KeptWeights:
        """With the steps, by rule from the size of what is trained."""
        count = self.asked
        if count is None:
            count = number_by_rule(trained_bytes(module))
        check_count(count)
        return replace(self, steps=kept_steps(self.total, count))

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the steps, whose weights are released too."""
        return replace(facts, kept=self.steps)

    def end(self, ending: Ending) -> None:
        """Drop the weights of steps that do not count, bind the others, and say how much accuracy varies over them."""
        present = kept.files(ending.run)
        reached = tuple(step for step in self.steps if step <= ending.trained.step and step in present)
        kept.drop_others(ending.run, reached)
        ending.circumstances = replace(ending.circumstances, kept=reached)
        if not reached:
            return
        ending.bound |= {"kept": kept.hashes(ending.run, reached)}
        scorer = ending.trained.scorer
        if isinstance(scorer, OfRecords) and exclusive(ending.decided.settings.objective.loss):
            weights = {step: read_safetensors(kept.place(ending.run, step))[0] for step in sorted(reached)}
            found = over_steps(ending.decided, ending.trained, scorer, weights, moved=ending.reading.moved)
            ending.evaluation |= {} if found is None else {"over_steps": asdict(found)}


def check_count(keep: int | None) -> None:
    """Refuse what is no number of weights."""
    if keep:
        positive_integer("keep", keep, remedy="give a number of weights such as 20, or 0 for none")
