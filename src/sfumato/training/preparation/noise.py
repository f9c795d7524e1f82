"""Which noise a run has by its settings, what cannot have it, and what a statement says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from sfumato.experiment.budget import SECURE
from sfumato.experiment.settings import Settings
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.privacy.noise_grid import refuse_without_grid
from sfumato.randomness import Noise, RunKey


def noise_of(settings: Settings, plan: PrivacyPlan, key: RunKey, *, max_norm: float | None = None) -> Noise:
    """The noise of the plan's mechanism.

    Args:
        max_norm: in place of the plan's, where sums come in other units.
    """
    return noise_named(settings.noise, plan, key, max_norm=max_norm)


def noise_named(noise: str, plan: PrivacyPlan, key: RunKey, *, max_norm: float | None = None) -> Noise:
    """The same by the setting's name; what audits a run takes its noise from here too."""
    how: dict[str, Any] = {"max_norm": plan.max_norm if max_norm is None else max_norm, "key": key}
    if noise != SECURE:
        return Noise(plan.mechanism, **how)
    from sfumato.randomness.noise.secure import SecureNoise

    refuse_without_grid(plan.mechanism, plan.clipping)
    return SecureNoise(plan.mechanism, **how)


def refuse_noise(noise: str | None, mechanism: Any, clipping: Any = None) -> None:
    """Refuse secure noise where there is none: see `refuse_without_grid`."""
    if noise == SECURE:
        refuse_without_grid(mechanism, clipping)


def with_noise(
    facts: Circumstances, noise: str, plan: PrivacyPlan, zeros: Mapping[str, Tensor], *, alone: bool
) -> Circumstances:
    """What the statement must say, with what it must say of secure noise.

    Args:
        noise: the setting's name.
        zeros: the sum over no units.
        alone: whether each vector of a sum reaches the grid by itself (`NoiseGrid`).
    """
    if noise != SECURE:
        return facts
    from sfumato.randomness.noise.secure import grid_of

    refuse_without_grid(plan.mechanism, plan.clipping)
    elements = sum(value.numel() for value in zeros.values())
    grid = grid_of(plan.noise_multiplier, elements, alone=alone)
    return replace(facts, noise_sampler=grid.words, noise_grid=grid)
