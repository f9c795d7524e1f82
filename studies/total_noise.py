"""Small plans that simulate large ones: the same noise on the mean gradient of a step, with fewer examples.

Source: Sander, Stock and Sablayrolles 2023, "TAN without a burn: scaling laws of DP-SGD" (arXiv 2210.03403).
"""

from __future__ import annotations

import math
from dataclasses import replace

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy import FixedClipping, FullBatch, Poisson, PrivacyPlan

LEAST_NOISE_OF_THE_LAW = 2.0
"""The approximate least noise multiplier for which epsilon follows from the total noise, according to the paper."""


def total_noise(plan: PrivacyPlan) -> float:
    """The total amount of noise, TAN: 1 / eta with eta^2 = q^2 T / (2 sigma^2), the paper's definition.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=5000, steps=800, noise_multiplier=4.0, delta=1e-5)
    >>> round(total_noise(plan), 9), round(total_noise(scaled_plan(plan, 20)), 9)
    (2.0, 2.0)
    """
    return math.sqrt(2 / plan.steps) * plan.noise_multiplier / plan.sampling_probability


def scaled_plan(plan: PrivacyPlan, factor: int) -> PrivacyPlan:
    """The plan of a run that is `factor` times cheaper and learns about as much, at constant TAN.

    Batch size and noise multiplier are divided by `factor`; the number of steps stays. Each step's mean gradient then
    has the same noise, sigma C / B in each direction, but is a mean over fewer examples. The batch size is rounded to a
    whole number, and the noise multiplier is scaled with it, which keeps sigma / B.

    Args:
        plan: the plan to simulate, with independent noise, Poisson sampling or full batches, and a fixed clipping norm.
            A full batch becomes a Poisson sample.
        factor: the factor by which the batch is smaller, at most the batch size; 1 returns the plan itself.

    **Guarantee.** The result is an ordinary plan. It promises its own `epsilon()`, for the same unit, adjacency and
    delta, from its own noise and sampling. Below a noise multiplier of about 2 this is far more than that of the
    simulated plan. Nothing of the simulated plan's promise holds for a run by this plan.

    Errors: `SfumatoError` for a factor out of range, and for a plan to which the law does not apply.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=500, noise_multiplier=8.0, delta=1e-6)
    >>> small = scaled_plan(plan, 16)
    >>> small.expected_batch_size, small.noise_multiplier, small.steps
    (256, 0.5, 500)
    >>> round(plan.epsilon(), 2), round(small.epsilon(), 2)
    (0.98, 7.99)
    """
    batch = plan.expected_batch_size
    if positive_integer(factor=factor, remedy="give the factor by which batches are smaller, such as 16") == 1:
        return plan
    if factor > batch:
        raise SfumatoError(
            f"factor {factor} leaves no example of a batch of {batch}",
            f"give at most {batch}" if batch > 1 else "leave it out, or give a larger batch",
        )
    _refuse_other(plan)
    size = round(batch / factor)
    mechanism = replace(plan.mechanism, noise_multiplier=plan.noise_multiplier * size / batch)
    return replace(plan, participation=Poisson(batch_size=size), mechanism=mechanism)


def _refuse_other(plan: PrivacyPlan) -> None:
    """Refuse a plan to which the law does not apply."""
    if not plan.mechanism.independent:
        raise SfumatoError(
            f"a simulation is for independent noise, but the mechanism is {plan.mechanism.name}",
            "leave one of them out",
        )
    if type(plan.participation) not in (Poisson, FullBatch):
        raise SfumatoError(
            f"a simulation is for Poisson sampling and full batches, but participation is {plan.participation.name}",
            "leave one of them out",
        )
    if not isinstance(plan.clipping, FixedClipping):
        raise SfumatoError(
            "a simulation is for a fixed clipping norm, but this one is adaptive", "leave one of them out"
        )


def law_violation(small: PrivacyPlan, plan: PrivacyPlan) -> str | None:
    """A note on a simulation whose epsilon does not follow from the law of total noise; None if it does."""
    if small.noise_multiplier >= LEAST_NOISE_OF_THE_LAW:
        return None
    return (
        f"a noise multiplier of {small.noise_multiplier:.3g} is below {LEAST_NOISE_OF_THE_LAW:g}, where epsilon no "
        f"longer follows from the noise of all steps: such a run has epsilon {small.epsilon():.4g}, where the one that "
        f"it simulates has {plan.epsilon():.4g}. It says which settings learn best, and promises its own epsilon"
    )
