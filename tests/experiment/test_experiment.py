"""What is asked for, from Python and from the command line alike, and what follows by rule."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from sfumato import PrivacyPlan, SfumatoError, train
from sfumato._choices import choices_of
from sfumato.cli.options.choices import PrivateChoices
from sfumato.experiment import Settings
from sfumato.experiment.experiment import Experiment, forecast
from sfumato.experiment.from_keywords import experiment_of, from_choices, settings_of


def test_the_command_line_asks_for_what_an_experiment_holds():
    assert {one.name for one in fields(Experiment)} <= {one.name for one in fields(PrivateChoices)}
    assert set(choices_of(Settings)) < {one.name for one in fields(Experiment)}


@pytest.mark.parametrize("asked", [{}, {"noise_multiplier": 4.0, "steps": 9, "model": "cnn", "shift": 2}])
def test_python_and_the_command_line_decide_alike(spots, asked):
    assert Experiment(**asked).decide(spots) == PrivateChoices(**asked).experiment.decide(spots)


@pytest.mark.parametrize("epsilon", [0.01, 2.0])
def test_what_is_said_before_training_depends_on_public_facts_alone(spots, epsilon):
    alike = replace(spots.train, labels=np.zeros_like(spots.train.labels), images=spots.train.images[::-1] // 2)
    asked, sources = Experiment(epsilon=epsilon), (spots, replace(spots, train=alike))
    one, other = (asked.decide(each) for each in sources)
    assert any("are few for this noise" in line for line in one.reasons) == (epsilon < 1)
    assert one == other
    expected = {forecast(one.plan, one.settings, each) for each in sources}
    assert len(expected) == 1
    assert None not in expected


def test_a_budget_alone_is_enough(spots, tmp_path):
    run = train(None, spots, epsilon=8.0, delta=1e-3, steps=3, directory=tmp_path / "run", threads=1)
    assert run.statement.plan.steps == 3
    assert run.statement.epsilon <= 8.0
    assert run.load().module is not None


def test_settings_beside_a_budget_are_kept_whole():
    settings = Settings(model="cnn", learning_rate=1.0, trainable=("head",))
    asked = experiment_of(settings, None, None, {"epsilon": 2.0})
    assert (asked.model, asked.learning_rate, asked.ema, asked.epsilon) == ("cnn", 1.0, settings.averages.ema, 2.0)
    with pytest.raises(SfumatoError, match="settings and views are both given"):
        experiment_of(settings, None, None, {"epsilon": 2.0, "views": 2})
    with pytest.raises(SfumatoError, match="the model is linear, but the settings have cnn"):
        experiment_of(settings, "linear", None, {"epsilon": 2.0})
    assert experiment_of(None, None, None, {"steps": 3, "views": 2}) == Experiment(ema=0.0, steps=3, views=2)


CHOSEN = {
    "model": "cnn", "pretrained": "weights.safetensors", "pretrained_weights": "ema", "head": "new",
    "head_deviation": 0.01, "head_bias": -1.0, "loss": "sigmoid", "class_prevalence": {"a": 0.25, "b": 0.75},
    "pretrained_rate": 0.5, "trainable": ("head",), "optimizer": "adam", "learning_rate": 0.3, "momentum": 0.8,
    "weight_decay": 0.1, "schedule": "cosine", "warmup": 2, "views": 3, "shift": 2, "flip": True, "zoom": 1.0,
    "crop_area": 1.0, "ema": 0.9, "ema_form": "constant", "aggregate": "ema", "aggregate_from": 2,
    "aggregate_last": None, "aggregate_restart": True, "normalisation": "public-batch", "public_data": "digits",
    "public_examples": 64, "noise": "secure", "seed": 4,
}  # fmt: skip


def test_every_choice_goes_through_all_forms():
    settings = Settings(**CHOSEN)
    assert settings.flat() == CHOSEN
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert replace(settings, seed=5).flat() == {**CHOSEN, "seed": 5}
    assert replace(Settings(model="linear", learning_rate=1.0), **CHOSEN) == settings
    assert replace(settings, warmup=1).flat() == {**CHOSEN, "warmup": 1}
    asked = experiment_of(settings, None, None, {"epsilon": 2.0})
    assert {name: getattr(asked, name) for name in CHOSEN} == CHOSEN


def test_fields_that_are_none_are_refused():
    with pytest.raises(SfumatoError, match="learning_rat is not a field of Settings; did you mean learning_rate"):
        from_choices(Settings, {"learning_rat": 1.0})
    with pytest.raises(SfumatoError, match="model, learning_rate must be given"):
        from_choices(Settings, {})
    settings = Settings(model="cnn", learning_rate=1.0)
    assert settings_of(settings, "cnn", None, {}) is settings


def test_every_part_of_a_budget_is_heard(spots):
    plan = Experiment(epsilon=2.0, delta=1e-4, batch_size=200, steps=7, max_norm=0.25).decide(spots).plan
    assert (plan.delta, plan.expected_batch_size, plan.steps, plan.max_norm) == (1e-4, 200, 7, 0.25)
    assert 1.99 < plan.epsilon() <= 2.0
    noisy = Experiment(noise_multiplier=9.0, batch_size=50, steps=7, delta=1e-4).decide(spots).plan
    assert (noisy.noise_multiplier, noisy.expected_batch_size, noisy.steps) == (9.0, 50, 7)
    longest = Experiment(epsilon=2.0, noise_multiplier=9.0, batch_size=200, delta=1e-4).decide(spots).plan
    assert longest.epsilon() <= 2.0 < longest.epsilon(steps=longest.steps + 1)
    largest = Experiment(epsilon=0.5, noise_multiplier=3.0, steps=1, delta=1e-4).decide(spots).plan
    assert largest.expected_batch_size < 200
    assert 0.4 < largest.epsilon() <= 0.5


def test_a_plan_meets_its_budget_by_the_accountant_that_was_asked_for(spots):
    sizes = {"steps": 7, "batch_size": 50, "delta": 1e-4}
    decided = Experiment(epsilon=2.0, accountant="rdp", **sizes).decide(spots)
    assert 1.99 < decided.plan.epsilon(accountant="rdp") <= 2.0
    assert decided.plan.noise_multiplier > Experiment(epsilon=2.0, **sizes).decide(spots).plan.noise_multiplier
    assert "note: the plan meets epsilon 2 by Renyi DP; the guarantee, by PLD, is smaller" in decided.reasons
    bounds = {"epsilon": 2.0, "noise_multiplier": decided.plan.noise_multiplier - 0.02, **sizes}
    assert Experiment(**bounds).decide(spots).plan.epsilon() < 2.0
    with pytest.raises(SfumatoError, match=r"give epsilon 2\.\d+ by Renyi DP, above epsilon 2"):
        Experiment(**bounds, accountant="rdp").decide(spots)
    with pytest.raises(SfumatoError, match="accountant 'rdp' is given, and no epsilon that a plan should meet"):
        Experiment(noise_multiplier=1.0, accountant="rdp", **sizes).decide(spots)


def test_a_momentum_that_sgd_has_none_of_is_refused(spots):
    with pytest.raises(SfumatoError, match=r"momentum is 0.5, but the optimizer sgd has no momentum"):
        Experiment(optimizer="sgd", momentum=0.5).decide(spots)


def test_an_order_by_position_takes_one_pass_and_says_what_it_leaves_out(spots):
    decided = Experiment(order="position", steps=40, epsilon=3.0).decide(spots)
    assert decided.plan.expected_batch_size == 5
    assert "batch size 5 (by rule: a single pass: each example takes part once)" in decided.reasons
    fewer = replace(spots, examples=100)
    reasons = Experiment(order="position", steps=20, epsilon=3.0).decide(fewer).reasons
    assert any("but only the first 100 records have bins" in line for line in reasons)
    assert not any("steps have about" in line for line in reasons)


@pytest.mark.parametrize(("given", "meant"), [("treads", "threads"), ("reprt_epsilon", "report_epsilon")])
@pytest.mark.parametrize("planned", [False, True])
def test_an_unknown_keyword_of_train_is_refused_with_the_one_that_was_meant(spots, tmp_path, given, meant, planned):
    plan = PrivacyPlan.calibrate(examples=spots.examples, batch_size=20, steps=2, epsilon=3.0, delta=1e-5)
    with pytest.raises(SfumatoError, match=f"^{given} is not a field of Experiment; did you mean {meant}$"):
        train("linear", spots, plan if planned else None, directory=tmp_path / "run", **{given: 1})
    assert not (tmp_path / "run").exists()


def test_a_bound_is_none_to_a_thousandth_below(spots):
    asked = Experiment(epsilon=90.0, noise_multiplier=1.0, steps=5, batch_size=200)
    cost = asked.decide(spots).plan.epsilon()
    assert replace(asked, epsilon=cost).decide(spots).plan.epsilon() == cost
    with pytest.raises(SfumatoError, match=r"give epsilon .*, above epsilon"):
        replace(asked, epsilon=0.999 * cost).decide(spots)
