"""White-box audit of the software's private step, with and without a canary (Nasr et al. 2023, arXiv 2302.07956).

Each release is projected on the canary's direction. The noise of each parameter is checked too. `audit_run` audits the
step of a finished run, and writes the outcome to the run directory and its report page.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import fraction, positive_integer
from sfumato._files import write
from sfumato.audit import Bound, epsilon_of, white_box
from sfumato.audit.bound import epsilon_of_mixture
from sfumato.audit.gaussian import mu_lower_bound
from sfumato.audit.noise import audit_noise
from sfumato.gradients import ClippedGradient, ClippedSum, UserGradient
from sfumato.observers.progress import NoProgress, Progress
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.unit import Drawn
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.published import SURE, AuditOutcome
from sfumato.search.audit_subject import Residuals, Subject, from_run, with_noise
from sfumato.training.conclusion import run_report
from sfumato.training.step import PrivateStep

OBSERVATIONS = 5_000
"""Observations with and without the canary, if they fit in `SECONDS`."""
FEWEST = 100
SECONDS = 18.0
TRIED = 5
BEST_SEEN = 3.0
"""A mu that this number of observations estimates well."""
OTHERS, CANDIDATES = 3, 8
SEEDS = 2, 3
"""Public seeds of the keys of two runs: without the canary, and with it."""
FULL, POISSON = "full-batch", "poisson"
Gradient = Mapping[str, Tensor]


class CachedGradient:
    """A clipped gradient that computes the sum over the same batch only once, unless the model draws random numbers.

    Observations then differ only in the noise, which is drawn, added and divided each time.

    Attributes:
        latest: the sum of the latest batch.
    """

    def __init__(self, gradient: ClippedGradient | UserGradient):
        self._gradient, self._sums = gradient, {}
        self.latest: Gradient = {}
        self.max_norm = gradient.max_norm
        self.sums_over: Drawn = gradient.sums_over
        self.sensitivity, self.zeros = gradient.sensitivity, gradient.zeros

    def __call__(self, *batch: Tensor) -> ClippedSum:
        """The clipped sum of a batch. A batch is recognised by the identity of its tensors."""
        place = tuple(map(id, batch))
        if self._gradient.uses_keys or place not in self._sums:
            self._sums[place] = batch, self._gradient(*batch)
        total = self._sums[place][1]
        self.latest = total.gradients
        return total


@dataclass(frozen=True, kw_only=True)
class WhiteBox:
    """The observations that one subject allows.

    Args:
        subject: the audited subject.
        merged: k, the number of the plan's steps that one observation represents.

    An observation is the release of one call of `PrivateStep` for some synthetic units, with a synthetic canary (in) or
    without it (out), at noise multiplier sigma / sqrt(k): as much noise as k steps of the plan together, in all of
    which the canary takes part. The release is multiplied by the public divisor, the sum over the others, computed by
    plain autograd, is subtracted, and the rest is projected on the canary's gradient.

    **Guarantee.** The reference is independent of the software's clipped gradient, noise and sampler: the canary's
    direction and the others' sum are computed by autograd, one record at a time, and clipped here. The collected noise
    is the release minus the software's own clipped sum; the projection checks that sum.
    """

    subject: Subject
    merged: int

    @property
    def first_steps(self) -> bool:
        """Whether each observation is the first step of a run with its own key. Correlated noise is like independent
        noise there."""
        return not self.subject.plan.mechanism.independent

    @cached_property
    def units(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the other units and, last, of the canary: the candidate with the longest gradient."""
        inputs, labels = self.subject.inputs(OTHERS + CANDIDATES), self.subject.labels(OTHERS + CANDIDATES)
        lengths = [
            _length(self._raw(inputs[candidate], labels[candidate])) for candidate in range(OTHERS, OTHERS + CANDIDATES)
        ]
        chosen = [*range(OTHERS), OTHERS + int(np.argmax(lengths))]
        return inputs[chosen], labels[chosen]

    def _raw(self, inputs: Tensor, labels: Tensor) -> Gradient:
        """The gradient of one unit's loss, averaged over its records and views. The inputs have shape (R, K, ...)."""
        module, loss = self.subject.trained, self.subject.clipped_loss
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        views = self.subject.views
        losses = [loss(module(x), y.expand(views, *y.shape)) for x, y in zip(inputs, labels, strict=True)]
        gradients = torch.autograd.grad(sum(losses) / len(losses), list(trained.values()), allow_unused=True)  # type: ignore[arg-type]
        return {
            name: torch.zeros_like(value) if gradient is None else gradient.detach()
            for (name, value), gradient in zip(trained.items(), gradients, strict=True)
        }

    @cached_property
    def direction(self) -> Gradient:
        """The canary's gradient, normalised to length 1."""
        raw = self._raw(*(tensor[-1] for tensor in self.units))
        return {name: value / _length(raw) for name, value in raw.items()}

    @cached_property
    def reach(self) -> float:
        """The norm of the canary's clipped gradient over C: 1 if it is long enough to be clipped."""
        return min(1.0, _length(self._raw(*(tensor[-1] for tensor in self.units))) / self.subject.plan.max_norm)

    @cached_property
    def others_component(self) -> float:
        """The component of the others' clipped sum in the canary's direction."""
        raw = [self._raw(*(tensor[place] for tensor in self.units)) for place in range(OTHERS)]
        bound = self.subject.plan.max_norm
        return sum(min(1.0, bound / _length(gradient)) * _inner_product(gradient, self.direction) for gradient in raw)

    @cached_property
    def plan(self) -> PrivacyPlan:
        """The plan of single observations."""
        if self.first_steps:
            return self.subject.plan
        return with_noise(self.subject.plan, self.subject.plan.noise_multiplier / math.sqrt(self.merged), 10**6)

    @cached_property
    def gradient(self) -> CachedGradient:
        """The software's clipped gradient."""
        return CachedGradient(self.subject.gradient())

    @cached_property
    def runs(self) -> tuple[PrivateStep, ...]:
        """The software's steps of two runs, each with its own key."""
        return tuple(self._run(seed, f"audit of {self.subject.plan.fingerprint}") for seed in SEEDS)

    def _run(self, seed: int, context: str) -> PrivateStep:
        noise = self.subject.noise(self.plan, RunKey.from_seed(seed, context))
        return PrivateStep(plan=self.plan, gradient=self.gradient, noise=noise)

    def _released(self, place: int, *, canary: bool) -> Gradient:
        """The release of one step."""
        if not self.first_steps:
            return self.runs[canary](place, [self.batches[canary]])
        step = self._run(SEEDS[canary], f"run {place} of the audit of {self.subject.plan.fingerprint}")
        return step(0, [self.batches[canary]], step.noise.begin())[0]

    @cached_property
    def batches(self) -> dict[bool, tuple[Tensor, ...]]:
        """The arguments of the clipped gradient, without the canary and with it."""
        return {canary: self._batch(canary=canary) for canary in (False, True)}

    def _batch(self, *, canary: bool) -> tuple[Tensor, ...]:
        count = OTHERS + canary
        inputs, labels = (tensor[:count] for tensor in self.units)
        if self.subject.views == 1:
            inputs = inputs.squeeze(2)
        if self.subject.is_user_level:
            return inputs, labels, torch.full(labels.shape[:2], 1 / self.subject.records)
        return inputs.squeeze(1), labels.squeeze(1)

    def observe(self, place: int, *, canary: bool, residuals: Residuals | None = None) -> float:
        """One observation. If all is well, it is N(0, 1) without the canary and N(1 / sigma, 1) with it.

        Args:
            place: the step, in the run without or with the canary.
            residuals: collects the noise of the step.
        """
        private = self._released(place, canary=canary)
        scale = self.plan.expected_batch_size * self.plan.max_norm
        unit = self.plan.noise_multiplier * self.plan.max_norm
        if residuals is not None:
            residuals.add(int(canary), place, private, self.gradient.latest, scale=scale, unit=unit)
        component = scale * _inner_product(private, self.direction) - self.others_component
        return component / unit


def audit_step(
    subject: Subject, *, observations: int | None = None, confidence: float = 0.95, progress: Progress | None = None
) -> AuditOutcome:
    """A lower bound of a run's epsilon from its own step, and a check of its noise. Reads no data.

    Args:
        subject: the audited subject.
        observations: the number of observations with the canary, and without it; by default `OBSERVATIONS`, or as many
            as take `SECONDS`.
        confidence: the confidence of each bound.
        progress: where to report progress.

    **Guarantee.** Each bound exceeds the truth of what was observed with probability at most 1 - confidence. The
    threshold is half the nominal mu, and the number of observations is fixed before the first one counts. The first
    bound makes the assumption that it states. For full batches a second bound makes no assumption, and covers the steps
    that one observation represents. Without full batches there is no second bound: it would cover steps in which the
    canary is certain to take part, and could exceed the epsilon of the whole run, in which sampling hides the canary.
    There is no bound for correlated noise, since single steps prove nothing about epsilon. The check of the noise
    (`audit_noise`) reports a fault in correct noise with probability at most 1e-6. For independent noise it sees two
    runs of many steps. For correlated noise it sees the first steps of many runs, where the noise of every mechanism is
    N(0, 1) in each coordinate (`Noise`).
    """
    positive_integer(optional=True, observations=observations, remedy="give a number such as 5000")
    fraction(confidence=confidence, remedy="give a number such as 0.95")
    progress, plan = progress or NoProgress(), subject.plan
    merged = min(plan.steps, max(1, round((BEST_SEEN * plan.noise_multiplier) ** 2)))
    box = WhiteBox(subject=subject, merged=merged if plan.mechanism.independent else 1)
    count = observations or _affordable(box)
    progress.begin("observing private steps", 2 * count)
    seen, residuals = np.empty((2, count)), Residuals(box.gradient.zeros(), count)
    for place in range(count):
        for canary in (False, True):
            seen[int(canary), place] = box.observe(place, canary=canary, residuals=residuals)
        progress.advance(2 * place + 2)
    mu = 1 / box.plan.noise_multiplier
    details = {
        "observations": count,
        "merged_steps": box.merged,
        "steps": plan.steps,
        "reach": box.reach,
        "nominal_mu": mu,
        "histograms": _histograms(seen, mu),
    }
    bounds, sure = (_bounds(seen, box, confidence=level) for level in (confidence, max(confidence, SURE)))
    return AuditOutcome(
        nominal=plan.epsilon(),
        bounds=bounds,
        plan=plan.fingerprint,
        details=details,
        sure=sure,
        noise=audit_noise(residuals.parameter_noise, first_steps=box.first_steps),
    )


def _bounds(seen: np.ndarray, box: WhiteBox, *, confidence: float) -> tuple[Bound, ...]:
    """The bounds that observations (2, count), without the canary and with it, prove at this confidence."""
    if box.first_steps:
        return ()
    plan, mu = box.subject.plan, 1 / box.plan.noise_multiplier
    gaussian, plain = white_box(
        seen[1], seen[0], delta=plan.delta, confidence=confidence, thresholds=mu / 2, nominal_mu=mu
    )
    whole = _plan_bound(gaussian, plan, box.merged)
    # If the run samples, steps in which the unit is certain to take part would prove more than the whole run spends.
    return (whole, _step_bound(plain, plan, box.merged)) if plan.participation.name == FULL else (whole,)


def composed_epsilon(plan: PrivacyPlan, mu: float) -> tuple[float, str]:
    """The epsilon of the whole plan if a step with the unit has this mu, and the assumption behind it."""
    gaussian = "a Gaussian trade-off curve"
    if mu == 0:
        return 0.0, gaussian
    if plan.participation.name == FULL:
        return epsilon_of(mu * math.sqrt(plan.steps), plan.delta), gaussian
    if plan.participation.name == POISSON and plan.users is None:
        q = plan.sampling_probability
        return epsilon_of_mixture(mu, q, plan.steps, plan.delta), f"{gaussian}, and sampling with probability {q:.4g}"
    epsilon = with_noise(plan, 1 / mu, plan.steps).epsilon() if math.isfinite(mu) else math.inf
    return epsilon, f"{gaussian}, and the plan's own theorem for who takes part"


def _plan_bound(bound: Bound, plan: PrivacyPlan, merged: int) -> Bound:
    """The bound for the whole plan from a bound for `merged` steps at once."""
    each = 1 / math.sqrt(merged)
    epsilon, assumption = composed_epsilon(plan, (bound.mu or 0.0) * each)
    sizes = int(bound.observations["observed_in"]), int(bound.observations["observed_out"])
    largest_mu = mu_lower_bound(0, 0, sizes, 1 - bound.confidence)  # no observation on the wrong side
    most = composed_epsilon(plan, largest_mu * each)[0]
    return replace(
        bound,
        epsilon=epsilon,
        at_most=most,
        assumption=assumption,
        mu=(bound.mu or 0.0) * each,
        method=f"white box, {_steps(merged)} of {plan.steps:,} seen at once",
    )


def _step_bound(bound: Bound, plan: PrivacyPlan, merged: int) -> Bound:
    """The bound that makes no assumption, with a text about the steps that it covers."""
    covered = "the whole run" if merged == plan.steps else f"{_steps(merged)} in which the canary takes part"
    return replace(bound, method=f"white box, no assumption, of {covered}")


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def _affordable(box: WhiteBox) -> int:
    """The number of observations that take `SECONDS`, within `FEWEST` and `OBSERVATIONS`. Observations of the timing
    run don't count."""
    residuals = Residuals(box.gradient.zeros(), 1)
    box.observe(0, canary=True, residuals=residuals)  # exclude initialisation from the timing
    seconds = math.inf
    for _ in range(TRIED):
        began = time.perf_counter()
        box.observe(0, canary=True, residuals=residuals)
        seconds = min(seconds, time.perf_counter() - began)
    return max(FEWEST, min(OBSERVATIONS, int(SECONDS / (2 * seconds))))


def _histograms(seen: np.ndarray, mu: float) -> dict[str, list[float]]:
    """Histograms of the observations without and with the canary, in bins of equal width."""
    edges = np.linspace(min(-4.0, float(seen.min())), max(mu + 4.0, float(seen.max())), 41)
    without, with_canary = (np.histogram(world, edges)[0].tolist() for world in seen)
    return {"edges": edges.tolist(), "out": without, "in": with_canary}


def _inner_product(first: Gradient, second: Gradient) -> float:
    return float(sum((first[name].double() * second[name].double()).sum() for name in first))


def _length(gradient: Gradient) -> float:
    return math.sqrt(_inner_product(gradient, gradient))


def audit_run(
    directory: str | PathLike[str],
    *,
    model: nn.Module | str | None = None,
    observations: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditOutcome:
    """Attack a finished run's step on synthetic inputs, check its noise, and write the outcome to the run and its page.

    Args:
        directory: a run of `train`. None of its data are read, and nothing is spent.
        model: the model as for `load`, if the run trained a module of the caller's.
        observations: the number of steps with a canary, and without; by default 5,000, or as many as fit in 18 seconds.
        confidence: one minus the probability that a bound exceeds the truth.
        progress: where to report progress.

    Returns:
        The guaranteed epsilon, the bounds (none for correlated noise), the check of the noise (`noise`), and whether a
        bound lies above the guarantee or the noise is not the plan's (`refuted`).

    Errors: `SfumatoError` for anything but a finished private run of a classifier with its record, and for clipping
    norms that follow a quantile.
    """
    subject = from_run(directory, model=model)
    outcome = audit_step(subject, observations=observations, confidence=confidence, progress=progress)
    run = RunDirectory(directory)
    outcome.save(run)
    write(run / names.REPORT, run_report.report(run).encode(), private=True)
    return outcome
