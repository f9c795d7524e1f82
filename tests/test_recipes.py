"""Every recipe can be read, plans to the epsilon that it states, and builds its model. No data are looked at."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sfumato import _checks, cli, models, optim
from sfumato.cli import recipe
from sfumato.cli.train import Train
from sfumato.data import source
from sfumato.privacy import PrivacyPlan
from sfumato.training import Settings

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
KNOWN = {field.name for field in fields(Train)} - {"what", "json", "dry_run"}
ABOUT = {"paper", "command", "epsilon", "delta", "accuracy", "hardware", "time"}
SHAPES = {"digits": (10, 1, 8), "MNIST": (10, 1, 28), "FashionMNIST": (10, 1, 28), "CIFAR10": (10, 3, 32)}
each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def about(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))["about"]


def plan(options: dict[str, Any]) -> PrivacyPlan:
    names = ("examples", "delta", "batch_size", "steps", "noise_multiplier", "epsilon", "max_norm")
    return PrivacyPlan.calibrate(**{name: options[name] for name in names if name in options})


def test_there_are_recipes():
    assert len(RECIPES) >= 3


@each_recipe
def test_it_plans_to_the_epsilon_that_it_states(path: Path):
    found = plan(recipe.read(str(path), KNOWN))
    stated = about(path)
    assert found.delta == stated["delta"]
    assert found.epsilon() <= stated["epsilon"]
    assert found.epsilon() == pytest.approx(stated["epsilon"], rel=0.01)


@each_recipe
def test_it_says_what_to_expect_and_its_command_is_its_own(path: Path):
    stated = about(path)
    assert set(stated) >= ABOUT
    verb = cli.parse(shlex.split(stated["command"])[1:])
    assert isinstance(verb, Train)
    assert (ROOT / verb.what).resolve() == path.resolve()


@each_recipe
def test_its_source_model_and_optimizer_exist(path: Path):
    options = recipe.read(str(path), KNOWN)
    kind, argument = source.parse(options["source"])
    classes, channels, size = SHAPES[argument or kind]
    model = models.create(options["model"], classes=classes, channels=channels, size=size)
    names = {field.name for field in fields(Settings)}
    settings = Settings(**{name: value for name, value in options.items() if name in names})
    choices = {"learning_rate": settings.learning_rate, "momentum": settings.momentum}
    optim.create(settings.optimizer, model.parameters(), weight_decay=settings.weight_decay, **choices)
    optim.schedule(settings.schedule, steps=options["steps"], warmup=settings.warmup)


def test_a_recipe_that_overstates_its_privacy_would_be_found():
    options = recipe.read(str(ROOT / "recipes" / "digits.toml"), KNOWN)
    assert plan({**options, "epsilon": 3.1}).epsilon() > about(ROOT / "recipes" / "digits.toml")["epsilon"]


def test_an_unknown_option_is_refused_by_name(tmp_path: Path):
    (tmp_path / "odd.toml").write_text('source = "digits"\nepsilom = 3\n')
    with pytest.raises(_checks.SfumatoError, match="epsilom"):
        recipe.read(str(tmp_path / "odd.toml"), KNOWN)
