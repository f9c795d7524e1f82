"""The audit of a run's step in words and figures, for its report and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sfumato.report import Audit
from sfumato.runs import audit_outcomes
from sfumato.runs.audit_outcomes import AuditOutcome
from sfumato.runs.directory import RunDirectory


def audit_of(run: RunDirectory) -> Audit | None:
    """The audit of a run, for its report."""
    found = audit_outcomes.read(run)
    if found is None:
        return None
    observed = found.details["histograms"]
    return Audit(
        lines=_describe(found),
        rows=[
            (one.assumption or "nothing", one.epsilon, one.at_most or math.inf, one.smallest_fault, one.confidence)
            for one in found.bounds
        ],
        refuted=found.exceeds,
        faults=[] if found.noise is None else found.noise.faults,
        edges=observed["edges"],
        within=observed["in"],
        without=observed["out"],
    )


def _describe(found: AuditOutcome) -> Sequence[str]:
    """Sentences about how an audit was made."""
    details = found.details
    merged, steps = details["merged_steps"], details["steps"]
    whole = f"all {steps:,} steps of the run" if merged == steps else f"{merged:,} of its {steps:,} steps"
    noise = f"each time with the total noise of {whole}"
    if not found.bounds:
        noise = (
            "each time as the first step of its own run: noise is correlated between steps, and single steps prove no "
            "epsilon"
        )
    return [
        f"The software's own step was taken {details['observations']:,} times with a canary and as often without it, "
        f"on synthetic inputs, {noise}. None of the run's data were read.",
        *([] if details["reach"] == 1 else [f"The canary's gradient has {details['reach']:.0%} of the clipping norm."]),
        *_chance_note(found),
        *([] if found.noise is None else found.noise.sentences),
    ]


def _chance_note(found: AuditOutcome) -> list[str]:
    """A sentence about a bound above the nominal epsilon that may be due to chance."""
    if not found.doubtful:
        return []
    share = next(1 - bound.confidence for bound in found.bounds if bound.refutes(found.nominal))
    return [
        f"A bound exceeds the guarantee, which happens in up to {share:.0%} of audits of correct code; at confidence "
        "99.9999%, which decides on alarms, none does."
    ]


def terminal_lines(found: AuditOutcome) -> list[str]:
    """The sentences, bounds and alarms of an audit, for the terminal."""
    alarms = [
        *(
            ["ALARM: this audit proves more than the guaranteed epsilon. Do not rely on the guarantee."]
            if found.exceeds
            else []
        ),
        *(
            ["ALARM: the noise is not the plan's. Do not rely on the guarantee."]
            if found.noise and found.noise.has_fault
            else []
        ),
    ]
    return [*_describe(found), *(f"  {bound.sentence}" for bound in found.bounds), *alarms]
