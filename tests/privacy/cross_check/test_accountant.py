"""The package's epsilon lies between the bounds of a second accountant, which shares no code with it."""

import ast
import functools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan
from sfumato.privacy import BandedToeplitz, CyclicPoisson, FixedOrder, QuantileClipping, Tree, TruncatedPoisson, User
from tests.privacy.cross_check.accountant import bounds
from tests.privacy.cross_check.releases import OneRelease, Steps, releases


def plan(**parts) -> PrivacyPlan:
    usual = {"population": 50_000, "participation": Poisson(batch_size=4096), "steps": 875, "delta": 1e-5}
    return PrivacyPlan(**(usual | {"mechanism": Gaussian(noise_multiplier=10.0)} | parts))


def sigma(value: float) -> Gaussian:
    return Gaussian(noise_multiplier=value)


ORDER = FixedOrder(batch_size=250)
BANDS = BandedToeplitz(noise_multiplier=3.0, coefficients=(1.0, 0.5, 0.3, 0.1))
PLANS = {
    "De table 13, epsilon 1": (plan(), 0.9028),
    "DP-FedEmb, by 2C": (
        plan(
            population=6800,
            participation=Poisson(batch_size=256),
            steps=200,
            mechanism=sigma(0.62),
            delta=1e-4,
            unit=User(clients=True),
        ),
        62.18,
    ),
    "amplified bands": (
        plan(population=1600, participation=CyclicPoisson(batch_size=1, groups=16), steps=128, mechanism=sigma(1.0)),
        0.35841,
    ),
    "full batches": (plan(participation=FullBatch(), steps=60, mechanism=sigma(15.0)), None),
    "a fixed order": (plan(population=1000, participation=ORDER, steps=9, mechanism=sigma(3.0)), None),
    "a tree": (plan(population=1000, participation=ORDER, steps=9, mechanism=Tree(noise_multiplier=3.0)), None),
    "completed trees": (
        plan(
            population=1000,
            participation=ORDER,
            steps=23,
            mechanism=Tree(noise_multiplier=9.0, steps_per_tree=10, completed=True),
        ),
        None,
    ),
    "bands": (plan(population=1000, participation=ORDER, steps=23, mechanism=BANDS), None),
    "bands in turns": (
        plan(population=1000, participation=CyclicPoisson(batch_size=10, groups=8), steps=230, mechanism=BANDS),
        None,
    ),
    "a quantile": (plan(clipping=QuantileClipping(count_noise=7.0)), None),
    "zero-out": (plan(steps=20, adjacency="zero-out"), None),
}
"""Plans, with the epsilon that dp-accounting or their papers have for them, where it is known."""


@functools.cache
def bounds_of(name):
    one, _ = PLANS[name]
    return bounds(one.to_dict(), one.delta)


@pytest.mark.parametrize("name", PLANS)
def test_the_first_accountant_lies_within_its_bounds(name):
    one, published = PLANS[name]
    found = bounds_of(name)
    assert found.lower <= one.epsilon() <= found.upper * 1.001
    assert found.upper <= found.lower * 1.01
    assert published is None or one.epsilon() == pytest.approx(published, rel=1e-3)


def test_two_hundredths_less_would_be_noticed():
    for name in ("De table 13, epsilon 1", "a tree", "bands in turns"):
        assert bounds_of(name).lower > 0.98 * PLANS[name][0].epsilon()


def test_it_speaks_of_no_plan_that_it_has_not_been_written_for():
    cut = plan(population=1000, participation=TruncatedPoisson(batch_size=100, largest=150), adjacency="zero-out")
    assert bounds(cut.to_dict(), 1e-5) is None
    rising = plan(population=1000, participation=ORDER, steps=8, mechanism=replace(BANDS, coefficients=(1.0, 0.1, 0.5)))
    assert releases(rising.to_dict()) is None


def test_what_the_steps_come_to_is_counted_and_not_taken_over():
    squares = {(8, 8): 4, (9, 4): 11, (7, 3): 9}
    for (steps, gap), square in squares.items():
        one = plan(
            population=10 * gap,
            participation=FixedOrder(batch_size=10),
            steps=steps,
            mechanism=Tree(noise_multiplier=1.0),
        )
        assert releases(one.to_dict()) == OneRelease(math.sqrt(square))
    found = releases(plan().to_dict())
    assert isinstance(found, Steps)
    q = 4096 / 50_000
    assert found.weights == pytest.approx([1 - q, q])


def test_many_steps_or_a_tiny_delta_never_give_a_bound_that_is_not_one():
    """Where rounding is more than delta there is no upper bound."""
    one = replace(plan(steps=10), delta=1e-200)
    assert bounds(one.to_dict(), one.delta).upper == math.inf


def test_at_a_small_delta_the_first_accountant_lies_within_its_bounds():
    delta = 1e-14
    one = plan(population=750_000, participation=Poisson(batch_size=250), steps=10_000, mechanism=sigma(0.7))
    found = bounds(one.to_dict(), delta)
    assert found is not None
    assert found.lower <= one.epsilon(delta) <= found.upper < 1.05 * found.lower


ALLOWED = ("__future__", "collections", "dataclasses", "functools", "math", "numpy", "scipy", "typing")


def test_no_line_of_it_uses_the_first_accountant():
    folder = Path(__file__).parent
    for path in (folder / "accountant.py", folder / "releases.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [node.module] if isinstance(node, ast.ImportFrom) else []
            named += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for name in filter(None, named):
                known = name.split(".")[0] in ALLOWED or name.startswith("tests.privacy.cross_check")
                assert known, (path.name, name)
