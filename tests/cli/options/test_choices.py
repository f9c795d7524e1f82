"""What a run's directory, or a cache's, is called where nobody says."""

from pathlib import Path

import pytest

from sfumato.cli.verbs.train import Train
from sfumato.data.paths import stem_of


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
