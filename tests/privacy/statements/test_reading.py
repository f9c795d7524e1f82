"""Statements of every kind, read again, and as a notebook shows them."""

import json

import pytest

from sfumato import SfumatoError
from sfumato.privacy import (
    Circumstances,
    ClippedWithoutNoise,
    DisprovedClaim,
    NoGuarantee,
    NoPrivateData,
    PrivacyPlan,
    Statement,
    statement_of,
)

PLAN = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=10, epsilon=1.0, delta=1e-5)
KINDS = [
    Statement(plan=PLAN, circumstances=Circumstances()),
    NoGuarantee(published=True),
    NoGuarantee(published=False, origins=("private run",), filtered=True),
    ClippedWithoutNoise(published=False, method="virtual clients"),
    DisprovedClaim(published=True, method="a method, whose name has a comma", claimed=(2.0, 1e-5), reason="it fails"),
    NoPrivateData(published=False, test_public=True, read=("examples",)),
]


@pytest.mark.parametrize("statement", KINDS, ids=lambda one: type(one).__name__)
def test_it_is_the_same_after_it_was_written(statement):
    assert statement_of(json.loads(json.dumps(statement.to_dict()))) == statement


@pytest.mark.parametrize(
    "data", [{}, {"epsilon": None}, {"epsilon": 1.0}, {"epsilon": None, "published": 1, "claimed": 3}]
)
def test_what_nobody_wrote_is_refused(data):
    with pytest.raises(SfumatoError, match="restore it from a copy"):
        statement_of({"sentence": "This model is private.", **data})


def test_a_sentence_is_derived_and_not_believed():
    told = KINDS[0].to_dict() | {"sentence": "epsilon 0.001", "epsilon": 0.001, "plain": []}
    assert statement_of(told) == KINDS[0]
    assert statement_of(told).epsilon == pytest.approx(1.0, abs=0.01)
