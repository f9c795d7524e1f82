"""Observers see rows of released values; TensorBoard is one of them."""

import json
import sys
from types import SimpleNamespace

import pytest

from sfumato import SfumatoError, train
from sfumato.observers.observer import TensorBoard


@pytest.fixture
def written(monkeypatch):
    """What a writer of TensorBoard's was told."""
    told = []

    class SummaryWriter:
        def __init__(self, place, purge_step):
            told.append((place, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    return told


def test_tensorboard_is_told_what_metrics_hold_and_nothing_else(written, spots, plan, tmp_path):
    board = TensorBoard(tmp_path / "board")
    train("linear", spots, plan, directory=tmp_path / "run", learning_rate=0.5, threads=1, observers=[board])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [(name, value, row["step"]) for row in rows for name, value in row.items() if name != "step"]
    assert written == [(str(tmp_path / "board"), 1), *[one for one in expected if one[1] is not None], "closed"]


def test_an_observer_changes_nothing(written, spots, plan, tmp_path):
    options = {"learning_rate": 0.5, "threads": 1, "seed": 1}
    one = train("linear", spots, plan, directory=tmp_path / "a", **options)
    other = train("linear", spots, plan, directory=tmp_path / "b", observers=[TensorBoard(tmp_path)], **options)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (one.directory / name).read_bytes() == (other.directory / name).read_bytes()


def test_a_missing_tensorboard_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SfumatoError, match=r"TensorBoard is not installed; pip install 'sfumato\[tensorboard\]'"):
        TensorBoard(tmp_path)
