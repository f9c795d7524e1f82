"""The table of published figures: what it costs, and what its layout depends on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sfumato import SfumatoError
from sfumato.privacy import NoisyTable

TABLE = NoisyTable(epsilon=0.1, classes=3)


def test_the_variance_is_that_of_the_law():
    law = [math.exp(-TABLE.epsilon * abs(number)) for number in range(-2000, 2001)]
    variance = sum(weight * number**2 for weight, number in zip(law, range(-2000, 2001), strict=True)) / sum(law)
    assert TABLE.variance == pytest.approx(variance, rel=1e-6)


def test_it_is_read_back_and_refused_when_damaged():
    assert NoisyTable.from_dict(TABLE.to_dict()) == TABLE
    for odd in ({"epsilon": 1.0}, {**TABLE.to_dict(), "bins": 3}):
        with pytest.raises(SfumatoError, match="missing or unknown fields"):
            NoisyTable.from_dict(odd)
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1e-200}, {"epsilon": math.inf}, {"classes": 0}):
        with pytest.raises(SfumatoError):
            replace(TABLE, **wrong)
