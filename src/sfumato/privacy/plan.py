"""The plan: everything that decides epsilon, frozen, with a fingerprint; and the calibration of one unknown."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato._checks import SfumatoError, fraction, one_of, positive, positive_integer, shortened
from sfumato.privacy import theorems
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.privacy.sampling import FullBatch, Poisson, SamplingRule, rule_for
from sfumato.privacy.theorems import COARSE_GRID, FINE_GRID, Adjacency, Releases, Theorem

MAX_STEPS = 10_000_000
UNITS = ("example",)
ADJACENCIES = ("add-or-remove",)


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What a run will release, decided before it sees the data.

    Args:
        sampling: who takes part in a step.
        mechanism: the noise of a step.
        steps: T, the number of releases.
        delta: the delta at which the run's statement gives epsilon.
        max_norm: C, the L2 norm to which each unit's gradient is clipped.
        unit: what one promise covers: "example".
        adjacency: "add-or-remove" one unit.

    **Guarantee.** If every step releases nothing but `sum of the participants' vectors, each of L2 norm at most C, plus
    N(0, (noise_multiplier * C)^2 I)`, with participants drawn by `sampling` independently in every step, then all
    steps together are `(plan.epsilon(delta), delta)`-differentially private for the unit and adjacency named here, by
    `plan.theorem`.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)
    >>> round(plan.epsilon(), 3), round(plan.epsilon(accountant="rdp"), 3)
    (0.903, 0.988)
    """

    sampling: SamplingRule
    mechanism: Mechanism
    steps: int
    delta: float
    max_norm: float = 1.0
    unit: str = "example"
    adjacency: Adjacency = "add-or-remove"

    def __post_init__(self) -> None:
        positive_integer("steps", self.steps, remedy="give the number of training steps")
        if self.steps > MAX_STEPS:
            raise SfumatoError(f"steps must be at most {MAX_STEPS}, got {shortened(self.steps)}", "give fewer steps")
        fraction("delta", self.delta, remedy="give a number such as 1e-5, well below 1/N")
        positive("max_norm", self.max_norm, remedy="give the clipping norm, 1.0 where nothing speaks against it")
        one_of("unit", self.unit, UNITS)
        one_of("adjacency", self.adjacency, ADJACENCIES)
        theorems.within_bounds(self.releases)

    @classmethod
    def calibrate(
        cls,
        *,
        examples: int,
        delta: float,
        batch_size: int | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        max_norm: float = 1.0,
    ) -> PrivacyPlan:
        """The plan in which exactly one of batch size, steps, noise multiplier and epsilon follows from the others.

        Left out as `None` is the one to be found: the largest batch, the most steps, or the least noise (rounded up to
        four decimals) whose epsilon does not exceed the target; or, with all three given, simply their plan.

        **Guarantee.** `plan.epsilon() <= epsilon`, certified on the fine grid, whenever epsilon is given.

        Errors: `SfumatoError` when not exactly one is left out, when a value is out of range, or when nothing meets the
        target.
        """
        given = {
            "batch_size": batch_size,
            "steps": steps,
            "noise_multiplier": noise_multiplier,
            "epsilon": epsilon,
        }
        missing = [name for name, value in given.items() if value is None]
        if len(missing) != 1:
            found = ", ".join(missing) if missing else "none"
            raise SfumatoError(
                f"exactly one of batch_size, steps, noise_multiplier and epsilon must be left out, but {found} is",
                "leave out the one that should follow from the others",
            )
        positive_integer("examples", examples, remedy="give the number of training examples")
        fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
        if epsilon is not None:
            positive("epsilon", epsilon, remedy="give the privacy budget, a number such as 3")

        def build(batch: Any = batch_size, count: Any = steps, sigma: Any = noise_multiplier) -> PrivacyPlan:
            return cls(
                sampling=rule_for(examples=examples, batch_size=batch),
                mechanism=Gaussian(noise_multiplier=sigma),
                steps=count,
                delta=delta,
                max_norm=max_norm,
            )

        if epsilon is None:
            return build()
        if noise_multiplier is None:
            return _least_noise(build(sigma=1.0), epsilon)
        if steps is None:
            one = build(count=1)
            most = _largest(lambda n, grid: replace(one, steps=n).epsilon(grid=grid), epsilon, MAX_STEPS, "step")
            return replace(one, steps=most)
        whole = _largest(lambda n, grid: build(batch=n).epsilon(grid=grid), epsilon, examples, "example in a batch")
        return build(batch=whole)

    # -- what it promises ------------------------------------------------------------------------------------------

    def epsilon(
        self, delta: float | None = None, *, steps: int | None = None, accountant: str = "pld", grid: float = FINE_GRID
    ) -> float:
        """Epsilon at delta (the plan's own by default) after `steps` releases (all by default).

        **Guarantee.** An upper bound: see `theorems.epsilon`. `accountant` is "pld" or "rdp".
        """
        releases = self.releases if steps is None else replace(self.releases, steps=steps)
        return theorems.epsilon(releases, self.delta if delta is None else delta, accountant=accountant, grid=grid)

    @property
    def releases(self) -> Releases:
        """The plan as an accountant sees it."""
        return Releases(sampling=self.sampling, mechanism=self.mechanism, steps=self.steps, adjacency=self.adjacency)

    @property
    def theorem(self) -> Theorem:
        """The row of the table that the promise rests on."""
        return theorems.theorem_for(self.adjacency, self.sampling, self.mechanism)

    # -- its numbers -----------------------------------------------------------------------------------------------

    @property
    def examples(self) -> int:
        """N, declared."""
        return self.sampling.examples

    @property
    def expected_batch_size(self) -> int:
        """B: what every noisy sum is divided by."""
        return self.sampling.expected_batch_size

    @property
    def sampling_probability(self) -> float:
        """q = B / N."""
        return self.sampling.probability

    @property
    def noise_multiplier(self) -> float:
        """sigma, in units of the sensitivity."""
        return self.mechanism.noise_multiplier

    @property
    def expected_epochs(self) -> float:
        """How often an example takes part in all, on average."""
        return self.sampling_probability * self.steps

    # -- its identity ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {
            "unit": self.unit,
            "adjacency": self.adjacency,
            "sampling": type(self.sampling).__name__,
            "examples": self.examples,
            "batch_size": self.expected_batch_size,
            "mechanism": type(self.mechanism).__name__,
            "noise_multiplier": self.noise_multiplier,
            "max_norm": self.max_norm,
            "steps": self.steps,
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivacyPlan:
        """The plan that `to_dict` wrote. Unknown, missing or ill-typed fields are refused."""
        known = {"unit", "adjacency", "sampling", "examples", "batch_size", "mechanism", "noise_multiplier"}
        known |= {"max_norm", "steps", "delta"}
        remedy = "give a plan as PrivacyPlan.to_dict writes it"
        if not isinstance(data, Mapping) or set(data) != known:
            odd = sorted(set(data) ^ known) if isinstance(data, Mapping) else type(data).__name__
            raise SfumatoError(f"a plan must have exactly its own fields, got a difference in {odd}", remedy)
        one_of("sampling", data["sampling"], ("Poisson", "FullBatch"), remedy=remedy)
        one_of("mechanism", data["mechanism"], ("Gaussian",), remedy=remedy)
        if data["sampling"] == "FullBatch":
            sampling: SamplingRule = FullBatch(examples=data["examples"])
            if data["batch_size"] != data["examples"]:
                raise SfumatoError(f"batch_size of a full batch must be N, got {data['batch_size']}", remedy)
        else:
            sampling = Poisson(examples=data["examples"], batch_size=data["batch_size"])
        return cls(
            sampling=sampling,
            mechanism=Gaussian(noise_multiplier=data["noise_multiplier"]),
            steps=data["steps"],
            delta=data["delta"],
            max_norm=data["max_norm"],
            unit=data["unit"],
            adjacency=data["adjacency"],
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan's canonical JSON: two plans share it only if every field agrees."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _least_noise(plan: PrivacyPlan, target: float) -> PrivacyPlan:
    """The least noise multiplier, rounded up to four decimals, with epsilon at most the target.

    Bisection on the logarithm on a coarse grid, whose epsilon is never too small, then a few steps on the fine one.
    """

    def spent(sigma: float, grid: float) -> float:
        return replace(plan, mechanism=Gaussian(noise_multiplier=sigma)).epsilon(grid=grid)

    high = 1.0
    while spent(high, COARSE_GRID) > target:
        high *= 2
        if high > 1e7:
            raise SfumatoError(
                f"no noise multiplier below 1e7 reaches epsilon {target:g} at delta {plan.delta:g}",
                "give a larger epsilon or delta, or fewer steps",
            )
    low = high / 2
    while low > 0.02 and spent(low, COARSE_GRID) <= target:
        low, high = low / 2, low
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle, COARSE_GRID) <= target else (middle, high)
    # The fine grid allows a little less noise. Epsilon falls like a power of sigma, which the coarse grid gives.
    lower, coarse, wider = high, spent(high, COARSE_GRID), spent(high * 1.02, COARSE_GRID)
    if 0 < wider < coarse:
        power = math.log(coarse / wider) / math.log(1.02)
        lower = high * (max(spent(high, FINE_GRID), 0.5 * target) / target) ** (1 / power)
    grown = math.ceil(min(lower, high) * 1e4) / 1e4
    while spent(grown, FINE_GRID) > target:
        grown = math.ceil(max(grown * (1 + 1e-5), grown + 1e-4) * 1e4 - 1e-6) / 1e4
    return replace(plan, mechanism=Gaussian(noise_multiplier=grown))


def _largest(spent: Callable[[int, float], float], target: float, limit: int, what: str) -> int:
    """The largest n from 1 to the limit with spent(n) at most the target; spent grows with n."""
    if spent(1, FINE_GRID) > target:
        raise SfumatoError(
            f"epsilon {target:g} is already exceeded by one {what} ({spent(1, FINE_GRID):.3g})",
            "give more noise or a larger epsilon",
        )
    low, high = 1, 2
    while high <= limit and spent(high, COARSE_GRID) <= target:
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle, COARSE_GRID) <= target else (low, middle)
    step = max(1, low // 1000)
    while low + step <= limit and spent(low + step, FINE_GRID) <= target:
        low, step = low + step, step * 2
    high = min(low + step, limit + 1)
    while high - low > max(1, low // 10_000):  # nobody misses the last of ten thousand, and each try takes its time
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle, FINE_GRID) <= target else (low, middle)
    return low


def default_delta(examples: int) -> float:
    """The largest power of ten that is at most 1e-5 and at most 1/(10 N).

    At 1/N a promise would allow one record to be published as it is; and a chance of one in a thousand, which that is
    for a thousand records, is none that anybody would sign.

    >>> default_delta(50_000), default_delta(1437), default_delta(47)
    (1e-06, 1e-05, 1e-05)
    """
    positive_integer("examples", examples, remedy="give the number of training examples")
    return float(f"1e-{max(5, len(str(examples - 1)) + 1)}")
