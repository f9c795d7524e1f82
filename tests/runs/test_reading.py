"""From logits to scores: the temperature first, then what is added; and what may be declared of which model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sfumato import SfumatoError
from sfumato.models.losses import probabilities
from sfumato.models.shares import logit_offsets
from sfumato.models.weights.description import parse_description
from sfumato.runs.figures.operating import OperatingPoint
from sfumato.runs.reading import Reading, refuse_unreadable

CLASSES = ("normal", "pneumonia")
TRAINED, USED = {"normal": 0.26, "pneumonia": 0.74}, {"normal": 0.62, "pneumonia": 0.38}
OUTPUTS = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) * 4
POINT = OperatingPoint(positive="pneumonia", threshold=0.8, rule="balanced")
PLAIN = Reading(classes=CLASSES, loss="softmax")


def test_without_anything_logits_stay_as_they_are():
    assert PLAIN.logits(OUTPUTS) is PLAIN.decision_logits(OUTPUTS) is OUTPUTS
    assert PLAIN.notes == []
    assert PLAIN.to_dict() == PLAIN.as_data == {}
    tempered = Reading(classes=CLASSES, loss="softmax", temperature=2.0)
    assert (tempered.logits(OUTPUTS) == OUTPUTS / 2.0).all()


def test_the_temperature_comes_first():
    whole = Reading(
        classes=CLASSES, loss="softmax", temperature=4.0, shares=TRAINED, prevalence=USED, operating_point=POINT
    )
    moved = torch.tensor(logit_offsets((0.26, 0.74), (0.62, 0.38), loss="softmax")) + torch.tensor(
        POINT.offsets(CLASSES)
    )
    assert torch.allclose(whole.logits(OUTPUTS), OUTPUTS / 4 + moved)
    assert torch.allclose(whole.decision_logits(OUTPUTS) / 4, whole.logits(OUTPUTS), atol=1e-6)
    assert torch.allclose(whole.scores(OUTPUTS), probabilities(OUTPUTS / 4 + moved, "softmax"))
    assert len(whole.notes) == 2


def test_a_threshold_is_one_half_of_the_moved_scores():
    point = Reading(classes=CLASSES, loss="softmax", operating_point=POINT)
    named = OUTPUTS.softmax(1)[:, 1] >= 0.8
    assert ((point.scores(OUTPUTS)[:, 1] >= 0.5) == named).all()
    assert 0 < named.sum() < 20


def test_what_a_user_declares_is_in_place_of_what_was_kept():
    kept = Reading(classes=CLASSES, loss="softmax", shares=TRAINED, prevalence=TRAINED, operating_point=POINT)
    there = kept.with_prevalence(["pneumonia=0.38", "normal=0.62"])
    assert (there.prevalence, there.operating_point) == (USED, None)
    by_shares = Reading(
        classes=CLASSES,
        loss="softmax",
        shares=USED,
        operating_point=OperatingPoint(positive="pneumonia", threshold=0.6, rule="shares"),
    )
    # Its scores hold for the table's shares once they are moved, so there they stay as they are.
    assert by_shares.with_prevalence(USED).offsets == pytest.approx(by_shares.offsets)
    assert kept.with_prevalence(None) is kept


def test_shares_that_are_not_known_are_not_guessed():
    with pytest.raises(SfumatoError, match="does not hold the class shares that its scores are for; train with"):
        PLAIN.with_prevalence(USED)
    known = Reading(classes=CLASSES, loss="softmax", shares=TRAINED)
    assert known.with_prevalence(USED).offsets == logit_offsets((0.26, 0.74), (0.62, 0.38), loss="softmax")
    with pytest.raises(SfumatoError, match="prevalence has no share for the class 'normal'"):
        known.with_prevalence({"pneumonia": 0.999})
    with pytest.raises(SfumatoError, match="prevalence names 'cat', which is not a class"):
        known.with_prevalence({"cat": 0.5, "normal": 0.5})
    several = Reading(classes=CLASSES, loss="multilabel", shares={"normal": 0.5, "pneumonia": 0.5})
    with pytest.raises(SfumatoError, match="this model predicts several labels"):
        several.with_prevalence(USED)


def test_a_file_that_speaks_of_other_classes_is_refused():
    for given, words in (
        ({"shares": {"cat": 0.5, "normal": 0.5}}, "shares of other classes"),
        ({"operating_point": OperatingPoint(positive="cat", threshold=0.8, rule="shares")}, "for 'cat'"),
    ):
        with pytest.raises(SfumatoError, match=words):
            refuse_unreadable(Reading(classes=CLASSES, loss="softmax", **given), Path("model"))
    refuse_unreadable(PLAIN, Path("model"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shares", {"normal": 1.5, "pneumonia": 0.5}),
        ("shares", [0.5, 0.5]),
        ("operating_point", {"positive": "normal", "threshold": 1.0, "rule": "shares"}),
        ("operating_point", {"positive": "normal", "threshold": 0.5, "rule": 3}),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(name, value):
    import json

    about = {
        "model": "linear", "classes": list(CLASSES), "transform": {}, "test_fraction": 0.2, "channels": 1, "size": 8,
        "loss": "softmax", "trained_on": [], "statement": {"epsilon": 1.0, "origins": [], "filtered": False},
    }  # fmt: skip
    good = about | {"shares": TRAINED, "operating_point": POINT.to_dict()}
    assert parse_description({"sfumato": json.dumps(good)}, "model") == good
    with pytest.raises(SfumatoError, match=f"says of its model that {name} is"):
        parse_description({"sfumato": json.dumps(about | {name: value})}, "model")
