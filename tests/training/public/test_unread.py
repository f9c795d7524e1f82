"""No choice of a training without a promise is taken and ignored: of `pretrain`, and of the printed algorithm."""

from __future__ import annotations

from functools import partial

import pytest

import sfumato
from sfumato import SfumatoError
from sfumato.cli.options.observed import Observed
from sfumato.cli.verbs.train import Train
from sfumato.experiment import Experiment
from sfumato.training.public import printed_run
from tests.unread import BUDGET, CHOICES, refused, spots

pytestmark = pytest.mark.usefixtures("one_key")

CLAIMED = {"delta", "adjacency", "largest_batch"}
"""What says what would be claimed, and need not move a weight."""
READ = {"what", "seeds", "dry_run"}
"""What `sfumato train` has read by then."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = spots(tmp_path_factory.mktemp("spots"), 8)
    return sfumato.open_source(place, owner_key=sfumato.owner_key(), public=True)


def pretrained(source, place, **choices):
    given = {"batch_size": 12, "steps": 3, "learning_rate": 0.5, "ema": 0.0, "averaging": None, **choices}
    sfumato.pretrain("linear", source, directory=place, seed=1, threads=1, device="cpu", **given)


def printed(source, place, **choices):
    given = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 12, "steps": 3, "learning_rate": 0.5, "ema": 0.0}
    given |= {"model": "lenet-300-100,norm=batch", "normalisation": "printed-2020", "public_data": "digits", "seed": 1}
    given |= choices | ({"noise_multiplier": None} if "epsilon" in choices else {})
    printed_run.train(source, Experiment(**given), directory=place, device="cpu", threads=1)


LENGTHS = {name: BUDGET[name] for name in ("batch_size", "steps", "max_norm")}


@pytest.mark.parametrize("further", [{}, {"optimizer": "momentum", "schedule": "cosine", "ema": 0.9}])
def test_pretrain(source, tmp_path, further):
    changed = {name: value for name, value in (CHOICES | LENGTHS).items() if further.get(name) != value}
    assert len(refused(partial(pretrained, source, **further), changed, tmp_path)) < 0.6 * len(changed)


def test_the_printed_algorithm(source, tmp_path):
    changed = {name: value for name, value in (CHOICES | BUDGET).items() if name != "public_data"}
    found = refused(partial(printed, source), changed, tmp_path, recorded=CLAIMED)
    assert len(found) < 0.8 * len(changed)
    with pytest.raises(SfumatoError, match="the plan does not go by time"):
        printed(source, tmp_path / "clock", start="5", period="2")


@pytest.mark.parametrize(
    "name", sorted({*vars(Train)["__annotations__"], *Observed.__annotations__, "precision", "micro_batch"} - READ)
)
def test_the_printed_algorithm_refuses_what_is_around_a_run(name):
    asked = Train(what="digits", public=True, normalisation="printed-2020", **{name: "digits"})
    with pytest.raises(SfumatoError, match=name.replace("_", "[-_]")):
        asked.printed()
