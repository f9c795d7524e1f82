"""What the owner writes over a page is remembered, and one line each."""

from __future__ import annotations

import pytest

from sfumato import SfumatoError
from sfumato.runs.directory import RunDirectory
from sfumato.runs.heading import Heading


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
