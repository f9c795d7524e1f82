"""Small plans that stand for large ones: the same noise on the mean gradient of a step, from fewer examples.

Source: Sander, Stock and Sablayrolles 2023, "TAN without a burn: scaling laws of DP-SGD" (arXiv 2210.03403).
"""

from __future__ import annotations

import math
from dataclasses import replace

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy import Fixed, FullBatch, Poisson, PrivacyPlan

LEAST_NOISE_OF_THE_LAW = 2.0
"""From this noise multiplier on, about, epsilon follows from the noise of all steps together, as the paper finds."""


def total_noise(plan: PrivacyPlan) -> float:
    """The total amount of noise, TAN: 1 / eta with eta^2 = q^2 T / (2 sigma^2), the paper's definition.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=5000, steps=800, noise_multiplier=4.0, delta=1e-5)
    >>> round(total_noise(plan), 9), round(total_noise(simulated(plan, 20)), 9)
    (2.0, 2.0)
    """
    return math.sqrt(2 / plan.steps) * plan.noise_multiplier / plan.sampling_probability


def simulated(plan: PrivacyPlan, factor: int) -> PrivacyPlan:
    """The plan of a run that is `factor` times cheaper and learns about as much, at constant TAN.

    Batch size and noise multiplier are divided by `factor`, and the steps stay. So each step's mean gradient has the
    same noise, sigma C / B in each direction; what differs is that it is a mean of fewer examples. A batch size is a
    whole number, and the noise multiplier follows it, so that sigma / B is kept and not sigma itself.

    Args:
        plan: of the run that is simulated: independent noise, Poisson sampling or full batches, a fixed clipping norm.
            A full batch becomes a Poisson sample.
        factor: by how much the batch is smaller, at most the batch size; 1 is the plan itself.

    **Guarantee.** The result is a plan like any other: what it promises is its own `epsilon()`, for the same unit,
    adjacency and delta, from its own noise and sampling. Below a noise multiplier of about 2 that is far more than the
    simulated plan's. Nothing of the simulated plan's promise holds for a run by this one.

    Errors: `SfumatoError` for a factor out of range, and for a plan that the law does not speak of.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=500, noise_multiplier=8.0, delta=1e-6)
    >>> small = simulated(plan, 16)
    >>> small.expected_batch_size, small.noise_multiplier, small.steps
    (256, 0.5, 500)
    >>> round(plan.epsilon(), 2), round(small.epsilon(), 2)
    (0.98, 7.99)
    """
    batch = plan.expected_batch_size
    if positive_integer("factor", factor, remedy="give by how much smaller batches are to be, such as 16") == 1:
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
    """Refuse a plan whose steps are not alike: of others nothing says what a smaller batch would learn."""
    if not plan.mechanism.independent:
        raise SfumatoError(
            f"a simulation is for independent noise, and the mechanism is {plan.mechanism.name}",
            "leave one of them out",
        )
    if type(plan.participation) not in (Poisson, FullBatch):
        raise SfumatoError(
            f"a simulation is for Poisson sampling and full batches, and participation is {plan.participation.name}",
            "leave one of them out",
        )
    if not isinstance(plan.clipping, Fixed):
        raise SfumatoError("a simulation is for a fixed clipping norm, and this one adapts", "leave one of them out")


def outside_the_law(small: PrivacyPlan, plan: PrivacyPlan) -> str | None:
    """What to say of a simulation whose epsilon the law of total noise does not give; None where it does."""
    if small.noise_multiplier >= LEAST_NOISE_OF_THE_LAW:
        return None
    return (
        f"a noise multiplier of {small.noise_multiplier:.3g} is below {LEAST_NOISE_OF_THE_LAW:g}, where epsilon no "
        f"longer follows from the noise of all steps: such a run has epsilon {small.epsilon():.4g}, where the one that "
        f"it simulates has {plan.epsilon():.4g}. It says which settings learn best, and promises its own epsilon"
    )
