"""What a run's directory, or a cache's, is called where nobody says."""

from pathlib import Path

import pytest

from sfumato.cli.verbs.train import Train
from sfumato.data.paths import stem_of
from sfumato.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("digits", "digits"),
        ("torchvision:MNIST", "MNIST"),
        ("folder:data/pictures/", "pictures"),
        ("folder:.", "here"),
        ("parquet:photos/train-00000.parquet", "train-00000"),
        ("parquet:photos/t*/*.parquet", "photos"),
        ("parquet:*.parquet", "here"),
    ],
)
def test_directories_are_named_after_the_source_and_never_after_a_pattern(tmp_path, monkeypatch, source, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert stem_of(source) == name
    assert Train(what=source, source=source).default_output == Path("runs", name)


def test_a_run_without_an_output_gets_the_first_name_that_is_free_or_unfinished(workplace):
    train = Train(what="digits", source="digits")
    assert train.directory().path == Path("runs/digits")
    for name in ("digits", "digits-2"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "settings.json").touch()
    Path("runs/digits/done").touch()
    run = train.directory()
    assert run.path == Path("runs/digits-2")
    assert train.notes_on(run) == ["note: runs/digits holds a finished run; the new run is in runs/digits-2"]
    assert train.notes_on(RunDirectory("runs/digits")) == []
