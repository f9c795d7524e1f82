"""What is declared of data: facts by their names alone, and the parts that they are in."""

import pytest

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato.data import Declared, SourceSpec, open_source


def test_every_fact_is_a_keyword_with_words():
    assert open_source.__doc__ is not None
    words = open_source.__doc__.partition("Args:")[2]
    assert [name for name in choices_of(Declared) if f"\n        {name}: " not in words] == []


def test_facts_and_parts_say_the_same(key):
    declared = Declared(size=5, classes=[str(number) for number in range(10)])
    one, other = (
        open_source("digits", owner_key=key, declared=declared),
        open_source("digits", owner_key=key, **declared.given),
    )
    assert one.fingerprint == other.fingerprint
    assert open_source("digits", owner_key=key, declared=declared, size=6).size == 6
    assert SourceSpec(spec="digits", declared=declared).record() == SourceSpec(spec="digits", **declared.given).record()


def test_what_is_no_fact_is_refused_and_a_near_one_named(key):
    with pytest.raises(SfumatoError, match="bitdepth is not a field of Declared; did you mean bit_depth"):
        open_source("digits", owner_key=key, bitdepth=12)
