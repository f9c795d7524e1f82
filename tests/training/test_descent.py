"""Training moves the weights by LAMB's formula, at the run's own rates: on a head, on a whole network whose layers have
rates of their own, and on the server of federated training."""

import numpy as np
import pytest
from torch import nn

from sfumato import PrivacyPlan, SfumatoError, train
from sfumato.experiment.settings import Settings
from sfumato.training import loop
from sfumato.training.weights import check_choices
from tests.papers.formulas import mehta2022 as printed

STEPS, RATE, SLOWER = 5, 0.3, 0.1
SCHEDULE = {"schedule": "linear", "warmup": 2}


class Walk:
    """Where a run's weights began, by which gradients they were moved, and where they are now."""

    def __init__(self):
        self.start, self.gradients, self._parameters = {}, [], {}

    def follow(self, parameters, gradient):
        self.start = self.start or _copied(parameters)
        self.gradients.append(_copied(gradient))
        self._parameters = parameters

    def distance(self, slower: tuple[str, ...] = (), **of_formula) -> float:
        """From where LAMB's formula leads along these gradients, those layers at a slower rate, in parts of a norm."""
        rates, parts = RATE * np.array(printed.warmed_line(STEPS, 2)), []
        for name, now in _copied(self._parameters).items():
            along, own = [[gradient[name]] for gradient in self.gradients], rates * (SLOWER if name in slower else 1)
            expected = printed.lamb([self.start[name]], along, own, **of_formula)[-1][0]
            parts.append(np.linalg.norm(now - expected) / (np.linalg.norm(expected) or 1.0))
        return max(parts)


@pytest.fixture
def walk(monkeypatch) -> Walk:
    followed, descend = Walk(), loop.descend

    def following(optimizer, parameters, gradient):
        followed.follow(parameters, gradient)
        descend(optimizer, parameters, gradient)

    monkeypatch.setattr(loop, "descend", following)
    return followed


def planned(examples: int) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=examples, batch_size=examples, steps=STEPS, noise_multiplier=4.0, delta=1e-3)


def test_no_optimizer_is_made_to_check_a_choice(monkeypatch):
    """With its first one torch imports its compiler, which takes seconds."""
    monkeypatch.setattr("sfumato.optim.create", None)
    module, settings = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), Settings(model="linear", learning_rate=0.1)
    check_choices(module, settings, steps=3)
    with pytest.raises(SfumatoError, match="parameters must not be empty"):
        check_choices(module.requires_grad_(False), settings, steps=3)


def test_a_whole_network_walks_by_lamb_its_layers_at_their_own_rates(walk, spots, options, tmp_path):
    """The multiplier alpha of Mehta et al. 2022, table 7, is on the rate, outside the ratio; decay lies inside."""
    choices = {"optimizer": "lamb", "learning_rate": RATE, "averaging": None, "views": 1, "shift": 0}
    further = {"pretrained_rate": SLOWER, "weight_decay": 0.01, **SCHEDULE}
    train("cnn", spots, planned(200), directory=tmp_path / "run", **{**options, **choices, **further})
    below = tuple(name for name in walk.start if not name.startswith("head."))
    assert 0 < len(below) < len(walk.start)
    assert walk.distance(below, decay=0.01) < 1e-6
    for wrong in ({"ratio": lambda weight, update: 1.0, "decay": 0.01}, {"decay": 0.0}):
        assert walk.distance(below, **wrong) > 1e-5, wrong
    assert walk.distance(decay=0.01) > 1e-2, "one rate for all layers"


def _copied(tensors) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy().copy() for name, value in tensors.items()}
