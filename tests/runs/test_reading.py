"""From logits to scores: what is added, and what may be declared of which model."""

from pathlib import Path

import pytest
import torch

from sfumato import SfumatoError
from sfumato.models.description import parse_description
from sfumato.models.losses import logit_offsets, probabilities
from sfumato.runs.loaded import Reading, refuse_unreadable

CLASSES = ("normal", "pneumonia")
TRAINED, USED = {"normal": 0.26, "pneumonia": 0.74}, {"normal": 0.62, "pneumonia": 0.38}
OUTPUTS = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) * 4
PLAIN = Reading(classes=CLASSES, loss="softmax")


def test_without_anything_logits_stay_as_they_are():
    assert PLAIN.logits(OUTPUTS) is OUTPUTS
    assert PLAIN.notes == []
    assert PLAIN.to_dict() == PLAIN.as_data == {}


def test_declared_shares_move_the_scores():
    whole = Reading(classes=CLASSES, loss="softmax", shares=TRAINED, prevalence=USED)
    moved = torch.tensor(logit_offsets((0.26, 0.74), (0.62, 0.38), loss="softmax"))
    assert torch.allclose(whole.logits(OUTPUTS), OUTPUTS + moved)
    assert torch.allclose(whole.scores(OUTPUTS), probabilities(OUTPUTS + moved, "softmax"))
    assert len(whole.notes) == 1


def test_what_a_user_declares_is_in_place_of_what_was_kept():
    kept = Reading(classes=CLASSES, loss="softmax", shares=TRAINED, prevalence=TRAINED)
    assert kept.with_prevalence(["pneumonia=0.38", "normal=0.62"]).prevalence == USED
    assert kept.with_prevalence(None) is kept


def test_shares_that_are_not_known_are_not_guessed():
    with pytest.raises(SfumatoError, match="does not hold the class shares that its scores are for; train with"):
        PLAIN.with_prevalence(USED)
    known = Reading(classes=CLASSES, loss="softmax", shares=TRAINED)
    assert known.with_prevalence(USED).offsets == logit_offsets((0.26, 0.74), (0.62, 0.38), loss="softmax")
    with pytest.raises(SfumatoError, match="prevalence has no share for the class 'normal'"):
        known.with_prevalence({"pneumonia": 0.999})
    with pytest.raises(SfumatoError, match=r"prevalence names must be one of .*; got 'cat'"):
        known.with_prevalence({"cat": 0.5, "normal": 0.5})
    several = Reading(classes=CLASSES, loss="multilabel", shares={"normal": 0.5, "pneumonia": 0.5})
    with pytest.raises(SfumatoError, match="this model predicts several labels"):
        several.with_prevalence(USED)


def test_a_file_that_speaks_of_other_classes_is_refused():
    with pytest.raises(SfumatoError, match="shares of other classes"):
        refuse_unreadable(Reading(classes=CLASSES, loss="softmax", shares={"cat": 0.5, "normal": 0.5}), Path("model"))
    refuse_unreadable(PLAIN, Path("model"))


@pytest.mark.parametrize(("name", "value"), [("shares", {"normal": 1.5, "pneumonia": 0.5}), ("shares", [0.5, 0.5])])
def test_a_file_that_says_what_cannot_be_is_refused(name, value):
    import json

    about = {
        "model": "linear", "classes": list(CLASSES), "transform": {}, "test_fraction": 0.2, "channels": 1, "size": 8,
        "loss": "softmax", "trained_on": [], "statement": {"epsilon": 1.0, "origins": [], "filtered": False},
    }  # fmt: skip
    good = about | {"shares": TRAINED}
    assert parse_description({"sfumato": json.dumps(good)}, "model") == good
    with pytest.raises(SfumatoError, match=f"says of its model that {name} is"):
        parse_description({"sfumato": json.dumps(about | {name: value})}, "model")
