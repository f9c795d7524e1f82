"""No choice of a training is taken and ignored, whatever kind of run it is given to."""

from dataclasses import fields
from functools import partial
from typing import Any

import pytest

import sfumato
from sfumato.experiment import Experiment
from tests.unread import BUDGET, CHOICES, refused, spots

pytestmark = pytest.mark.usefixtures("one_key")

RECORDED = {"delta", "adjacency", "largest_batch", "mechanism", "steps_per_tree"}
"""What says what is promised, and need not move a weight; noise of one band is that of
none, and another tree begins as the first one goes on."""
KINDS: dict[str, dict[str, Any]] = {
    "head": {"model": "linear"},
    "fixed order": {"model": "linear", "participation": "fixed-order", "mechanism": "tree", "adjacency": "zero-out"},
    "momentum": {"model": "linear", "optimizer": "momentum", "schedule": "cosine", "ema": 0.9},
}


def test_every_choice_is_tried():
    assert {one.name for one in fields(Experiment)} - {"model", "seed"} == set(CHOICES) | set(BUDGET)


def opened(folder, side, **declared):
    return sfumato.open_source(spots(folder, side), owner_key=sfumato.owner_key(), **declared)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("spots"), 16)


def trained(source, place, **choices):
    given = {"noise_multiplier": 8.0, "delta": 1e-3, "batch_size": 12, "steps": 3, "learning_rate": 0.5, "ema": 0.0}
    given |= choices | ({"noise_multiplier": None} if "epsilon" in choices else {})
    given = {name: value for name, value in given.items() if value is not None}
    how = {"seed": 1, "threads": 1, "device": "cpu", "keep": 0, "averaging": None}
    sfumato.train(given.pop("model"), source, directory=place, **how, **given)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "head"]


@pytest.mark.parametrize("kind", ["head", *SLOW])
def test_a_choice_that_is_given_changes_the_result_or_is_refused(source, tmp_path, kind):
    changed = {name: value for name, value in (CHOICES | BUDGET).items() if KINDS[kind].get(name) != value}
    train = partial(trained, source, **KINDS[kind])
    assert len(refused(train, changed, tmp_path, recorded=RECORDED)) < 0.8 * len(changed), "or nothing would be tried"


LENGTHS = {name: BUDGET[name] for name in ("batch_size", "steps", "max_norm")}


@pytest.mark.parametrize("further", [{}, {"optimizer": "momentum", "schedule": "cosine", "ema": 0.9}])
def test_so_it_is_in_training_without_privacy(tmp_path, further):
    public = opened(tmp_path, 8, public=True)

    def pretrained(place, **choices):
        given = {
            "batch_size": 12,
            "steps": 3,
            "learning_rate": 0.5,
            "ema": 0.0,
            "averaging": None,
            **further,
            **choices,
        }
        sfumato.pretrain("linear", public, directory=place, seed=1, threads=1, device="cpu", **given)

    changed = {name: value for name, value in (CHOICES | LENGTHS).items() if further.get(name) != value}
    assert len(refused(pretrained, changed, tmp_path)) < 0.6 * len(changed)
