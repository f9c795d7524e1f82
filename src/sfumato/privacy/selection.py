"""Private selection: the best of a random number of candidates, and the cost of the whole search."""

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
from sfumato.privacy.theorems.selection import Selection, epsilon_of_best, renyi_of_best
from sfumato.privacy.unit import Example


@dataclass(frozen=True, kw_only=True)
class PrivateSelection:
    """A search for settings in which only the best candidate is released. It is fixed before the search reads the data.

    Args:
        plan: the plan of every candidate's training. It is the same for all candidates and is never searched.
        draws: the distribution of K, the number of candidates.
        score_noise: how candidates are scored. None: on public data only. A number: by the count of correctly
            labelled records of a private validation part, plus N(0, score_noise^2).

    **Guarantee.** The release is (`selection.epsilon(delta)`, delta)-differentially private for the plan's unit and
    adjacency, by `selection.theorem`, if

    1. K is drawn by `draws` independently of the data, all K candidates are trained and scored, and a candidate that
       fails counts as the worst. A search that is cut short, or restarted for another K, follows a different
       distribution.
    2. The settings of each candidate are drawn independently, with replacement, from a space that was fixed in advance,
       and never near settings that did well. Each candidate is trained by `plan` with its own randomness.
    3. Scores are functions of the candidate and of public data, or counts plus noise as above, drawn afresh for each
       candidate. One record changes a count of correct labels by at most 1: its sensitivity under add-or-remove.
    4. Each record is in the training part or in the validation part, decided by its own content alone (a keyed hash, or
       a split fixed by its owner), never by the other records.
    5. Only the best candidate is released: its settings, its model, its noisy score. K, the number of the winning
       candidate, the other candidates, the exact scores and the duration of the search stay secret.

    Each record is in one part only. If it is in the training part, a candidate and its score are the plan's releases
    and their post-processing. If it is in the validation part, the candidate's training does not see it, and the score
    is one Gaussian release. The theorem holds for each pair of neighbours separately, so the search costs the larger of
    the two, not their sum.

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
                f"score_noise {self.score_noise!r} counts correct labels per record, but the plan's unit is a "
                f"{self.plan.unit.name}, who may have many records, in both parts",
                "score on public data (score_noise=None)",
            )
        if self.score_noise is not None:
            positive(
                "score_noise",
                self.score_noise,
                remedy="give the standard deviation of the noise in correct labels, or None for public validation data",
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

        Errors: `SfumatoError` if a value is out of range, if the scores alone cost more than epsilon, or if no noise
        meets it.
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
            lambda sigma: epsilon_of_best(plan.with_noise(sigma).loss, draws, delta), epsilon, "noise multiplier", delta
        )
        return replace(selection, plan=plan.with_noise(sigma))

    # -- privacy loss ----------------------------------------------------------------------------------------------

    @property
    def loss(self) -> None:
        """None: only single pairs of epsilon and delta are known."""

    @property
    def delta(self) -> float:
        """The delta at which its statement gives epsilon: the plan's."""
        return self.plan.delta

    def epsilon(self, delta: float | None = None, *, accountant: str = "rdp") -> float:
        """Epsilon of the whole search at delta (by default the plan's).

        **Guarantee.** An upper bound: the larger of the two cases for each neighbouring pair. See the class and
        `theorems.selection.epsilon_of_best`.
        """
        if accountant != "rdp":
            raise SfumatoError(
                f"accountant of a private selection must be rdp, got {accountant!r}: the theorem bounds Renyi "
                "divergences, and no privacy loss distribution follows from it",
                'leave accountant at "rdp"',
            )
        at = self.plan.delta if delta is None else delta
        training = epsilon_of_best(self.plan.loss, self.draws, at)
        return training if self.score_noise is None else max(training, _score_epsilon(self.score_noise, self.draws, at))

    def renyi(self, order: float) -> float:
        """The Renyi divergence of this order of the whole search.

        **Guarantee.** An upper bound: the larger of the two cases for each neighbouring pair. See `epsilon`.
        """
        training = renyi_of_best(self.plan.loss, self.draws, order)
        if self.score_noise is None:
            return training
        return max(training, renyi_of_best(_score(self.score_noise).loss, self.draws, order))

    def epsilon_of_all(self, runs: int, delta: float | None = None, *, accountant: str = "pld") -> float:
        """Epsilon of releasing all of `runs` candidates with their scores. Selection saves the difference.

        **Guarantee.** The composition of `runs` plans, a number fixed in advance: see `Loss`. As in the selection, each
        record is in one part, so the larger of the two parts' costs counts.
        """
        positive_integer("runs", runs, remedy="give the number of candidates")
        at = self.plan.delta if delta is None else delta
        one = self.plan.loss  # each run has its own bins and noise, so more runs are not more steps
        training = one.composed_with(*[one] * (runs - 1)).epsilon(at, accountant=accountant)
        if self.score_noise is None:
            return training
        return max(training, replace(_score(self.score_noise), steps=runs).epsilon(at, accountant=accountant))

    @property
    def theorem(self) -> Selection:
        """The theorem that proves the guarantee."""
        return Selection(self.plan.theorem, self.draws)

    # -- identity --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        noise = None if self.score_noise is None else float(self.score_noise)
        return {"plan": self.plan.to_dict(), "draws": self.draws.to_dict(), "score_noise": noise}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivateSelection:
        """The selection that `to_dict` wrote. Refuses unknown, missing or ill-typed fields."""
        names = {"plan", "draws", "score_noise"}
        if not isinstance(data, Mapping) or set(data) != names:
            differing = sorted(set(data) ^ names) if isinstance(data, Mapping) else type(data).__name__
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

    **Guarantee.** In a search whose training costs at least epsilon, scores with this noise cost nothing extra: see
    `PrivateSelection`.
    """
    positive("epsilon", epsilon, remedy="give the privacy budget of the whole search, a number such as 3")
    return _least(lambda noise: _score_epsilon(noise, draws, delta), epsilon, "score noise", delta)


def _score(noise: float) -> PrivacyPlan:
    """One noisy count of correct labels: every record counts, with sensitivity 1. Its N and delta do not matter."""
    mechanism = Gaussian(noise_multiplier=noise)
    return PrivacyPlan(population=1, participation=FullBatch(), mechanism=mechanism, steps=1, delta=0.5)


def _score_epsilon(noise: float, draws: CandidateCount, delta: float) -> float:
    return epsilon_of_best(_score(noise).loss, draws, delta)


def _least(spent: Callable[[float], float], target: float, what: str, delta: float) -> float:
    return calibration.least_within(
        lambda value, _: spent(value),
        target,
        what=f"{what} below 1e7 reaches epsilon {target:g} at delta {delta:g} for the whole search",
        remedy="give a larger epsilon or delta, fewer steps, or fewer candidates",
        tolerance=1e-5,
        lowest=1e-3,
    )
