"""Several processes that begin one run at once: one of them does, and no other touches what it prepares."""

import multiprocessing

import pytest

from sfumato import SfumatoError
from sfumato.runs import directory as names
from sfumato.runs.directory import Heading, RunDirectory

PROCESSES = 6


def begin(place, start, outcomes):
    start.wait()
    try:
        with RunDirectory(place).creating() as fresh:
            for number in range(40):
                fresh.write_json(f"{number}.json", {})
            fresh.write_json(names.SETTINGS, {})
    except SfumatoError as error:
        outcomes.put(str(error))
    else:
        outcomes.put("begun")


def test_one_of_several_processes_begins_a_run_and_the_others_say_so(tmp_path):
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        place, start, outcomes = tmp_path / f"{attempt}" / "run", context.Barrier(PROCESSES), context.Queue()
        processes = [context.Process(target=begin, args=(place, start, outcomes)) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        found = sorted(outcomes.get(timeout=300) for _ in processes)
        for process in processes:
            process.join()
        assert found.count("begun") == 1, found
        assert all(f"another process has begun the run in {place}" in one for one in found if one != "begun"), found
        assert RunDirectory(place).exists
        assert [path.name for path in place.parent.iterdir()] == ["run"]


def test_the_remains_of_a_killed_beginning_are_swept(tmp_path):
    (tmp_path / ".run.01234567").mkdir()
    (tmp_path / ".other.01234567").mkdir()
    with RunDirectory(tmp_path / "run").creating() as fresh:
        fresh.write_json(names.SETTINGS, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.01234567", "run"]


def test_what_is_written_stays_until_it_is_written_again(tmp_path):
    run = RunDirectory(tmp_path)
    assert Heading.read(run) == Heading()
    Heading().add_to(run)
    assert not (tmp_path / "page.json").exists()
    Heading(title="Lungs", owner="Ward 3").add_to(run)
    Heading(owner="Ward 4", date="2026-03-01").add_to(run)
    assert Heading.read(run) == Heading(title="Lungs", owner="Ward 4", date="2026-03-01")
    assert Heading.read(run).private == {"owner": "Ward 4", "date": "2026-03-01"}
    assert (tmp_path / "page.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("title", ["", "  ", "two\nlines", "x" * 301, 3])
def test_what_is_no_line_is_refused(title):
    with pytest.raises(SfumatoError, match="title must be one line"):
        Heading(title=title)


@pytest.mark.parametrize("text", ['{"name": "a"}', "[]", '{"title": 3}'])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "page.json").write_text(text)
    with pytest.raises(SfumatoError):
        Heading.read(RunDirectory(tmp_path))
