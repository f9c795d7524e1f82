"""How the values that a search tries are written."""

import pytest

from sfumato._checks import SfumatoError
from sfumato.cli.verbs.sweep import read_space
from sfumato.randomness import Choice, LogUniform, Uniform


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("learning-rate=0.3,1", Choice(values=(0.3, 1))),
        ("learning-rate=0.1..1", Uniform(low=0.1, high=1.0)),
        ("learning-rate=log:0.01..1", LogUniform(low=0.01, high=1.0)),
        ("source=../a,../b", Choice(values=("../a", "../b"))),
        ("source=../2", Choice(values=("../2",))),
        ("source=features:../c,features:d", Choice(values=("features:../c", "features:d"))),
    ],
)
def test_a_range_stands_between_numbers_and_paths_are_values(text, rule):
    assert list(read_space([text], "digits", ["source", "learning_rate"], trust_code=False).values()) == [rule]


@pytest.mark.parametrize("text", ["0.1..x", "0.1..", "log:0.1,1"])
def test_a_range_without_two_numbers_is_refused(text):
    with pytest.raises(SfumatoError, match="are not two numbers; write a range as in log"):
        read_space([f"learning-rate={text}"], "digits", ["learning_rate"], trust_code=False)
