"""Private selection: the best of a random number of candidates, and what the whole search costs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.privacy import calibration
from sfumato.privacy.candidate_count import CandidateCount
from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import FullBatch
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.theorems.selection import Selection, best_of, renyi_of_best
from sfumato.privacy.unit import Example


@dataclass(frozen=True, kw_only=True)
class PrivateSelection:
    """A search for settings of which only the best candidate is released, decided before it sees the data.

    Args:
        plan: what every candidate's training releases. It is the same for all of them and never searched.
        draws: the law of K, the number of candidates.
        score_noise: how a candidate is scored. None: on public data alone. A number: by how many records of a private
            validation part it labels rightly, plus N(0, score_noise^2).

    **Guarantee.** What is released is (`selection.epsilon(delta)`, delta)-differentially private for the plan's unit
    and adjacency, by `selection.theorem`, if

    1. K is drawn by `draws` independently of the data, all K candidates are trained and scored, and one that fails
       counts as the worst. A search that is cut short, or begun again for another K, is another law.
    2. Each candidate's settings are drawn independently, with replacement, from a space that was fixed beforehand:
       never near what did well. Each is trained by `plan` with randomness of its own.
    3. Scores are functions of the candidate and of public data, or counts plus noise as above, drawn for each candidate
       afresh. One record moves a count of right answers by at most 1: its sensitivity under add-or-remove.
    4. Each record is in the training part or in the validation part, by its own content alone (a keyed hash, or a split
       fixed by its owner), never by what the other records are.
    5. Nothing but the best candidate is released: its settings, its model, its noisy score. Neither K, nor which
       candidate it was, nor the other candidates, nor the exact scores, nor how long the search took.

    One record is in one part. Where it is in the training part, a candidate with its score is the plan's releases and
    post-processing; where it is in the validation part, the candidate's training does not see it and its score is one
    Gaussian release. The theorem holds for each pair of neighbours by itself, so the search costs the larger of the two
    and not their sum.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)
    >>> public = PrivateSelection(plan=plan, draws=CandidateCount(mean=10), score_noise=None)
    >>> round(plan.epsilon(), 3), round(public.epsilon(), 3), round(public.epsilon_of_all(10), 3)
    (0.903, 1.742, 3.239)
    """

    plan: PrivacyPlan
    draws: CandidateCount
    score_noise: float | None

    def __post_init__(self) -> None:
        if self.plan.unit.name != Example.name and self.score_noise is not None:
            raise SfumatoError(
                f"score_noise {self.score_noise!r} counts right answers by records, and the plan's unit is a "
                f"{self.plan.unit.name}, who may have many of them, in both parts",
                "score on public data (score_noise=None)",
            )
        if self.score_noise is not None:
            positive(
                "score_noise",
                self.score_noise,
                remedy="give the standard deviation of the noise in right answers, or None for public validation data",
            )

    @classmethod
    def calibrate(
        cls,
        *,
        examples: int,
        batch_size: int,
        steps: int,
        delta: float,
        epsilon: float,
        draws: CandidateCount,
        score_noise: float | None,
        max_norm: float = 1.0,
    ) -> PrivateSelection:
        """The selection with the least noise multiplier, rounded up to four decimals, that meets epsilon.

        **Guarantee.** `selection.epsilon() <= epsilon`.

        Errors: `SfumatoError` when a value is out of range, when the scores alone cost more than epsilon, or when no
        noise meets it.
        """
        positive("epsilon", epsilon, remedy="give the privacy budget of the whole search, a number such as 3")
        plan = PrivacyPlan.calibrate(
            examples=examples, batch_size=batch_size, steps=steps, noise_multiplier=1.0, delta=delta, max_norm=max_norm
        )
        selection = cls(plan=plan, draws=draws, score_noise=score_noise)
        if score_noise is not None and _score_epsilon(score_noise, draws, delta) > epsilon:
            raise SfumatoError(
                f"noisy scores of standard deviation {score_noise:g} alone cost more than epsilon {epsilon:g} "
                f"at delta {delta:g}",
                f"give a score noise of at least {least_score_noise(draws, epsilon=epsilon, delta=delta):g}",
            )
        sigma = _least(
            lambda sigma: best_of(plan.with_noise(sigma).loss, draws, delta), epsilon, "noise multiplier", delta
        )
        return replace(selection, plan=plan.with_noise(sigma))

    # -- what it promises ------------------------------------------------------------------------------------------

    def epsilon(self, delta: float | None = None, *, accountant: str = "rdp") -> float:
        """Epsilon of the whole search at delta (the plan's own by default).

        **Guarantee.** An upper bound, for each neighbouring pair the larger of its two cases: see the class and
        `theorems.selection.best_of`.
        """
        if accountant != "rdp":
            raise SfumatoError(
                f"accountant of a private selection must be rdp, got {accountant!r}: the theorem here speaks of Renyi "
                "divergences, and no privacy loss distribution follows from it",
                'leave accountant at "rdp"',
            )
        at = self.plan.delta if delta is None else delta
        training = best_of(self.plan.loss, self.draws, at)
        return training if self.score_noise is None else max(training, _score_epsilon(self.score_noise, self.draws, at))

    def renyi(self, order: float) -> float:
        """The Renyi divergence of this order of the whole search.

        **Guarantee.** An upper bound for each neighbouring pair, the larger of its two cases: see `epsilon`.
        """
        training = renyi_of_best(self.plan.loss, self.draws, order)
        if self.score_noise is None:
            return training
        return max(training, renyi_of_best(_score(self.score_noise).loss, self.draws, order))

    def epsilon_of_all(self, runs: int, delta: float | None = None, *, accountant: str = "pld") -> float:
        """Epsilon of releasing so many candidates with their scores, all of them: what selection is spared.

        **Guarantee.** Composition of `runs` plans, a number fixed beforehand: see `Loss`. As for the
        selection, one record is in one part, so the larger of the two parts' costs counts.
        """
        positive_integer("runs", runs, remedy="give the number of candidates")
        at = self.plan.delta if delta is None else delta
        one = self.plan.loss  # each run has bins and noise of its own, so more runs are not more steps
        training = one.with_(*[one] * (runs - 1)).epsilon(at, accountant=accountant)
        if self.score_noise is None:
            return training
        return max(training, replace(_score(self.score_noise), steps=runs).epsilon(at, accountant=accountant))

    @property
    def theorem(self) -> Selection:
        """What the promise rests on."""
        return Selection(self.plan.theorem, self.draws)

    # -- its identity ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        noise = None if self.score_noise is None else float(self.score_noise)
        return {"plan": self.plan.to_dict(), "draws": self.draws.to_dict(), "score_noise": noise}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivateSelection:
        """The selection that `to_dict` wrote. Unknown, missing or ill-typed fields are refused."""
        known = {"plan", "draws", "score_noise"}
        if not isinstance(data, Mapping) or set(data) != known:
            differing = sorted(set(data) ^ known) if isinstance(data, Mapping) else type(data).__name__
            raise SfumatoError(
                f"a selection must have exactly its own fields, got a difference in {differing}",
                "give a selection as PrivateSelection.to_dict writes it",
            )
        return cls(
            plan=PrivacyPlan.from_dict(data["plan"]),
            draws=CandidateCount.from_dict(data["draws"]),
            score_noise=data["score_noise"],
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the selection's canonical JSON: two selections share it only if every field agrees."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def least_score_noise(draws: CandidateCount, *, epsilon: float, delta: float) -> float:
    """The least score noise, rounded up to four decimals, whose scores cost a search at most epsilon.

    **Guarantee.** A search whose training costs at least epsilon pays nothing for scores with this noise: see
    `PrivateSelection`.
    """
    positive("epsilon", epsilon, remedy="give the privacy budget of the whole search, a number such as 3")
    return _least(lambda noise: _score_epsilon(noise, draws, delta), epsilon, "score noise", delta)


def _score(noise: float) -> PrivacyPlan:
    """One noisy count of right answers: every record counts, with sensitivity 1. Its N and delta play no part."""
    mechanism = Gaussian(noise_multiplier=noise)
    return PrivacyPlan(population=1, participation=FullBatch(), mechanism=mechanism, steps=1, delta=0.5)


def _score_epsilon(noise: float, draws: CandidateCount, delta: float) -> float:
    return best_of(_score(noise).loss, draws, delta)


def _least(spent: Callable[[float], float], target: float, what: str, delta: float) -> float:
    return calibration.least(
        lambda value, _: spent(value),
        target,
        what=f"{what} below 1e7 reaches epsilon {target:g} at delta {delta:g} for the whole search",
        remedy="give a larger epsilon or delta, fewer steps, or fewer candidates",
        tolerance=1e-5,
        lowest=1e-3,
    )
