"""A run's audits in words and figures, for its report and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sfumato.report import Audit, Histogram
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.audit_outcomes import AuditOutcome
from sfumato.runs.directory import RunDirectory

_BINS = 20
_LOSS, _COSINE = "minus the loss of the released model", "cosine of a direction"


def audits_of(run: RunDirectory) -> list[Audit]:
    """The audits of a run, for its report."""
    return [to_section(name, found) for name, found in audit_outcomes.read_all(run)]


def to_section(name: str, found: AuditOutcome) -> Audit:
    """One audit for the report, from its file's name."""
    within = name == names.AUDIT
    return Audit(
        heading="Canaries within the run" if within else "Its own step, in a white box",
        lines=describe(name, found),
        rows=[
            (one.assumption or "nothing", one.epsilon, one.at_most or math.inf, one.smallest_fault, one.confidence)
            for one in found.bounds
        ],
        refuted=found.exceeds,
        faults=[] if found.noise is None else found.noise.faults,
        histogram=_score_histogram(found) if within else _observation_histogram(found),
    )


def describe(name: str, found: AuditOutcome) -> Sequence[str]:
    """Sentences about how an audit was made."""
    details = found.details
    if name == names.AUDIT:
        seen = found.bounds[0].observations
        cosines = "dimensions" in details
        where = "into the sums of the training" if cosines else "among the training examples"
        by = "its cosine with the change of the weights" if cosines else "the released model's loss"
        return [
            f"A fair coin put each of {seen['canaries']} canaries {where}, or left it out. By {by} "
            f"{seen['guessed_in']} were guessed in and {seen['guessed_out']} out, as fixed beforehand; "
            f"{seen['right']} of these guesses were right.",
            *_cosine_note(found),
            *_chance_note(found),
        ]
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
    share = next(1 - bound.confidence for bound in found.bounds if bound.refutes(found.nominal) and bound.confidence)
    return [
        f"A bound exceeds the guarantee, which happens in up to {share:.0%} of audits of correct code; at confidence "
        "99.9999%, which decides on alarms, none does."
    ]


def _cosine_note(found: AuditOutcome) -> list[str]:
    """A sentence about the mean cosines of canary directions, in units of their standard deviation under chance."""
    if "dimensions" not in found.details:
        return []
    included = np.array(found.details["included"], bool)
    seen = np.array(found.details["scores"]) * math.sqrt(found.details["dimensions"])
    within, without = (f"{seen[side].mean():.2f}" if side.any() else "none" for side in (included, ~included))
    return [
        f"In units of the standard deviation under chance, their mean is {within} for included canaries and "
        f"{without} for the others."
    ]


def terminal_lines(name: str, found: AuditOutcome) -> list[str]:
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
    return [*describe(name, found), *(f"  {bound.sentence}" for bound in found.bounds), *alarms]


def _score_histogram(found: AuditOutcome) -> Histogram:
    scores, included = np.array(found.details["scores"]), np.array(found.details["included"], bool)
    finite = np.isfinite(scores)
    edges = np.histogram_bin_edges(scores[finite], _BINS)
    axis = f"{_COSINE} with the change of the weights" if "dimensions" in found.details else _LOSS
    return _histogram("canaries", axis, edges, scores[finite], included[finite])


def _histogram(name: str, axis: str, edges: np.ndarray, seen: np.ndarray, within: np.ndarray) -> Histogram:
    counts = [np.histogram(seen[side], edges)[0].tolist() for side in (within, ~within)]
    return Histogram(name=name, axis=axis, edges=edges.tolist(), within=counts[0], without=counts[1])


def _observation_histogram(found: AuditOutcome) -> Histogram:
    counted = found.details["histograms"]
    axis = "observation in the canary's direction, over the noise"
    return Histogram(name="step", axis=axis, edges=counted["edges"], within=counted["in"], without=counted["out"])
