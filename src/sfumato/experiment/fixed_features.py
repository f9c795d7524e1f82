"""Which fixed features stand under a linear head by rule, and how such a head is trained: from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sfumato.models import is_prior
from sfumato.models.networks import dictionary
from sfumato.models.networks.dictionary import WAVELET_NORM
from sfumato.privacy import PrivacyPlan

FULL_BATCH_UP_TO = 20_000
STEPS_FULL_BATCH = 60
SCATTERING, DICTIONARY, BOTH = "scattering", "dictionary", "dictionary,wavelets=0.85"
BAG = "bag"
HEAD = f"head,norm={WAVELET_NORM}"
HEAD_RATE = 0.01


class Rule(NamedTuple):
    """One choice and its reason."""

    value: Any
    reason: str


class FixedFeatures(NamedTuple):
    """What the rules know of a linear head on fixed features.

    Args:
        norm: R, the Euclidean norm of a feature vector.
        noise_on_a_logit: by how much the noise of a whole run may move a logit, as a standard deviation.
        full_batch_up_to: N up to which all examples take part in every step.
        steps: T of these.
        largest_rate: above it steps overshoot where all features have much in common, as those of drawings.
    """

    norm: float = WAVELET_NORM
    noise_on_a_logit: float = 3.0
    full_batch_up_to: int = FULL_BATCH_UP_TO
    steps: int = STEPS_FULL_BATCH
    largest_rate: float = math.inf

    def rate(self, plan: PrivacyPlan, momentum: float) -> float:
        """The rate eta for which the noise of T steps moves a logit by kappa, in two digits.

        One step moves a weight by eta sigma / B / (1 - momentum) in the end; T steps by sqrt(T) times that; a logit is
        the product with features of norm R. So kappa = eta R sigma sqrt(T) / (B (1 - momentum)). Of noise that hangs
        together over the steps, what is left in the last weights stands in place of sqrt(T) / (1 - momentum).
        """
        if plan.mechanism.independent:
            in_a_weight = math.sqrt(plan.steps) / (1 - momentum)
        else:
            in_a_weight = plan.noise_in_weights(momentum).final
        noise = plan.noise_multiplier * in_a_weight / plan.expected_batch_size
        return float(f"{min(self.largest_rate, self.noise_on_a_logit / (noise * self.norm)):.2g}")

    @property
    def public_rate(self) -> float:
        """The rate of training without privacy: below 2 (1 + 0.9) over the curvature, which grows with R^2."""
        return HEAD_RATE * (WAVELET_NORM / self.norm) ** 2


FIXED = {
    SCATTERING: FixedFeatures(),
    DICTIONARY: FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, full_batch_up_to=100_000, steps=100),
    BOTH: FixedFeatures(),
    BAG: FixedFeatures(),
    HEAD: FixedFeatures(),
}
"""By model; wavelets beside a dictionary may have any share."""
GREY_ALONE = FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, steps=100, largest_rate=6.0)
"""Of the dictionary for grey images without wavelets."""


def model_rule(
    *, given: Mapping[str, Any], size: int, channels: int, cached: int | None = None, texts: bool = False
) -> Rule:
    """The model for these records; the arguments are those of `defaults.training_rules`."""
    if texts:
        return Rule(BAG, "a linear model of which words a text has: little to put noise on")
    if cached is not None:
        return Rule(HEAD, "one linear layer on features of one norm")
    if size < dictionary.SMALLEST or (channels == 3 and given.get("flip") is False):
        return Rule(SCATTERING, "fixed public wavelet features, a linear head: little to put noise on")
    model, what = DICTIONARY, "fixed features learnt on synthetic images"
    if channels == 1:
        model, what = BOTH, "fixed public wavelet features, and others learnt on synthetic images beside them"
    if size > dictionary.LARGEST_WORKING_SIDE:
        what += f" of images averaged down to {dictionary.WORKING_SIDE} pixels"
    return Rule(model, f"{what}, a linear head: little to put noise on")


def fixed_features(model: str, channels: int = 3) -> FixedFeatures | None:
    """What is known of a model that is a linear head on fixed features; None of others."""
    if model == DICTIONARY and channels == 1:
        return GREY_ALONE
    return FIXED.get(BOTH if is_prior(model) and model != DICTIONARY else model)
