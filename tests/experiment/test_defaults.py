"""Default rules: complete, bounded by the budget, and blind to the data."""

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from sfumato import PrivacyPlan
from sfumato.experiment import defaults
from sfumato.experiment.settings import Settings
from sfumato.models import create
from sfumato.privacy.planning.by_name import request_by_names

GREY = defaults.Records(size=28, channels=1)


def plan(examples: int = 1000, epsilon: float = 3.0) -> PrivacyPlan:
    sizes = {name: rule.value for name, rule in defaults.plan_rules(examples).items()}
    return PrivacyPlan.calibrate(examples=examples, epsilon=epsilon, delta=1e-5, **sizes)


@pytest.mark.parametrize("examples", [1, 20_000, 20_001, 1_281_167])
def test_batch_and_steps_make_a_plan(examples):
    rules = defaults.plan_rules(examples)
    assert 1 <= rules["batch_size"].value <= examples
    assert rules["steps"].value >= 1
    assert (rules["batch_size"].value == examples) == (examples <= defaults.FULL_BATCH_UP_TO)


def test_the_rate_grows_with_the_budget_and_is_rounded_to_be_read():
    rates = [
        defaults.training_rules(plan(epsilon=epsilon), GREY, {})["learning_rate"].value for epsilon in (1.0, 3.0, 8.0)
    ]
    assert rates == sorted(rates)
    assert all(float(f"{rate:.2g}") == rate for rate in rates)


@pytest.mark.parametrize("model", [defaults.SCATTERING, defaults.DICTIONARY])
def test_the_rate_is_the_equation_of_its_docstring(model):
    found, features = plan(), defaults.FIXED[model]
    rate = defaults.training_rules(found, GREY, {"model": model})["learning_rate"].value
    kappa = rate * features.norm * found.noise_multiplier * found.steps**0.5 / (found.expected_batch_size * 0.1)
    assert kappa == pytest.approx(features.noise_on_a_logit, rel=0.06)


@pytest.mark.parametrize(
    ("given", "size", "channels", "expected"),
    [
        ({}, 32, 3, "dictionary"),
        ({}, 28, 1, "dictionary,wavelets=0.85"),  # of drawings wavelets tell more, studies/results/notes.md
        ({"flip": False}, 32, 3, "scattering"),  # its features of colour images are those of their mirror images
        ({}, 8, 1, "scattering"),
        ({}, 15, 3, "scattering"),
    ],
)
def test_the_model_follows_from_size_and_colour(given, size, channels, expected):
    records = defaults.Records(size, channels)
    assert defaults.model_rule(records, given).value == expected
    assert defaults.training_rules(plan(), records, given)["model"].value == expected


@pytest.mark.parametrize("model", [defaults.SCATTERING, defaults.DICTIONARY, defaults.BOTH])
def test_the_norm_that_the_rules_know_is_that_of_the_features(model):
    some = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)) * 2 - 1
    network = create(model, classes=2, channels=1, size=28)
    norms = network.features(some).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((4,), defaults.FIXED[model].norm), rtol=0.1, atol=0)


def test_the_dictionary_takes_all_examples_in_every_step_of_more_of_them():
    features = defaults.FIXED[defaults.DICTIONARY]
    for examples in (2000, 50_000, features.full_batch_up_to, features.full_batch_up_to + 1):
        rules = defaults.plan_rules(examples, features=features)
        assert (rules["batch_size"].value == examples) == (examples <= features.full_batch_up_to)
        assert (rules["steps"].value == features.steps) == (examples <= features.full_batch_up_to)


@pytest.mark.parametrize("given", [{}, {"model": "cnn"}, {"optimizer": "adam", "views": 4}])
def test_every_setting_is_chosen(given):
    rules = defaults.training_rules(plan(), defaults.Records(28, 3), given)
    values = {name: rule.value for name, rule in rules.items()} | given
    assert Settings(**values)


@drawn(st.integers(1, 3000), st.integers(1, 200))
def test_what_comes_in_an_order_is_seen_once(examples, steps):
    """By steps, by batch size, and by neither: no example takes part twice, and few take no part."""
    request = request_by_names(examples=examples, order="position")
    steps = min(steps, examples)
    by_steps = defaults.plan_rules(examples, request, steps=steps)
    assert -(-examples // by_steps["batch_size"].value) >= by_steps["steps"].value == steps
    largest = by_steps["batch_size"].value + 1
    assert steps == 1 or -(-examples // largest) < steps or largest > -(-examples // steps)
    batch = min(steps, examples)
    for rules in (defaults.plan_rules(examples, request, batch_size=batch), defaults.plan_rules(examples, request)):
        assert -(-examples // rules["batch_size"].value) == rules["steps"].value
