"""The rules for a linear head on fixed features: which features, and how to train the head. Public facts alone."""

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
BAG, NEXT_WORDS = "bag", "lstm"
HEAD = f"head,norm={WAVELET_NORM}"
HEAD_RATE = 0.01


class Rule(NamedTuple):
    """One choice and its reason."""

    value: Any
    reason: str


class FixedFeatures(NamedTuple):
    """The constants of a linear head on fixed features.

    Args:
        norm: R, the Euclidean norm of a feature vector.
        noise_on_a_logit: kappa, the standard deviation that the noise of a whole run may add to a logit.
        full_batch_up_to: largest N for full-batch steps.
        steps: T with full batches.
        largest_rate: upper bound of the learning rate. Above it steps overshoot if all feature vectors are similar, as
            those of drawings are.
    """

    norm: float = WAVELET_NORM
    noise_on_a_logit: float = 3.0
    full_batch_up_to: int = FULL_BATCH_UP_TO
    steps: int = STEPS_FULL_BATCH
    largest_rate: float = math.inf

    def rate(self, plan: PrivacyPlan, momentum: float) -> float:
        """The learning rate eta at which the noise of T steps moves a logit by kappa, to two digits.

        The noise of one step finally moves a weight by eta sigma / B / (1 - momentum), that of T steps by sqrt(T) times
        as much, and a logit is the product of the weights with features of norm R. So
        kappa = eta R sigma sqrt(T) / (B (1 - momentum)). If the noise is correlated across steps, the noise that
        remains in the last weights replaces sqrt(T) / (1 - momentum).
        """
        if plan.mechanism.independent:
            in_a_weight = math.sqrt(plan.steps) / (1 - momentum)
        else:
            in_a_weight = plan.noise_in_weights(momentum).final
        noise = plan.noise_multiplier * in_a_weight / plan.expected_batch_size
        return float(f"{min(self.largest_rate, self.noise_on_a_logit / (noise * self.norm)):.2g}")

    @property
    def public_rate(self) -> float:
        """The learning rate without privacy: below 2 (1 + 0.9) over the curvature, which grows with R^2."""
        return HEAD_RATE * (WAVELET_NORM / self.norm) ** 2


FIXED = {
    SCATTERING: FixedFeatures(),
    DICTIONARY: FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, full_batch_up_to=100_000, steps=100),
    BOTH: FixedFeatures(),
    BAG: FixedFeatures(),
    HEAD: FixedFeatures(),
}
"""By model. A dictionary may be combined with any share of wavelets."""
GREY_ALONE = FixedFeatures(norm=dictionary.FEATURE_NORM, noise_on_a_logit=1.2, steps=100, largest_rate=6.0)
"""For the dictionary without wavelets on grey images."""


def model_rule(
    *,
    given: Mapping[str, Any],
    size: int,
    channels: int,
    cached: int | None = None,
    texts: bool = False,
    next_words: bool = False,
) -> Rule:
    """The model for these records. The arguments are those of `defaults.training_rules`."""
    if next_words:
        return Rule(NEXT_WORDS, "the network of Reddi et al. 2021 and Kairouz et al. 2021")
    if texts:
        return Rule(BAG, "a linear model of the words in a text: few weights to add noise to")
    if cached is not None:
        return Rule(HEAD, "one linear layer on features of equal norm")
    if size < dictionary.SMALLEST or (channels == 3 and given.get("flip") is False):
        return Rule(SCATTERING, "a linear head on fixed public wavelet features: few weights to add noise to")
    model, what = DICTIONARY, "fixed features learnt on synthetic images"
    if channels == 1:
        model, what = BOTH, "fixed public wavelet features and fixed features learnt on synthetic images"
    if size > dictionary.LARGEST_WORKING_SIDE:
        what += f", of images downsampled to {dictionary.WORKING_SIDE} pixels"
    return Rule(model, f"a linear head on {what}: few weights to add noise to")


def fixed_features(model: str, channels: int = 3) -> FixedFeatures | None:
    """The constants of a model that is a linear head on fixed features; None for other models."""
    if model == DICTIONARY and channels == 1:
        return GREY_ALONE
    return FIXED.get(BOTH if is_prior(model) and model != DICTIONARY else model)
