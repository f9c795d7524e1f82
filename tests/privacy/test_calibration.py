"""The search for the least value: what it returns was computed, and few values are."""

import pytest

from sfumato import SfumatoError
from sfumato.privacy import PrivacyPlan, loss
from sfumato.privacy.calibration import MOST_NOISE, least_within
from sfumato.privacy.loss import COARSE_GRID, FINE_GRID
from sfumato.privacy.participation import TruncatedPoisson


@pytest.mark.parametrize("apart", [1.0, 1.00004, 1.003, 1.02, 1.5])
@pytest.mark.parametrize("scale", [0.7, 60.0])
def test_a_fine_grid_that_asks_for_more_is_met_in_few_tries(scale, apart):
    """Whatever lies between both grids' answers, the first step of the ladder that is enough is found."""
    tried = []

    def spent(value, grid):
        tried.append((value, grid))
        return scale / value if grid == COARSE_GRID else scale * apart / value

    found = least_within(spent, 1.0, what="noise", remedy="give less", guess=scale)
    assert (found, FINE_GRID) in tried
    assert scale * apart <= found <= scale * apart * (1 + 1.1e-5) + 1.1e-4
    assert len(tried) < 60


def test_a_fine_grid_that_never_has_enough_is_a_refusal():
    with pytest.raises(SfumatoError, match="no noise"):
        least_within(
            lambda value, grid: 1 / value if grid == COARSE_GRID else 2.0, 1.0, what="noise", remedy="give more"
        )
    assert MOST_NOISE == 1e7


@pytest.mark.slow
def test_truncated_sampling_at_the_smallest_delta_is_planned_in_few_compositions():
    """It took 195, and 43 seconds; their epsilons on the fine grid fall by no rule there."""
    loss._epsilon.cache_clear()
    plan = PrivacyPlan.calibrate(
        examples=75_000,
        steps=1000,
        epsilon=1.0,
        delta=1e-15,
        batch_size=25,
        adjacency="zero-out",
        participation=TruncatedPoisson(batch_size=25, largest=60),
    )
    assert loss._epsilon.cache_info().misses < 50
    assert 0.99 < plan.epsilon() <= 1.0


@pytest.mark.parametrize("unknown", ["noise_multiplier", "steps", "batch_size"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_what_is_found_is_the_best_that_meets_epsilon_by_the_accountant(unknown, accountant):
    given = {"noise_multiplier": 2.0, "steps": 400, "batch_size": 100}
    del given[unknown]
    found = PrivacyPlan.calibrate(examples=2000, epsilon=3.0, delta=1e-5, accountant=accountant, **given)
    assert 2.96 < found.epsilon(accountant=accountant) <= 3.0
    assert found.epsilon() <= 3.0
