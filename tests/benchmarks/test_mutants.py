"""The list of planted bugs: each still names text that stands once in the code, and tests that exist."""

import tomllib

from benchmarks.trust import mutants

BUGS = list(mutants.bugs())


def test_every_planted_bug_can_be_planted():
    for bug in BUGS:
        text = bug.path(mutants.CODE / "sfumato", mutants.STUDIES).read_text("utf-8")
        assert bug.planted(text) != text, bug.name
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_the_bugs_of_a_room_stand_beside_its_tests():
    for path in mutants.TESTS.rglob("bugs.toml"):
        for bug in tomllib.loads(path.read_text("utf-8"))["bug"]:
            room, slash, _ = bug["file"].partition("/")
            assert path == mutants.TESTS / (room if slash else "") / "bugs.toml", bug["name"]


def test_what_was_caught_is_not_run_again_until_it_or_its_tests_change():
    bug, other = BUGS[0], BUGS[1]
    row = {"caught_by": "some test", "hash": bug.hash}
    assert mutants.settled(row, bug)
    assert not mutants.settled(row, other)
    assert not mutants.settled(row | {"caught_by": mutants.SURVIVED}, bug)
    assert not mutants.settled(None, bug)
