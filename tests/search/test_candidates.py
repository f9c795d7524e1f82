"""Candidates: scored on the validation part, each record by itself."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.data import Records
from sfumato.experiment import Settings
from sfumato.privacy import CandidateCount, PrivacyPlan, PrivateSelection
from sfumato.runs.owner import sentences, uses
from sfumato.runs.owner.data_identity import DataIdentity
from sfumato.search.workers import count_correct
from sfumato.training.loop import Outcome
from sfumato.training.preparation.prepare import prepare

SETTINGS = Settings(model="module", optimizer="sgd", learning_rate=1.0)


@pytest.fixture(autouse=True)
def unlooked(monkeypatch):
    """A model over the batch is refused before it is scored; here the score alone must hold."""
    monkeypatch.setattr("sfumato.gradients.checks.mixing.refuse_mixing", lambda *_: None)


class Reader(nn.Module):
    """Reads the class off a pixel; one example beyond a bound would turn all answers of its batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.zero_()
            for label in range(4):
                self.head.weight[label, label] = 1.0

    def forward(self, x):
        x = x.flatten(1)
        loud = (x[:, 63].amax() > 0.99).float()
        return self.head(x) + 1e3 * loud * torch.tensor([1.0, 0.0, 0.0, 0.0])


def readable(count, *, loud):
    images = np.zeros((count, 8, 8, 1), np.uint8)
    labels = 1 + np.arange(count) % 3
    images[np.arange(count), 0, labels] = 255
    if loud:
        images[0, 7, 7] = 255
    return Records(images=images, labels=labels)


def test_one_record_moves_the_count_by_one_at_most(spots, plan):
    job = prepare(Reader(), spots, plan, SETTINGS)
    outcome = Outcome(step=1, weights=dict(job.module.state_dict()), seconds=0.0)
    validation = readable(20, loud=True)
    without = Records(images=validation.images[1:], labels=validation.labels[1:])
    assert count_correct(job, outcome, without) == 19
    assert abs(count_correct(job, outcome, validation) - 19) <= 1


def test_the_score_is_taken_on_the_records_that_are_given(spots, plan):
    job = prepare(Reader(), spots, plan, SETTINGS)
    outcome = Outcome(step=1, weights=dict(job.module.state_dict()), seconds=0.0)
    for count in (1, 7, 300):
        assert count_correct(job, outcome, readable(count, loud=False)) == count


def test_the_list_of_uses_keeps_selections():
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=10, noise_multiplier=20.0, delta=1e-4)
    selection = PrivateSelection(plan=plan, draws=CandidateCount(mean=5), score_noise=None)
    uses.record(data := DataIdentity(("f" * 64,)), plan, run="a")
    uses.record(data, selection, run="b")
    assert uses.earlier_uses(data).plans == [plan, selection]
    assert "2 earlier runs" in sentences.earlier_runs_note([plan, selection], selection)
