"""A temperature that is fitted on public records, by which predictions divide the model's logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sfumato import data
from sfumato._checks import SfumatoError
from sfumato.data import Preparation, Source
from sfumato.evaluation.temperature import PublicCalibration, public_calibration
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.runs.owner import sentences
from sfumato.training.parts.part import Asked, Early, Ending, Part


@dataclass(frozen=True, kw_only=True)
class Calibration(Part):
    """Public records that the temperature is fitted on.

    Args:
        given: how they were asked for.
        source: the private source, whose records they are like.
        records: they; None until the model is there.
    """

    options = ("calibrate_on",)
    given: str | Source
    source: Source
    records: PublicCalibration | None = None

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse a source that is not there."""
        if isinstance(given := early.options.get("calibrate_on"), str):
            data.refuse_absent(given)

    @classmethod
    def of(cls, asked: Asked) -> Calibration | None:
        """On the source that was asked for."""
        given = asked.options.get("calibrate_on")
        return None if given is None else cls(given=given, source=asked.source)

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """How the records were spelt."""
        if "calibration" not in record:
            return {}
        if (spec := record["calibration"]["source"]) is None:
            raise SfumatoError(
                f"the run in {path} calibrates on an object that only its own code can open",
                "run that code again; it resumes the run",
            )
        return {"calibrate_on": spec}

    def with_model(self, module: nn.Module, transform: Preparation) -> Calibration:
        """With the records, read as the model's own are."""
        return replace(self, records=public_calibration(self.given, self.source, transform))

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """Which records they are."""
        return {} if self.records is None else {"calibration": self.records.record()}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the fact that there is a temperature."""
        return replace(facts, calibrated_on_public=True)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """Of private records among those that are called public."""
        if self.records is not None and (note := sentences.called_public(self.records.source)) is not None:
            yield note

    def end(self, ending: Ending) -> None:
        """Fit the temperature of the model that is released."""
        if self.records is not None:
            trained, loss = ending.trained, ending.decided.settings.objective.loss
            found = self.records.temperature(
                trained.module, trained.weights, trained.transform, loss=loss, device=trained.device
            )
            ending.reading = replace(ending.reading, temperature=found)
