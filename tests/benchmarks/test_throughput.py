"""The benchmark of DP-LAMB's throughput: whole private steps, all layers and the last one, measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.shared import measuring
from benchmarks.speed import throughput


@pytest.mark.parametrize(("trained", "parameters"), [("all", None), ("classifier", 64 * 1000 + 1000)])
def test_a_step_trains_what_it_says(trained: str, parameters: int | None):
    threads = torch.get_num_threads()
    row = throughput.measure("timm:test_vit", trained, 32, 2, 2, threads, "cpu")
    assert len(row["step_seconds"]) == 2
    assert 0 < min(row["step_seconds"]) <= 2 / row["images_per_second"] <= max(row["step_seconds"])
    assert 0 < row["images_per_second_and_core"] < 10_000
    assert row["trained_parameters"] == parameters if parameters else row["trained_parameters"] > 100_000


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    called = []

    def apart(function, model: str, trained: str, *rest):
        called.append((model, trained))
        if called.count((model, trained)) == 1 and trained == "all":
            raise measuring.CannotError("killed, probably for want of memory")
        return {"batch": 2, "images_per_second": 3.0, "images_per_second_and_core": 1.5 if trained == "all" else 3.0}

    monkeypatch.setattr(measuring, "apart", apart)
    options = throughput.Options(models=("vit-b16",), device="cpu", json=tmp_path / "figures.json")
    for _ in range(3):
        throughput.main(options)
    name = throughput.MODELS["vit-b16"]
    assert called == [(name, "all"), (name, "classifier"), (name, "all")]
    assert json.loads(options.json.read_text())["rows"]["vit-b16, 384 pixels"]["full"]["images_per_second"] == 3
    printed = capsys.readouterr().out.splitlines()
    assert "killed, probably for want of memory" in printed[0]
    assert "2.0x  (the paper: 170, 900, 5.3x)" in printed[2]
