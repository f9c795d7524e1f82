"""The outcomes of a run's audits: of canaries within the run, and of its step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.audit import Bound, NoiseAudit, one_run, one_run_gaussian, one_shot
from sfumato.privacy import PrivacyPlan
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

GUESSED = 0.2
"""The share of the canaries that are guessed in. As many are guessed out. Fixed before any score is seen."""
CONFIDENCE = 0.95
SURE = 1 - 1e-6
"""The confidence of a bound that raises an alarm. At 95%, one audit in twenty of correct code would raise one."""
LARGEST = 500.0
"""The largest estimate that is written down."""
ENTRY = "audit"
"""The key of the file's hash in the ledger's last line."""


@dataclass(frozen=True, kw_only=True)
class AuditOutcome:
    """The outcome of an audit. It may be published: it follows from released values, random coins, and synthetic
    records.

    Args:
        nominal: the promised epsilon.
        bounds: lower bounds at the promise's delta; the first has the weakest assumptions.
        sure: the same bounds at confidence `SURE`. They decide whether there is an alarm.
        noise: for the step's audit, whether the noise of each parameter is the plan's.
        plan: the fingerprint of the plan.
        details: the observations: for canaries "scores" (M,) and "included" (M,), in order.
    """

    nominal: float
    bounds: tuple[Bound, ...]
    plan: str
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sure: tuple[Bound, ...] = field(default=(), repr=False)
    noise: NoiseAudit | None = None

    @property
    def exceeds(self) -> bool:
        """Whether a bound at confidence `SURE` lies above the promise."""
        return any(bound.refutes(self.nominal) for bound in self.sure or self.bounds)

    @property
    def refuted(self) -> bool:
        """Whether a bound at confidence `SURE` lies above the promise, or the noise is not the plan's. Either means
        that something is wrong."""
        return self.exceeds or (self.noise is not None and self.noise.has_fault)

    @property
    def doubtful(self) -> bool:
        """Whether only a bound at its own confidence lies above the promise. Chance causes this with probability at
        most 1 - confidence."""
        return not self.exceeds and any(bound.refutes(self.nominal) for bound in self.bounds)

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome as plain data, without the details."""
        return {
            "nominal": self.nominal,
            "refuted": self.refuted,
            "bounds": [bound.to_dict() for bound in self.bounds],
            "sure": [bound.to_dict() for bound in self.sure],
            "plan": self.plan,
            **({} if self.noise is None else {"noise": self.noise.to_dict()}),
        }

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data for `from_dict`."""
        return {**self.summary, **self.details}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditOutcome:
        """The outcome that `to_dict` wrote."""
        known = {one.name for one in fields(Bound)}
        bounds, sure = (
            tuple(Bound(**{name: bound[name] for name in known}) for bound in data.get(which, ()))
            for which in ("bounds", "sure")
        )
        own = ("nominal", "refuted", "bounds", "sure", "plan", "noise")
        return cls(
            nominal=float(data["nominal"]),
            bounds=bounds,
            plan=str(data["plan"]),
            details={name: value for name, value in data.items() if name not in own},
            sure=sure,
            noise=NoiseAudit.from_dict(data["noise"]) if "noise" in data else None,
        )


def audit_canaries(
    plan: PrivacyPlan, scores: Sequence[float], included: Sequence[bool], *, dimensions: int | None = None
) -> AuditOutcome:
    """The bounds that scores of canaries within a run give for its plan (`one_run`, `one_run_gaussian`; `one_shot`).

    Args:
        scores: (M,) from released values alone; higher if a canary looks included.
        included: (M,) whether the canary's coin included it.
        dimensions: the number of weights, if the scores are cosines with the change of the weights.
    """
    guessed = max(1, round(GUESSED * len(scores)))
    nominal = plan.epsilon()
    known: dict[str, Any] = {"delta": plan.delta, "guesses": (guessed, guessed), "nominal_epsilon": nominal}
    bounds, sure = (
        tuple(one(scores, included, confidence=confidence, **known) for one in (one_run, one_run_gaussian))
        for confidence in (CONFIDENCE, SURE)
    )
    details: dict[str, Any] = {
        "scores": [float(score) for score in scores],
        "included": [bool(coin) for coin in included],
    }
    if dimensions is not None:
        details["dimensions"] = dimensions
        within = [score for score, coin in zip(scores, included, strict=True) if coin]
        if len(within) > 1:
            shot = one_shot(within, dimensions=dimensions, delta=plan.delta)
            bounds += (replace(shot, epsilon=min(shot.epsilon, LARGEST)),)
    return AuditOutcome(nominal=nominal, bounds=bounds, plan=plan.fingerprint, details=details, sure=sure)


def problem(found: AuditOutcome, plan: PrivacyPlan, canaries: int, written: Mapping[str, Any]) -> str | None:
    """A text about what does not follow from the scores and coins of an audit of canaries; None if everything does.

    Args:
        found: the result of `read`.
        canaries: the number of canaries in the statement.
        written: the file's plain data. All of it must follow, including the sentences.
    """
    if found.plan != plan.fingerprint:
        return "it is of another plan"
    if not len(found.details.get("scores", ())) == len(found.details.get("included", ())) == canaries:
        return f"it has other canaries than the {canaries} of the statement"
    seen = found.details
    again = audit_canaries(plan, seen["scores"], seen["included"], dimensions=seen.get("dimensions"))
    if not _nearly_equal(written, json.loads(json.dumps(again.to_dict()))):
        return "it does not follow from its scores and coins"
    return None


def _nearly_equal(one: Any, other: Any) -> bool:
    """Whether plain data are equal up to the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_nearly_equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_nearly_equal, one, other))
    return one == other


def save(run: RunDirectory, found: AuditOutcome, name: str = names.AUDIT) -> None:
    """Write the audit atomically."""
    write(run / name, json.dumps(found.to_dict(), indent=2, allow_nan=False).encode() + b"\n")


def read(run: RunDirectory, name: str = names.AUDIT) -> AuditOutcome | None:
    """The audit in a file of the run; None if there is none."""
    if not (run / name).is_file():
        return None
    data = run.read_json(name)
    try:
        return AuditOutcome.from_dict(data)
    except (KeyError, TypeError, ValueError, SfumatoError) as error:
        raise SfumatoError(f"{run / name} holds no audit ({error})", "restore it from a copy, or delete it") from None


def read_all(run: RunDirectory) -> Sequence[tuple[str, AuditOutcome]]:
    """All audits of a run, each with the name of its file."""
    found = ((name, read(run, name)) for name in (names.AUDIT, names.STEP_AUDIT))
    return [(name, one) for name, one in found if one is not None]
