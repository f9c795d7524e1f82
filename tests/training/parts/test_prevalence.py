"""The shares that the scores of a model with class weights are for: in the model file, and where they are declared."""

import numpy as np
import torch

from sfumato import PrivacyPlan, open_source, train
from sfumato.experiment.settings import Settings
from sfumato.models.losses import logit_offsets

TRAINED, USED = {"normal": 0.26, "pneumonia": 0.74}, {"normal": 0.38, "pneumonia": 0.62}
SETTINGS = Settings(
    model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None, class_prevalence=TRAINED
)
PLAN = PrivacyPlan.calibrate(examples=160, batch_size=80, steps=20, noise_multiplier=4.0, delta=1e-5)


def test_with_weights_scores_hold_where_all_classes_are_as_frequent(tmp_path):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(256, size=(200, 8, 8), dtype=np.uint8), generator.integers(2, size=200)
    given = {"x": images, "y": labels}
    source = open_source(given, owner_key=bytes(32), classes=("normal", "pneumonia"), examples=160)
    run = train(None, source, PLAN, directory=tmp_path / "run", settings=SETTINGS, threads=1, device="cpu")
    loaded, given = run.load(), list(images[:20])
    assert loaded.reading.shares == {"normal": 0.5, "pneumonia": 0.5}
    there = loaded.with_prevalence(USED)
    expected = torch.tensor(logit_offsets((0.5, 0.5), (0.38, 0.62), loss="softmax"))
    assert torch.allclose(there.predict(given), (loaded.logits(given) + expected).softmax(1))
    (line,) = [line for line in run.statement.not_covered if "by which examples are weighted" in line]
    assert "(normal 0.26, pneumonia 0.74). sfumato trusts the owner" in line
