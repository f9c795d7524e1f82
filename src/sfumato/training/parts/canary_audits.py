"""Audits within a run: guess from the released model which canaries were included.

Canaries are records among the training examples, or random directions of the weights, each added to the run's sums or
left out by a fair coin (Andrew et al. 2023, arXiv 2302.03098).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.audit import mu_of
from sfumato.data import Preparation, Source, refuse_absent
from sfumato.evaluation import accuracy
from sfumato.gradients.clipping import clip_factors, exact_squared_norms
from sfumato.models.losses import LOSSES
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.directory import file_hash
from sfumato.training.descent import trained_parameters
from sfumato.training.parts.canaries import MADE_BY, Canaries, flip_coins, from_public, synthetic
from sfumato.training.parts.part import Conclusion, EarlyFacts, Part, RunRequest, Trained

FEWEST = 10
MOST = 1e30
"""Replaces a canary's loss if it is not a number, after divergence."""


@dataclass(frozen=True, kw_only=True)
class Audit(Part):
    """Canary records within a run.

    Args:
        canaries: all canaries, included or not.
        plan: of the run.
    """

    options = ("audit", "audit_source")
    canaries: Canaries
    plan: PrivacyPlan

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse too few canaries, and a source without a number of canaries."""
        count, source = early.options.get("audit"), early.options.get("audit_source")
        if source is not None:
            if count is None:
                raise SfumatoError(f"audit_source is {source}, but `audit` is not given", "give `audit`, such as 100")
            if source != SOURCE:
                refuse_absent(source)
        check_count(count)

    @classmethod
    def from_request(cls, request: RunRequest) -> Audit | None:
        """The audit with the requested number of canaries."""
        count, spec = request.options.get("audit"), request.options.get("audit_source")
        if count is None or spec == SOURCE:
            return None
        refuse_unsound(count, request)
        canaries = synthetic(count, request.source) if spec is None else from_public(spec, count, request.source)
        return cls(canaries=canaries, plan=request.plan)

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The number and source of the run's canaries."""
        known = record.get("audit", {})
        return {name: known[key] for name, key in (("audit", "canaries"), ("audit_source", "source")) if key in known}

    def add_records(self, source: Source, key: RunKey) -> Source:
        """Adds the included canaries after the training records. Only the steps see them."""
        return self.canaries.appended_to(source, key)

    @property
    def key_facts(self) -> dict[str, dict[str, Any]]:
        """Number and digest of the canaries. Different canaries give different sums, so the key depends on them."""
        spec = {} if self.canaries.spec is None else {"source": self.canaries.spec}
        return {"audit": {"canaries": len(self.canaries), "hash": self.canaries.digest, **spec}}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds their number."""
        return replace(facts, audit=len(self.canaries))

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """A message about their cost in accuracy."""
        count, units = len(self.canaries), plan.population
        yield (
            f"audit: about {count // 2} of {count} canaries, which have random labels, are added to the {units:,} "
            f"{plan.unit.drawn} of the plan ({count / 2 / units:.1%} more, with the effect of label noise); sampling "
            "probability, divisor and epsilon stay the plan's, and no figure is measured on canaries"
        )

    def end(self, conclusion: Conclusion) -> None:
        """Scores the canaries with the released model, guesses which were included, and saves the bounds."""
        if conclusion.key is None:  # without the key the coins are lost
            return
        scores = scores_of(self.canaries, conclusion.trained, conclusion.setup.settings.objective.loss)
        found = audit_outcomes.audit_canaries(self.plan, scores.tolist(), self.canaries.coins(conclusion.key).tolist())
        audit_outcomes.save(conclusion.run, found)
        conclusion.bound |= {audit_outcomes.ENTRY: file_hash(conclusion.run / names.AUDIT)}


def check_count(count: int | None) -> None:
    """Refuse a number of canaries that is too small for a bound."""
    remedy = "give a number such as 100"
    if count is not None and positive_integer("audit", count, remedy=remedy) < FEWEST:
        raise SfumatoError(f"audit must be at least {FEWEST} canaries, got {count}", remedy)


def refuse_unsound(count: int, request: RunRequest) -> None:
    """Refuse canary records where the audit's bounds do not hold.

    Errors: `SfumatoError` for features, participations in which additional records
    affect the others, and noise that is not independent between steps.
    """
    given, plan = f"audit is {count}", request.plan
    refuse_unsound_directions(given, plan)
    if request.source.cache is not None:
        raise SfumatoError(
            f"{given}, but canaries cannot be made for a source of features",
            f"train on the images, or give audit_source {SOURCE}",
        )
    if plan.unit.drawn not in ("examples", "users"):
        raise SfumatoError(
            f"{given}, but the plan draws {plan.unit.drawn}", "audit a plan that draws examples or users"
        )


def scores_of(canaries: Canaries, trained: Trained, loss: str) -> np.ndarray:
    """A score (M,) of each canary, higher if it seems included: minus the released model's loss.

    **Guarantee.** A function of the released weights and of public constants alone; it depends neither on the coins nor
    on the data of any step.
    """
    own: nn.Module = copy.deepcopy(trained.module)
    own.load_state_dict(trained.weights)
    records, device = canaries.records, torch.device(trained.device)
    blocks = (
        trained.transform(torch.from_numpy(records.take(slice(start, start + accuracy.BATCH))).to(device))
        for start in range(0, len(records), accuracy.BATCH)
    )
    outputs, labels = accuracy.per_example_logits(own, blocks).double(), torch.from_numpy(records.labels)
    losses = torch.stack([LOSSES[loss](one[None], label[None]) for one, label in zip(outputs, labels, strict=True)])
    return -losses.nan_to_num(nan=MOST).numpy()


SOURCE = "directions"
"""Their name in `audit_source` and in a run's record."""
TURNS = "audit turns"
"""The stream of the run key that draws the steps in which a canary takes part; used for nothing else."""


@dataclass(frozen=True, kw_only=True)
class Directions(Part):
    """Canary directions v_1, ..., v_M within a run: each included one adds r C v_j to the sums of its steps.

    r C is the sensitivity in the plan's theorem, so a canary is a unit of the largest allowed influence; for
    replace-one adjacency, r is 1.

    Args:
        count: M.
        plan: of the run.
        initial_weights: the initial weights that are trained and released, by name; a direction has their shapes.
        prefix: prefix of the names of released parameters.

    **Guarantee.** Given the coins, the addition to a sum is the same for all records: it depends on none of them, so
    sensitivity, divisor, N, q and epsilon of every real unit are the plan's. Coins and turns have their own random
    streams, so every other draw is the same as without canaries. An included canary takes part in each step
    independently, with the plan's probability, and its contribution has norm at most r C as computed, with room for the
    rounding on the grid: so the plan's epsilon also holds for a canary's coin.
    """

    count: int
    plan: PrivacyPlan
    initial_weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    prefix: str = ""

    @classmethod
    def from_request(cls, request: RunRequest) -> Directions | None:
        """The audit with the requested number of directions."""
        count = request.options.get("audit")
        if count is None or request.options.get("audit_source") != SOURCE:
            return None
        refuse_unsound_directions(f"audit is {count}", request.plan)
        return cls(count=count, plan=request.plan)

    def with_model(self, module: nn.Module, transform: Preparation) -> Directions:
        """Takes the module's present weights as the initial ones.

        Errors: `SfumatoError` for more canaries than weights: they would mask each other.
        """
        trained = trained_parameters(module).items()
        found = {name: value.cpu().clone() for name, value in trained if name.startswith(self.prefix)}
        known = replace(self, initial_weights=found)
        if self.count > known.dimensions:
            raise SfumatoError(
                f"audit is {self.count}, but only {known.dimensions} weights are trained and released",
                "give fewer canaries",
            )
        return known

    @property
    def dimensions(self) -> int:
        """d, the number of weights in a direction."""
        return sum(value.numel() for value in self.initial_weights.values())

    @property
    def reach(self) -> float:
        """r, the largest contribution of a unit in units of C."""
        return 1.0 if self.plan.adjacency == "replace-one" else self.plan.theorem.sensitivity(self.plan)

    @property
    def key_facts(self) -> dict[str, dict[str, Any]]:
        """Their number. Different canaries give different sums, so the key depends on them."""
        return {"audit": {"canaries": self.count, "source": SOURCE}}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds their number and kind."""
        return replace(facts, audit=self.count, audit_directions=True)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """A message about their cost: nearly orthogonal, the included ones have norm r C sqrt(M / 2) together."""
        share = mu_of(plan.epsilon(), plan.delta) * (self.count / 2 / self.dimensions) ** 0.5
        yield (
            f"audit: about {self.count // 2} of {self.count} canaries, random directions of {self.dimensions:,} "
            f"weights, are added to the sums; together they change the sums by about {share:.1%} of the noise; "
            "sampling probability, divisor and epsilon stay the plan's"
        )

    def part(self, place: int) -> dict[str, Tensor]:
        """A canary's contribution to a sum in units of C: (r - rounding) v_j, v_j uniform on the sphere, from a public
        seed."""
        drawn = {
            name: torch.from_numpy(value)
            for name, value in zip(self.initial_weights, self._draw_direction(place), strict=True)
        }
        squares = sum(exact_squared_norms(value[None]) for value in drawn.values())
        assert isinstance(squares, Tensor)
        factor = clip_factors(squares, torch.zeros_like(squares), max_norm=self.reach, of=drawn.values())
        return {name: value * factor for name, value in drawn.items()}

    def added_constant(self, key: RunKey) -> Callable[[int], dict[str, Tensor]]:
        """The total contribution of included canaries to a step's sum, in units of C."""
        chosen = flip_coins(key, self.count)
        known: dict[bytes, dict[str, Tensor]] = {}

        def added(step: int) -> dict[str, Tensor]:
            taking = chosen & (key.generator(TURNS, step).random(self.count) < self.plan.sampling_probability)
            if taking.tobytes() not in known:  # with full batches it is the same in every step
                known.clear()
                known[taking.tobytes()] = self._sum(taking)
            return known[taking.tobytes()]

        return added

    def scores(self, weights: Mapping[str, Tensor]) -> np.ndarray:
        """Cosines (M,) of each direction with initial minus released weights: higher if it seems included.

        Zero if the weights are not finite or have not changed.

        **Guarantee.** A function of the released weights and of public constants alone.
        """
        moved = [
            (self.initial_weights[name].double() - weights[name].cpu().double()).numpy()
            for name in self.initial_weights
        ]
        length = np.sqrt(sum(np.square(one).sum() for one in moved))
        if not np.isfinite(length) or length == 0:
            return np.zeros(self.count)
        found = np.empty(self.count)
        for place in range(self.count):
            drawn = [one.astype(np.float64) for one in self._draw_direction(place)]
            along = sum((one * two).sum() for one, two in zip(drawn, moved, strict=True))
            found[place] = along / np.sqrt(sum(np.square(one).sum() for one in drawn)) / length
        return found

    def end(self, conclusion: Conclusion) -> None:
        """Scores the canaries with the released weights, guesses which were included, and saves the bounds."""
        if conclusion.key is None:  # without the key the coins are lost
            return
        scores, coins = self.scores(conclusion.trained.weights), flip_coins(conclusion.key, self.count)
        found = audit_outcomes.audit_canaries(self.plan, scores.tolist(), coins.tolist(), dimensions=self.dimensions)
        audit_outcomes.save(conclusion.run, found)
        conclusion.bound |= {audit_outcomes.ENTRY: file_hash(conclusion.run / names.AUDIT)}

    def _draw_direction(self, place: int) -> Iterator[np.ndarray]:
        """Yields standard normal float32 numbers in the shapes of the weights: their direction is uniform."""
        for block, value in enumerate(self.initial_weights.values()):
            generator = np.random.default_rng((MADE_BY, place, block))
            yield generator.standard_normal(tuple(value.shape), dtype=np.float32)

    def _sum(self, taking: np.ndarray) -> dict[str, Tensor]:
        total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in self.initial_weights.items()}
        for place in np.flatnonzero(taking):
            for name, value in self.part(int(place)).items():
                total[name] += value
        return total


def refuse_unsound_directions(given: str, plan: PrivacyPlan) -> None:
    """Refuse canaries in a run for which the audit's bounds do not hold.

    Errors: `SfumatoError` for participations in which additional records affect the others, and for noise that is not
    independent between steps.
    """
    if plan.participation.name not in DRAWN_APART or not plan.mechanism.independent:
        raise SfumatoError(
            f"{given}, but the plan has {plan.participation.name} participation with {plan.mechanism.name} noise",
            "audit a plan with Poisson sampling or full batches and independent noise",
        )


DRAWN_APART = ("poisson", "full-batch")
"""Participations in which a record's part does not depend on the number of other records."""
