"""The losses of a sampled Gaussian, all at once, are those that dp-accounting finds one by one."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from sfumato.privacy.theorems.sampled_losses import sampled_gaussian


@pytest.mark.parametrize(
    ("sigma", "probability"), [(1.0, 0.01), (4.0, 0.3), (0.5, 0.9), (20.0, 0.5), (0.3, 1e-4), (2.0, 0.999), (2.0, 1.0)]
)
@pytest.mark.parametrize("width", [1e-2, 3.3e-3])
def test_losses_are_those_of_dp_accounting(sigma, probability, width):
    known = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=width
    )
    found = sampled_gaussian(sigma, probability, width)
    assert found._symmetric == known._symmetric
    for one, other in ((found._pmf_remove, known._pmf_remove), (found._pmf_add, known._pmf_add)):
        assert type(one) is type(other)
        one, other = one.to_dense_pmf(), other.to_dense_pmf()
        assert (one.size, one._lower_loss) == (other.size, other._lower_loss)
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12, abs=1e-300)
        np.testing.assert_allclose(one._probs, other._probs, rtol=1e-12, atol=1e-15)
