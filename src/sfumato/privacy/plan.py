"""The privacy plan: everything that decides epsilon, frozen, with a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Self, TypeVar

from sfumato._cards import card
from sfumato._checks import SfumatoError, fraction, one_of, positive_integer, within
from sfumato.privacy import calibration, factorisation, theorems
from sfumato.privacy.calibration import MAX_STEPS, Draft
from sfumato.privacy.clipping import Clipping, FixedClipping, QuantileClipping
from sfumato.privacy.loss import ACCOUNTANTS, FINE_GRID, Loss
from sfumato.privacy.mechanism import MECHANISMS, Gaussian, Mechanism
from sfumato.privacy.participation import PARTICIPATIONS, FullBatch, Participation, refuse_unproven
from sfumato.privacy.planning.by_name import OptimalToeplitz
from sfumato.privacy.planning.target import Epsilon, Target, target_of
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.theorems.theorem import Theorem
from sfumato.privacy.unit import ADJACENCIES, UNITS, Adjacency, Example, Unit, User

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The plan of a run's releases. It is fixed before the run reads the data.

    Args:
        population: N, the declared number of sampling candidates: examples, users, or groups of users, depending on
            the unit. A public constant, even if the data hold another number.
        participation: the rule that decides who takes part in each step.
        mechanism: the noise of all steps.
        steps: T, the number of releases.
        delta: the delta at which the run's statement gives epsilon.
        clipping: C, the L2 norm to which each vector is clipped: fixed, or adapted to a quantile of the norms.
        unit: the records that one guarantee covers: each example, or all kept records of each user.
        adjacency: "add-or-remove" one unit, or "zero-out" one unit: its contribution becomes zero, while its place and
            N stay known. An epsilon for one says nothing about the other.

    **Guarantee.** Assume that every step releases only the sum of the participants' vectors, and with adaptive clipping
    their count (`QuantileClipping`), plus the step's noise from `mechanism` (Gaussian: N(0, (noise_multiplier * C)^2
    I)); that each vector has L2 norm at most C; that one unit moves the sum by no more than its class states
    (`Example`, `User`); and that participants are chosen by `participation`. Then all steps together are
    `(plan.epsilon(delta), delta)`-differentially private for the plan's unit and adjacency, by `plan.theorem`.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)
    >>> round(plan.epsilon(), 3), round(plan.epsilon(accountant="rdp"), 3)
    (0.903, 0.988)
    """

    population: int
    participation: Participation
    mechanism: Mechanism
    steps: int
    delta: float
    clipping: Clipping = field(default_factory=FixedClipping)
    unit: Unit = field(default_factory=Example)
    adjacency: Adjacency = "add-or-remove"

    def __post_init__(self) -> None:
        positive_integer(examples=self.population, remedy="give the number of training examples")
        positive_integer(steps=self.steps, remedy="give the number of training steps")
        within(None, MAX_STEPS, steps=self.steps, remedy="give fewer steps")
        fraction(delta=self.delta, remedy="give a number such as 1e-5, well below 1/N")
        one_of(ADJACENCIES, adjacency=self.adjacency)
        self.participation.check(self.population)
        self.unit.check(self.population)
        self.theorem.check(self)

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
        mu: float | None = None,
        attack_risk: str | None = None,
        max_norm: float | None = None,
        clipping: Clipping | None = None,
        unit: Unit | None = None,
        participation: Participation | None = None,
        mechanism: Mechanism | OptimalToeplitz | None = None,
        adjacency: Adjacency = "add-or-remove",
        accountant: str = "pld",
    ) -> PrivacyPlan:
        """The plan in which one of batch size, steps, noise multiplier and epsilon follows from the other three.

        Leave out (`None`) exactly the one to find. It becomes the largest batch, the most steps, or the least noise
        (rounded up to four decimals) whose epsilon does not exceed the target. If epsilon is the one left out, the
        plan is simply that of the other three.

        Args:
            examples: N, the number of sampling candidates: see `population`.
            mu, attack_risk: other targets in place of epsilon: see `planning.target.Mu` and `AttackRisk`.
            max_norm: C, by default 1.
            clipping: an alternative to `max_norm`. If its count noise is not set, it follows from the batch size.
            unit: by default `Example`.
            participation: the rule. Its batch size is replaced by the given or found one. By default Poisson sampling,
                or full batches if the batch size is N. `FullBatch` determines the batch size.
            mechanism: the noise. Its noise multiplier is replaced by the given or found one, and parameters that
                depend on the steps and the participation are set (`Mechanism.adapted`). By default `Gaussian`,
                whatever the participation; `request_by_names` gives the noise that suits a rule.
            accountant: by which the plan meets epsilon: "pld", or "rdp" as in most papers.

        **Guarantee.** `plan.epsilon() <= epsilon`, certified on the fine grid, whenever epsilon is given; and the same
        by the accountant. The statement's mu or true-positive rate meets the other targets.

        Errors: `SfumatoError` if not exactly one is left out, if a value is out of range, or if nothing meets the
        target.
        """
        if batch_size is None and isinstance(participation, FullBatch):
            batch_size = examples  # the only batch size of full batches
        target = target_of(epsilon, mu, attack_risk)
        values = {"batch_size": batch_size, "steps": steps, "noise_multiplier": noise_multiplier, "epsilon": target}
        missing = [name for name, value in values.items() if value is None]
        if len(missing) != 1:
            listed = " and ".join([*filter(None, [", ".join(missing[:-1])]), *missing[-1:]]) or "none"
            verb = "are" if len(missing) > 1 else "is"
            raise SfumatoError(
                f"exactly one of batch_size, steps, noise_multiplier and epsilon must be left out, but {listed} {verb}",
                "leave out the one to compute from the other three",
            )
        if max_norm is not None and clipping is not None:
            raise SfumatoError(
                f"max_norm {max_norm!r} and a clipping are both given", "give one: a clipping has its own max_norm"
            )
        positive_integer(examples=examples, remedy="give the number of training examples")
        fraction(delta=delta, remedy="give a number such as 1e-5, well below 1/N")

        draft = Draft(
            make=partial(cls, population=examples, delta=delta, unit=unit or Example(), adjacency=adjacency),
            examples=examples,
            delta=delta,
            batch_size=batch_size,
            steps=steps,
            noise_multiplier=noise_multiplier,
            clipping=clipping or FixedClipping(1.0 if max_norm is None else max_norm),
            participation=participation,
            mechanism=mechanism or Gaussian(noise_multiplier=1.0),
            accountant=one_of(ACCOUNTANTS, accountant=accountant),
        )
        return draft.plan() if target is None else draft.calibrate(target)

    def with_noise(self, noise_multiplier: float) -> Self:
        """The same plan with this noise multiplier."""
        return replace(self, mechanism=replace(self.mechanism, noise_multiplier=noise_multiplier))

    def with_copies(self, steps: int) -> Self:
        """The plan whose steps are those of this one and `steps` more that copies of its run may have taken.

        **Guarantee.** Its loss is that of all these releases together: the steps of a copy have participants and noise
        of their own (`RunKey.for_step`), drawn as those of any other step (adaptive composition).

        Errors: `SfumatoError` if the steps depend on each other: no theorem here covers two copies of them.
        """
        if not steps:
            return self
        if not (self.participation.alike and self.mechanism.independent):
            kinds = f"{self.participation.name} participation and {self.mechanism.name} noise"
            raise SfumatoError(
                f"steps of a copy cannot be counted with {kinds}, where steps depend on each other",
                "continue the other copy, or end this one at its checkpoint (`finish`)",
            )
        return replace(self, steps=self.steps + steps)

    def most_steps(self, target: float | Target, *, accountant: str = "pld") -> int:
        """The most steps, to within one in ten thousand, that meet the target or this epsilon; 0 if not even one does.

        **Guarantee.** Certified on the fine grid: the cost of that many steps is within the target, by the accountant.
        """
        target = Epsilon(target) if isinstance(target, int | float) else target
        guess = self.theorem.equivalent_steps(self, target.mu(self.delta))
        return calibration.largest_within(
            lambda steps: target.cost(replace(self, steps=steps), accountant=accountant), target.limit, MAX_STEPS, guess
        )

    # -- privacy loss ----------------------------------------------------------------------------------------------

    def epsilon(
        self, delta: float | None = None, *, steps: int | None = None, accountant: str = "pld", grid: float = FINE_GRID
    ) -> float:
        """Epsilon at delta (by default the plan's) after `steps` releases (by default all).

        **Guarantee.** An upper bound: see `Loss`. `accountant` is "pld" or "rdp".
        """
        loss = self.loss if steps is None else self.theorem.loss(self, steps)
        return loss.epsilon(self.delta if delta is None else delta, accountant=accountant, grid=grid)

    def cost(self, *, steps: int | None = None, accountant: str, grid: float = FINE_GRID) -> float:
        """Epsilon at the plan's delta by the accountant, and no less than by "pld", which the guarantee states."""
        stated = self.epsilon(steps=steps, grid=grid)
        return stated if accountant == "pld" else max(stated, self.epsilon(steps=steps, accountant=accountant))

    @property
    def epsilon_rdp(self) -> float | None:
        """Epsilon by Renyi DP, for comparison with papers; None if no Renyi divergence is known."""
        return self.epsilon(accountant="rdp") if "rdp" in self.loss.accountants else None

    @property
    def loss(self) -> Loss:
        """The privacy loss of the whole run."""
        return self.theorem.loss(self, self.steps)

    @property
    def theorem(self) -> Theorem:
        """The theorem that proves the guarantee."""
        return theorems.theorem_for(self)

    # -- derived numbers -------------------------------------------------------------------------------------------

    @property
    def expected_batch_size(self) -> int:
        """B: the number that every noisy sum is divided by."""
        return self.participation.expected_batch_size(self.population)

    @property
    def sampling_probability(self) -> float:
        """q = B / N."""
        return self.participation.probability(self.population)

    @property
    def max_norm(self) -> float:
        """C, the norm to which each vector is clipped; with adaptive clipping, that of the first step."""
        return self.clipping.max_norm

    @property
    def noise_multiplier(self) -> float:
        """sigma, the standard deviation of the noise over C."""
        return self.mechanism.noise_multiplier

    @property
    def units(self) -> int:
        """The declared number of units. Delta should be small compared with one over it."""
        return self.unit.count(self.population)

    @property
    def users(self) -> int | None:
        """The declared number of users; None if the unit is an example."""
        return self.units if isinstance(self.unit, User) else None

    @property
    def expected_epochs(self) -> float:
        """How often an example takes part in the whole run, on average."""
        return self.sampling_probability * self.steps

    def noise_in_weights(
        self, momentum: float = 0.0, rates: tuple[float, ...] | None = None
    ) -> factorisation.NoiseInWeights:
        """The noise that all steps leave in one weight, in units of sigma C times the learning rate over B.

        Args:
            momentum, rates: those of heavy-ball SGD and its schedule, as in `factorisation.Workload`.
        """
        gap = self.participation.gap(self.population) or self.steps
        work = factorisation.Workload(steps=self.steps, separation=min(gap, self.steps), momentum=momentum, rates=rates)
        return self.mechanism.noise_in_weights(work)

    def __repr__(self) -> str:
        participants = self.participation.describe(self.population, self.unit.drawn_one)
        noise = self.mechanism.name if self.mechanism.independent else f"{self.mechanism.name}, correlated"
        return (
            f"PrivacyPlan({self.steps} step{'s' if self.steps > 1 else ''}, {participants} of N = {self.population}, "
            f"{self.clipping.description}, noise multiplier {self.noise_multiplier:g} ({noise}), delta {self.delta!r}, "
            f"{self.adjacency} one {self.unit.name})"
        )

    def _repr_html_(self) -> str:
        figures = [("epsilon", rounded_up(self.epsilon())), ("delta", repr(self.delta)), ("steps", f"{self.steps:,}")]
        figures += [("noise multiplier", f"{self.noise_multiplier:g}"), ("N", f"{self.population:,}")]
        return card("Privacy plan", figures, repr(self))

    # -- identity --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        data = {
            "unit": self.unit.name,
            **asdict(self.unit),
            "adjacency": self.adjacency,
            "sampling": type(self.participation).__name__,
            "examples": self.population,
            "batch_size": self.expected_batch_size,
            **asdict(self.participation),
            "mechanism": type(self.mechanism).__name__,
            **asdict(self.mechanism),
            **asdict(self.clipping),
            "steps": self.steps,
            "delta": self.delta,
        }
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in data.items()}  # of NumPy
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivacyPlan:
        """The plan that `to_dict` wrote. Refuses unknown, missing or ill-typed fields."""
        remedy = "give a plan as PrivacyPlan.to_dict writes it"
        try:
            refuse_unproven(data["sampling"])
            participation = PARTICIPATIONS[one_of(PARTICIPATIONS, sampling=data["sampling"], remedy=remedy)]
            mechanism = MECHANISMS[one_of(MECHANISMS, mechanism=data["mechanism"], remedy=remedy)]
            plan = cls(
                population=data["examples"],
                participation=_part(participation, data),
                mechanism=_part(mechanism, data),
                steps=data["steps"],
                delta=data["delta"],
                clipping=_part(QuantileClipping if "count_noise" in data else FixedClipping, data),
                unit=_part(UNITS[one_of(UNITS, unit=data["unit"], remedy=remedy)], data),
                adjacency=data["adjacency"],
            )
            if (rewritten := plan.to_dict()) == data:
                return plan
            names = rewritten.keys() | data.keys()
            differing = sorted(name for name in names if rewritten.get(name) != data.get(name))
        except (AttributeError, KeyError, TypeError) as error:
            differing = [str(error)]
        raise SfumatoError(f"a plan must have exactly its own fields, got a difference in {differing}", remedy)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan's canonical JSON: two plans share it only if every field agrees."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _part(kind: Callable[..., T], data: Mapping[str, Any]) -> T:
    """A part of the plan (participation, mechanism, clipping or unit), read from the fields of `to_dict`."""
    values = {each.name: data[each.name] for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def default_delta(units: int) -> float:
    """The largest power of ten that is at most 1e-5 and at most 1/(10 N), N the number of units.

    If the unit is a user, N is the number of users (`PrivacyPlan.units`), not of their records.

    A delta of 1/N would allow one record to be published verbatim. Nor is 1/N small enough in itself: with a thousand
    records, it is a probability of one in a thousand.

    >>> default_delta(50_000), default_delta(1437), default_delta(47)
    (1e-06, 1e-05, 1e-05)
    """
    positive_integer(examples=units, remedy="give the number of training examples")
    return float(f"1e-{max(5, len(str(units - 1)) + 1)}")
