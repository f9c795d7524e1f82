"""settings.json is what the ledger began with, or `verify` says in which field it is not."""

import json

import pytest

from sfumato import verify
from sfumato.privacy import ledger
from sfumato.runs import releases
from sfumato.runs.verdict import LIMITS

RECORD = {"run": "5a" * 32, "settings": {"rate": 0.5, "steps": [1, 2]}, "assignment": None, "request": {"source": "a"}}


def fields(record, above=()):
    """The places of all that stands in a record, two levels deep."""
    for name, value in record.items():
        if isinstance(value, dict) and value and not above:
            yield from fields(value, (name,))
        else:
            yield *above, name


def changed(record, place):
    copy = json.loads(json.dumps(record))
    inside = copy
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = "0" * 64 if place == ("run",) else "changed"
    return copy


def test_every_field_of_a_run_is_bound_and_an_edited_one_is_named(copy):
    path = copy / "settings.json"
    record = json.loads(path.read_text())
    opening = ledger.read(copy / "ledger.jsonl")[0].body
    places = list(fields(record))
    assert len(places) > 40
    for place in places:
        found = releases.edited_fields(changed(record, place), opening)
        if place[0] in ("request", "places", "environment"):
            assert found == []
        else:
            assert found == [".".join(place)] or place == ("run",), place
            assert found


def test_verify_names_the_field(copy):
    path = copy / "settings.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(changed(record, ("settings", "learning_rate"))))
    verdict = verify(copy)
    assert not verdict.holds
    assert "settings.json differs from the beginning of the ledger in settings.learning_rate" in verdict.line


@pytest.mark.parametrize("name", ["settings", "assignment"])
def test_a_field_that_was_taken_out_or_put_in_is_noticed(name):
    opening = releases.commitments(RECORD)
    lacking = {one: value for one, value in RECORD.items() if one != name}
    assert releases.edited_fields(lacking, opening) == ["a field that is gone"]
    assert releases.edited_fields({**RECORD, "more": 1}, opening) == ["more"]


def test_the_short_commitments_are_those_of_the_record_too():
    opening = releases.commitments(RECORD)
    for shorts in (opening[releases.FIELDS][1:], [*opening[releases.FIELDS], "0" * 8], ["0" * 8] * 10**5):
        assert releases.edited_fields(RECORD, {**opening, releases.FIELDS: shorts}) != []


def test_a_value_that_has_changed_places_with_one_of_the_same_name_is_noticed():
    record = {**RECORD, "settings": {"rate": 0.5}, "performance": {"rate": 0.25}}
    opening = releases.commitments(record)
    exchanged = {**record, "settings": {"rate": 0.25}, "performance": {"rate": 0.5}}
    assert releases.edited_fields(record, opening) == []
    assert sorted(releases.edited_fields(exchanged, opening)) == ["performance.rate", "settings.rate"]


def test_the_order_and_the_spelling_of_the_file_do_not_matter():
    opening = releases.commitments(RECORD)
    turned = {name: RECORD[name] for name in reversed(RECORD)}
    assert releases.edited_fields(json.loads(json.dumps(turned, indent=3)), opening) == []
    assert releases.edited_fields({**RECORD, "settings": {"steps": (1, 2), "rate": 5e-1}}, opening) == []


def test_a_run_that_has_moved_still_verifies(copy):
    path = copy / "settings.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "request": {"source": "elsewhere"}, "places": []}))
    assert verify(copy).holds


def test_the_ledger_tells_nothing_of_the_settings_to_who_does_not_know_the_run():
    other = {**RECORD, "run": "00" * 32}
    first, second = releases.commitments(RECORD), releases.commitments(other)
    assert first[releases.WHOLE] != second[releases.WHOLE]
    assert not set(first[releases.FIELDS]) & set(second[releases.FIELDS])
    assert first[releases.FIELDS] == sorted(first[releases.FIELDS])
    assert "rate" not in json.dumps(first)


def test_other_circumstances_than_the_statement_s_are_named(copy):
    record = json.loads((copy / "settings.json").read_text())
    written = json.loads((copy / "statement.json").read_text())["circumstances"]
    opening = releases.commitments(record)
    releases.require_unedited(record, opening, written)
    with pytest.raises(ValueError, match="and the statement differ in the circumstances seeded"):
        releases.require_unedited(record, opening, {**written, "seeded": not written["seeded"]})


def test_the_last_line_says_whether_the_settings_were_looked_at(copy):
    assert verify(copy).line.endswith(LIMITS.format(settings=""))
    (copy / "settings.json").unlink()
    given = verify(copy)
    assert given.holds
    assert given.line.endswith(LIMITS.format(settings=", the settings"))
