"""The benchmarks of the engine: what they measure is what they say, and a wrong method is told from a right one."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
import torch
import tyro

from benchmarks.scale import largest_batch, scaling
from benchmarks.shared import measuring, methods, problems
from benchmarks.speed import clipping

MEBIBYTE = 2**20


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MEBIBYTE, dtype=torch.uint8)


def test_growth_is_the_peak_not_the_sum_of_a_step():
    def step():
        first = block(3)
        second = block(4)
        del first
        return second, block(2)

    assert measuring.growth(step, "cpu") == measuring.Growth(first=7 * MEBIBYTE, later=7 * MEBIBYTE)


def test_growth_counts_what_is_kept_from_step_to_step():
    kept: list[torch.Tensor] = []

    def step():
        if not kept:
            block(16)
            kept.append(block(5))
        block(2)

    growth = measuring.growth(step, "cpu")
    assert (growth.first, growth.later) == (16 * MEBIBYTE, 7 * MEBIBYTE)


def test_rounds_are_interleaved_with_the_plain_step_right_before_each_way(monkeypatch: pytest.MonkeyPatch):
    called = []
    monkeypatch.setattr(measuring, "_SHORTEST", 1e-9)
    steps = {name: (lambda name=name: called.append(name)) for name in ("plain", "one", "other")}
    pairs = {name: (steps["plain"], steps[name]) for name in ("one", "other")}
    timings = measuring.interleaved(pairs, rounds=3, device="cpu")
    assert called[-24:] == 3 * ["plain", "plain", "one", "one", "plain", "plain", "other", "other"]
    assert {name: len(found.ratios) for name, found in timings.items()} == {"one": 3, "other": 3}


def test_the_ratio_is_the_median_of_each_round_s_own():
    summary = measuring.Timings(plain=[1.0, 2.0, 4.0], method=[3.0, 3.0, 4.0]).summary()
    assert (summary["ratio"], summary["lowest_ratio"], summary["highest_ratio"]) == (1.5, 1.0, 3.0)
    assert (summary["plain_milliseconds"], summary["milliseconds"]) == (2000, 3000)


def small_problem(*, views: int = 1):
    return problems.build(problems.Row(model="lenet5", batch=5, size=28, channels=1, views=views), "cpu")


@pytest.mark.parametrize("views", [1, 3])
def test_vmap_agrees_with_the_truth_and_a_wrong_sum_does_not(views: int):
    problem = small_problem(views=views)
    truth = methods.loop(problem.double())
    right = methods.make("vmap", problem)
    assert clipping.check("vmap", right, problem, problem, truth, floor=0.0)["error"] < 1e-4

    unclipped = methods.Method(step=lambda: {name: 1.05 * total for name, total in right.step().items()})
    assert not clipping.check("vmap", unclipped, problem, problem, truth, floor=0.0)["agrees"]
    headless = {name: total for name, total in right.step().items() if "head" not in name}
    without_head = methods.Method(step=lambda: headless)
    with pytest.raises(measuring.CannotError, match=r"no gradient of head"):
        clipping.check("vmap", without_head, problem, problem, truth, floor=0.0)


def test_the_truth_clips_each_example():
    problem = small_problem()
    norm = float(sum(total.square().sum() for total in methods.loop(problem.first(1).double()).values())) ** 0.5
    assert norm == pytest.approx(methods.MAX_NORM, rel=1e-9)


def test_plain_leaves_no_gradient_behind():
    problem = small_problem()
    method = methods.make("plain", problem)
    first = {name: gradient.clone() for name, gradient in method.step().items()}
    assert all(torch.equal(first[name], gradient) for name, gradient in method.step().items())


def test_reasons_name_no_file():
    text = measuring.reason(ImportError("cannot import x (" + "/".join(["", "home", "someone", "y.py)"])))
    assert text == "ImportError: cannot import x (a file)"


def test_the_figures_are_merged_way_by_way_unless_the_machine_is_another(tmp_path: Path):
    path = tmp_path / "figures.json"
    first = {"ways": {"a": {"ratio": 2.0}, "b": {"reason": "is not installed"}, "c": {"ratio": 3.0}}}
    clipping.write(path, {"cores": 2}, "lenet5", first)
    again = {"ways": {"a": {"memory_ratio": 1.5}, "b": {"ratio": 4.0}}}
    row = clipping.write(path, {"cores": 2}, "lenet5", again)
    assert row["ways"] == {"a": {"ratio": 2.0, "memory_ratio": 1.5}, "b": {"ratio": 4.0}, "c": {"ratio": 3.0}}
    clipping.write(path, {"cores": 4}, "cnn", again)
    assert json.loads(path.read_text())["rows"].keys() == {"cnn"}


@pytest.mark.parametrize("fixed", [0, 300])
def test_the_search_finds_the_largest_batch(monkeypatch: pytest.MonkeyPatch, fixed: int):
    tried = []

    def apart(function, row, method, options):
        tried.append(row.batch)
        peak = (fixed + 7 * row.batch) * MEBIBYTE
        return measuring.Growth(first=peak + 5 * MEBIBYTE, later=peak)

    monkeypatch.setattr(measuring, "apart", apart)
    answer = largest_batch.search("wrn-16-4", "sfumato", largest_batch.Options(gibibytes=2.0))
    true = (2048 - 5 - fixed) // 7
    assert true * 0.99 - 1 <= answer["batch"] <= true
    assert len(tried) < 14


def test_the_image_has_five_panels_and_is_the_same_each_time(tmp_path: Path):
    figures = {"ratio": 1.2, "lowest_ratio": 1.1, "highest_ratio": 1.3, "plain_milliseconds": 4.0}
    axes = {name: [{"value": value, **figures} for value in values] for name, values in scaling.POINTS.items()}
    for name in ("one.svg", "other.svg"):
        scaling.draw({"axes": axes}, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "other.svg").read_text()
    assert all(title in text for title in scaling.TITLES.values())
    assert set(re.findall(r"https?://([^/\"]*)", text)) == {"www.w3.org"}


def test_the_table_is_printed_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The method's memory is measured in a process of its own, as all is; the plain step's here, which takes less."""
    genuine = measuring.apart

    def apart(function, name, method, options):
        return function(name, method, options) if method == "plain" else genuine(function, name, method, options)

    monkeypatch.setattr(measuring, "apart", apart)
    path = tmp_path / "figures.json"
    line = f"--models lenet5 --ways sfumato --rounds 2 --threads 1 --json {path}"
    clipping.main(tyro.cli(clipping.Options, args=line.split()))
    printed = capsys.readouterr().out
    stored = json.loads(path.read_text())
    rows = stored["rows"]["lenet5"]["ways"]
    assert rows.keys() == {"sfumato"}
    for name, method in rows.items():
        assert method["agrees"], name
        assert method["lowest_ratio"] <= method["ratio"] <= method["highest_ratio"], name
        assert method["memory_ratio"] > 0.5, name
        assert re.search(rf"^lenet5 .* {name} .* agrees", printed, re.MULTILINE)
    assert stored["machine"]["threads"] == 1
    assert socket.gethostname() not in json.dumps(stored["machine"])


def test_an_unknown_row_is_refused():
    with pytest.raises(SystemExit, match="no models nothing; there are lenet5"):
        clipping.known("models", ("nothing",), problems.CPU)
