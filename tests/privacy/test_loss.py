"""Delta at many epsilons, without looking at each privacy loss by itself."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from sfumato.privacy.loss import deltas_of

WIDTH = 1e-2


@pytest.mark.parametrize(("sigma", "probability", "steps"), [(1.0, 0.01, 100), (4.0, 0.3, 20), (0.5, 1.0, 3)])
def test_deltas_are_those_of_dp_accounting(sigma, probability, steps):
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=WIDTH
    ).self_compose(steps)
    generator = np.random.default_rng(0)
    for largest in (0.1, 3.0, 100.0):
        epsilons = np.sort(generator.uniform(0, largest, 20)).tolist()
        np.testing.assert_allclose(
            deltas_of(losses, epsilons), losses.get_delta_for_epsilon(epsilons), rtol=1e-9, atol=1e-15
        )
    for way in (losses._pmf_remove, losses._pmf_add):
        everywhere = WIDTH * np.arange(way._lower_loss - 2, way._lower_loss + way.size + 3)
        np.testing.assert_allclose(
            deltas_of(way, everywhere), way.get_delta_for_epsilon(everywhere), rtol=1e-9, atol=1e-15
        )
    assert deltas_of(losses, [1.0, np.inf])[-1] == losses.get_delta_for_epsilon([np.inf])[0]
    assert deltas_of(losses, []).tolist() == []
