"""The package's epsilon lies between the bounds of a second accountant, which shares no code with it."""

import ast
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
PUBLISHED = {
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
}
"""Plans with the epsilon that dp-accounting has for them, or their papers."""
OTHERS = {
    "full batches": plan(participation=FullBatch(), steps=60, mechanism=sigma(15.0)),
    "a fixed order": plan(population=1000, participation=ORDER, steps=9, mechanism=sigma(3.0)),
    "a tree": plan(population=1000, participation=ORDER, steps=9, mechanism=Tree(noise_multiplier=3.0)),
    "completed trees": plan(
        population=1000,
        participation=ORDER,
        steps=23,
        mechanism=Tree(noise_multiplier=9.0, steps_per_tree=10, completed=True),
    ),
    "bands": plan(population=1000, participation=ORDER, steps=23, mechanism=BANDS),
    "bands in turns": plan(
        population=1000, participation=CyclicPoisson(batch_size=10, groups=8), steps=230, mechanism=BANDS
    ),
    "a quantile": plan(clipping=QuantileClipping(count_noise=7.0)),
    "zero-out": plan(adjacency="zero-out"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_comes_to_the_published_figures(name):
    one, known = PUBLISHED[name]
    found = bounds(one.to_dict(), one.delta)
    assert found is not None
    assert found.lower < known * 1.001
    assert found.upper > known * 0.999
    assert found.upper < found.lower * 1.01


@pytest.mark.parametrize("name", OTHERS)
def test_the_first_accountant_lies_within_its_bounds(name):
    one = OTHERS[name]
    found = bounds(one.to_dict(), one.delta)
    assert found is not None
    assert found.lower <= one.epsilon() <= found.upper * 1.001
    assert found.upper <= found.lower * 1.01


def test_two_hundredths_less_would_be_noticed():
    for one in (PUBLISHED["De table 13, epsilon 1"][0], OTHERS["a tree"], OTHERS["bands in turns"]):
        assert bounds(one.to_dict(), one.delta).lower > 0.98 * one.epsilon()


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
