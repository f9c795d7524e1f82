"""What audits of a run have found: of canaries within it, and of its step."""

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
"""The share of the canaries that is guessed in, and as large a one that is guessed out: fixed before any is seen."""
CONFIDENCE = 0.95
SURE = 1 - 1e-6
"""The confidence at which a bound above the promise is an alarm: at 95% one audit in twenty of right code has one."""
LARGEST = 500.0
"""What an estimate is at most: more is not written down."""
ENTRY = "audit"
"""What the ledger's last line calls the hash of the file."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """An audit's outcome. It may be given away: it follows from what was released, and from coins and records of
    nobody's.

    Args:
        nominal: the promised epsilon.
        bounds: from below, at the promise's delta; the first presumes least.
        sure: the same at confidence `SURE`, by which an alarm is decided.
        noise: of the step's audit, whether the noise of each parameter is the plan's.
        plan: the fingerprint of the plan.
        details: what was observed: for canaries "scores" (M,) and "included" (M,), in their order.
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
        """Whether a bound at confidence `SURE` lies above the promise, or the noise is not the plan's: then something
        is wrong."""
        return self.exceeds or (self.noise is not None and self.noise.broken)

    @property
    def doubtful(self) -> bool:
        """Whether a bound lies above the promise, as chance alone brings about with probability 1 - its confidence."""
        return not self.exceeds and any(bound.refutes(self.nominal) for bound in self.bounds)

    @property
    def summary(self) -> dict[str, Any]:
        """Plain data, without the details."""
        return {
            "nominal": self.nominal,
            "refuted": self.refuted,
            "bounds": [bound.to_dict() for bound in self.bounds],
            "sure": [bound.to_dict() for bound in self.sure],
            "plan": self.plan,
            **({} if self.noise is None else {"noise": self.noise.to_dict()}),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {**self.summary, **self.details}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Audited:
        """What `to_dict` wrote."""
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


def of_canaries(
    plan: PrivacyPlan, scores: Sequence[float], included: Sequence[bool], *, dimensions: int | None = None
) -> Audited:
    """What scores of canaries within a run show of its plan (`one_run`, `one_run_gaussian`; `one_shot`).

    Args:
        scores: (M,) from released values alone, higher where a canary looks as if it had been in.
        included: (M,) whether its coin put it in.
        dimensions: where they are cosines with the change of so many weights.
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
    return Audited(nominal=nominal, bounds=bounds, plan=plan.fingerprint, details=details, sure=sure)


def problem(found: Audited, plan: PrivacyPlan, canaries: int, written: Mapping[str, Any]) -> str | None:
    """In what an audit of canaries within a run is not what its own scores and coins give; None where it is.

    Args:
        found: what `read` makes of the file.
        canaries: how many the statement tells of.
        written: the file's plain data, all of which, down to the sentences, is to follow.
    """
    if found.plan != plan.fingerprint:
        return "it is of another plan"
    if not len(found.details.get("scores", ())) == len(found.details.get("included", ())) == canaries:
        return f"it has other canaries than the {canaries} that the statement tells of"
    seen = found.details
    again = of_canaries(plan, seen["scores"], seen["included"], dimensions=seen.get("dimensions"))
    if not _alike(written, json.loads(json.dumps(again.to_dict()))):
        return "what it says does not follow from its scores and coins"
    return None


def _alike(one: Any, other: Any) -> bool:
    """Whether plain data are the same, but for the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other


def save(run: RunDirectory, found: Audited, name: str = names.AUDIT) -> None:
    """Write it, whole or not at all."""
    write(run / name, json.dumps(found.to_dict(), indent=2, allow_nan=False).encode() + b"\n")


def read(run: RunDirectory, name: str = names.AUDIT) -> Audited | None:
    """What an audit has written down; None where there was none."""
    if not (run / name).is_file():
        return None
    data = run.read_json(name)
    try:
        return Audited.from_dict(data)
    except (KeyError, TypeError, ValueError, SfumatoError) as error:
        raise SfumatoError(f"{run / name} holds no audit ({error})", "restore it from a copy, or delete it") from None


def of_run(run: RunDirectory) -> Sequence[tuple[str, Audited]]:
    """All audits of a run that are there, each with the name of its file."""
    found = ((name, read(run, name)) for name in (names.AUDIT, names.STEP_AUDIT))
    return [(name, one) for name, one in found if one is not None]
