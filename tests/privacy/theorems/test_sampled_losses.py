"""The losses of a sampled Gaussian, all at once, are those that dp-accounting finds one by one."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from sfumato.privacy.composition import Composition, RepeatedLosses
from sfumato.privacy.theorems.sampled_losses import sampled_gaussian


@pytest.mark.parametrize(
    ("sigma", "probability", "width"),
    [(1.0, 0.01, 1e-2), (4.0, 0.3, 3.3e-3), (0.3, 1e-4, 1e-2), (2.0, 0.999, 3.3e-3), (2.0, 1.0, 1e-2)],
)
def test_losses_are_those_of_dp_accounting(sigma, probability, width):
    known = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=width
    )
    found = sampled_gaussian(sigma, probability, width)
    assert found._symmetric == known._symmetric
    for one, other in ((found._pmf_remove, known._pmf_remove), (found._pmf_add, known._pmf_add)):
        one, other = one.to_dense_pmf(), other.to_dense_pmf()
        assert (one.size, one._lower_loss) == (other.size, other._lower_loss)
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12, abs=1e-300)
        np.testing.assert_allclose(one._probs, other._probs, rtol=1e-12, atol=1e-15)


def test_hardly_any_noise_has_losses_beyond_all_numbers():
    found = sampled_gaussian(1e-3, 0.3, 51.0)
    known = privacy_loss_distribution.from_gaussian_mechanism(
        1e-3, sampling_prob=0.3, value_discretization_interval=51.0
    )
    assert found.get_epsilon_for_delta(1e-5) == pytest.approx(known.get_epsilon_for_delta(1e-5), rel=1e-12)
    removed = Composition([RepeatedLosses.from_curve(found._pmf_remove, 1)], 51.0)
    near = [1.0, 100.0, 600.0]
    np.testing.assert_allclose(removed.deltas(near), known.get_delta_for_epsilon(near), rtol=1e-8)
    far = removed.deltas([1e3, 4e5, 1e9])  # of which dp-accounting's own are not numbers
    assert far[0] == pytest.approx(0.3, rel=1e-6)
    assert (np.diff(far) <= 0).all()
    assert found._pmf_remove._infinity_mass <= far[-1] < 1e-16
