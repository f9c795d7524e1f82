"""Default rules: complete, bounded by the budget, and blind to the data."""

from __future__ import annotations

import inspect
import re

import pytest

from sfumato import PrivacyPlan
from sfumato.training import defaults
from sfumato.training.settings import Settings


def plan(examples: int = 1000, epsilon: float = 3.0) -> PrivacyPlan:
    sizes = {name: rule.value for name, rule in defaults.plan_rules(examples).items()}
    return PrivacyPlan.calibrate(examples=examples, epsilon=epsilon, delta=1e-5, **sizes)


@pytest.mark.parametrize("examples", [1, 40, 20_000, 20_001, 60_000, 1_281_167])
def test_batch_and_steps_make_a_plan(examples):
    rules = defaults.plan_rules(examples)
    assert 1 <= rules["batch_size"].value <= examples
    assert rules["steps"].value >= 1
    assert (rules["batch_size"].value == examples) == (examples <= defaults.FULL_BATCH_UP_TO)


def test_the_rate_grows_with_the_budget_and_is_rounded_to_be_read():
    rates = [
        defaults.training_rules(plan(epsilon=epsilon), given={}, size=28, channels=1)["learning_rate"].value
        for epsilon in (1.0, 3.0, 8.0)
    ]
    assert rates == sorted(rates)
    assert all(float(f"{rate:.2g}") == rate for rate in rates)


def test_the_rate_is_the_equation_of_its_docstring():
    found = plan()
    rate = defaults.training_rules(found, given={}, size=28, channels=1)["learning_rate"].value
    kappa = rate * defaults.FEATURE_NORM * found.noise_multiplier * found.steps**0.5 / (found.expected_batch_size * 0.1)
    assert kappa == pytest.approx(defaults.NOISE_ON_A_LOGIT, rel=0.06)


@pytest.mark.parametrize("given", [{}, {"model": "cnn"}, {"optimizer": "adam"}, {"views": 4}, {"momentum": 0.5}])
def test_every_setting_is_chosen(given):
    rules = defaults.training_rules(plan(), given=given, size=28, channels=3)
    values = {name: rule.value for name, rule in rules.items()} | given
    assert Settings(**values)


def test_views_bring_a_shift_and_colour_a_flip():
    rules = defaults.training_rules(plan(), given={"views": 8}, size=32, channels=3)
    assert (rules["shift"].value, rules["flip"].value) == (4, True)
    rules = defaults.training_rules(plan(), given={"views": 8}, size=8, channels=1)
    assert (rules["shift"].value, rules["flip"].value) == (1, False)


def test_colour_photographs_are_mirrored_unless_that_was_ruled_out():
    for given, expected in (({}, (2, 0, True)), ({"flip": False}, (1, 0, False)), ({"model": "cnn"}, (1, 0, False))):
        rules = defaults.training_rules(plan(), given=given, size=32, channels=3)
        assert tuple(rules[name].value for name in ("views", "shift", "flip")) == expected


def test_reasons_are_given_for_what_was_not_asked_for():
    rules = defaults.training_rules(plan(), given={}, size=28, channels=1)
    lines = defaults.reasons(rules, {"model": "cnn"})
    assert not any(line.startswith("by rule: model") for line in lines)
    assert any(line.startswith("by rule: learning rate") for line in lines)


def test_the_rules_take_nothing_that_holds_images():
    for rule in (defaults.plan_rules, defaults.training_rules):
        assert "source" not in inspect.signature(rule).parameters


def test_a_plan_by_which_little_can_be_learnt_is_named_with_what_would_help():
    few = plan(examples=320)
    told = defaults.weak_signal(few, 40)
    assert told is not None
    assert "40 classes of about 8 images each" in told
    found = re.search(r"epsilon ([\d.]+) in place of 3, some (\d+) images of each class", told)
    assert found is not None
    richer, larger = plan(examples=320, epsilon=1.03 * float(found[1])), plan(examples=40 * int(found[2]))
    for enough in (richer, larger):
        assert defaults.signal_per_class(enough, 40) >= defaults.ENOUGH_SIGNAL
        assert defaults.weak_signal(enough, 40) is None
    assert defaults.weak_signal(plan(examples=1438), 10) is None, "digits"
    assert "epsilon" not in (defaults.weak_signal(plan(examples=320), 100_000) or "epsilon")


def test_the_signal_of_a_class_is_the_equation_of_its_docstring():
    found = plan(examples=30_000)
    signal = found.expected_batch_size * found.steps**0.5 / found.noise_multiplier / 7
    assert defaults.signal_per_class(found, 7) == pytest.approx(signal)
