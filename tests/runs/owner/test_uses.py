"""The owner's list of runs: linked by the data's fingerprint, composed by the accountant."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace

import dp_accounting
import pytest

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import CandidateCount, FixedOrder, PrivateChoice, PrivateSelection
from sfumato.runs.owner import composition, sentences, uses


def plan(steps: int = 50, sigma: float = 2.0, batch_size: int = 100) -> PrivacyPlan:
    return PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=batch_size),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=1e-5,
    )


def test_runs_on_one_data_set_are_found_and_others_are_not(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path)
    uses.record(["b"], "run2", plan(60), tmp_path)
    uses.record(["a"], "run3", plan(70), tmp_path)
    uses.record(["a"], "run3", plan(70), tmp_path)
    assert [found.steps for found in uses.plans(["a"], tmp_path)] == [50, 70]
    assert uses.plans(["c"], tmp_path) == []
    assert (tmp_path / uses.FILE).stat().st_mode & 0o777 == 0o600


def test_data_are_known_again_by_what_is_stored_or_by_their_pixels(tmp_path):
    uses.record(["files", "pixels"], "run1", plan(50), tmp_path)
    uses.record(["arrays", "pixels"], "run2", plan(60), tmp_path)
    uses.record(["files"], "run3", plan(70), tmp_path)
    steps = {
        name: [found.steps for found in uses.plans([*name], tmp_path)]
        for name in (("files", "pixels"), ("arrays", "pixels"), ("files",), ("pixels",), ("others", "elsewhere"))
    }
    assert list(steps.values()) == [[50, 60, 70], [50, 60], [50, 70], [50, 60], []]


def test_plans_of_both_adjacencies_are_composed_for_zero_out():
    one = replace(plan(), participation=FixedOrder(batch_size=100))  # a unit takes part in five of 50 steps
    by_position = FixedOrder(batch_size=100, assignment="position")
    other = replace(one, participation=by_position, adjacency="zero-out")
    both = replace(one, participation=FullBatch(), steps=10).epsilon()
    for many in ([one, other], [other, one]):
        assert composition.together(many) == (pytest.approx(both), 1e-5)
        assert composition.adjacency_of(many) == "zero-out"
    assert "for zero-out adjacency, which each of them holds for" in sentences.summary([one], other)
    assert "for add-or-remove adjacency" in sentences.summary([one], one)
    assert "for zero-out adjacency" in sentences.summary([other], other)
    assert (composition.adjacency_of([one, one]), composition.adjacency_of([other])) == ("add-or-remove", "zero-out")


def test_a_line_cut_short_is_passed_over(tmp_path):
    uses.record(["a"], "run1", plan(), tmp_path)
    whole = (tmp_path / uses.FILE).read_bytes().strip()
    for length in range(1, len(whole)):
        (tmp_path / uses.FILE).write_bytes(b"\n" + whole + b"\n\n" + whole[:length])
        uses.record(["a"], "run2", plan(), tmp_path)
        assert len(uses.plans(["a"], tmp_path)) == 2, whole[:length]


@pytest.mark.parametrize("place", [0, 1])
def test_a_line_that_was_whole_and_is_cut_or_lost_is_missed(tmp_path, place):
    for number in range(3):
        uses.record(["a"], f"run{number}", plan(50 + number), tmp_path)
    path = tmp_path / uses.FILE
    lines = path.read_bytes().strip().split(b"\n\n")
    for changed in (lines[place][:-1], b""):
        path.write_bytes(b"\n".join([*lines[:place], changed, *lines[place + 1 :]]) + b"\n")
        with pytest.raises(SfumatoError, match="does not follow the line before it"):
            uses.plans(["a"], tmp_path)


def test_two_runs_that_begin_at_once_are_both_in_the_list(tmp_path, monkeypatch):
    """A line that came in between the reading of the last one and the writing of the next would break the chain."""
    uses.record(["a"], "run0", plan(50), tmp_path)
    other, code = threading.Thread(target=uses.record, args=(["a"], "run1", plan(60), tmp_path)), uses._code

    def slow(line):
        monkeypatch.setattr(uses, "_code", code)
        other.start()
        other.join(timeout=0.3)  # it waits for its turn, so this one has to go on first
        return code(line)

    monkeypatch.setattr(uses, "_code", slow)
    uses.record(["a"], "run2", plan(70), tmp_path)
    other.join()
    assert [found.steps for found in uses.plans(["a"], tmp_path)] == [50, 70, 60]


def test_one_run_has_one_plan(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path)
    uses.record(["b"], "run1", plan(1), tmp_path)
    with pytest.raises(SfumatoError, match="its run has another plan above"):
        uses.plans(["a"], tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"mechanism": "Gaussian"', b'"mechanism": "Laplace"'),
        lambda line: line.replace(b'"steps": 50', b'"steps": 50, "steps": 1'),
        lambda line: line.replace(b'"data": "a", ', b""),
        lambda line: line.replace(b'"run"', b"run"),
        lambda line: line.replace(b"run1", b"\xffrun1"),
        lambda line: line.replace(b'"plan"', b'"selection": {}, "plan"'),
        lambda line: line.replace(b'"steps": 50', b'"steps": 1' + b"0" * 400),
        lambda line: line.replace(b'"noise_multiplier": 2.0', b'"noise_multiplier": 1e300'),
        lambda line: b"[]",
        lambda line: b"[" * 100_000,
    ],
)
def test_a_whole_line_that_cannot_be_read_is_refused(tmp_path, damage):
    """Passed over, it would make the epsilon of all runs together too small."""
    uses.record(["a"], "run1", plan(50), tmp_path)
    uses.record(["a"], "run2", plan(60), tmp_path)
    path = tmp_path / uses.FILE
    first, rest = path.read_bytes().strip().split(b"\n", 1)
    path.write_bytes(damage(first) + b"\n" + rest)
    with pytest.raises(SfumatoError, match=r"line 1 of the list of runs .* cannot be read"):
        uses.plans(["a"], tmp_path)


def test_a_line_of_both_a_plan_and_a_selection_is_refused(tmp_path):
    """Whichever were read, the line might mean the other."""
    selection = PrivateSelection(plan=plan(1), draws=CandidateCount(mean=2), score_noise=None)
    uses.record(["a"], "run1", plan(50), tmp_path)
    path = tmp_path / uses.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"selection": selection.to_dict()}) + "\n")
    with pytest.raises(SfumatoError, match="more than one of a plan, a selection and a choice"):
        uses.plans(["a"], tmp_path)


def test_together_is_one_long_run_for_equal_plans():
    epsilon, delta = composition.together([plan(50), plan(100)])
    assert epsilon == pytest.approx(plan(150).epsilon(), rel=1e-3)
    assert delta == 1e-5


def test_together_is_more_than_each_and_less_than_the_sum():
    parts = [plan(50), plan(30, sigma=1.5), plan(80, batch_size=50)]
    epsilon, _ = composition.together(parts)
    assert max(part.epsilon() for part in parts) < epsilon < sum(part.epsilon() for part in parts)


def test_selections_and_runs_share_one_delta_equally():
    """Basic composition: the deltas of the parts add up to the delta that the owner is told."""
    public = PrivateSelection(plan=plan(30), draws=CandidateCount(mean=5), score_noise=None)
    noisy = PrivateSelection(plan=plan(20, sigma=3.0), draws=CandidateCount(mean=10), score_noise=25.0)
    share = 1e-5 / 3
    expected = public.epsilon(share) + noisy.epsilon(share) + plan(150).epsilon(share)
    assert composition.together([public, plan(50), noisy, plan(100)]) == (pytest.approx(expected, rel=1e-3), 1e-5)
    assert composition.together([public, noisy]) == (pytest.approx(public.epsilon(5e-6) + noisy.epsilon(5e-6)), 1e-5)


def test_what_the_owner_is_told_holds_at_the_largest_delta():
    strict = replace(plan(30), delta=1e-7)
    both = plan(80).epsilon(1e-5)
    for order in ([strict, plan(50)], [plan(50), strict]):
        assert composition.together(order) == (pytest.approx(both, rel=1e-3), 1e-5)
    chosen = PrivateSelection(plan=strict, draws=CandidateCount(mean=5), score_noise=None)
    assert composition.together([chosen, plan(50)])[1] == composition.together([plan(50), chosen])[1] == 1e-5


def test_many_different_plans_are_still_bounded():
    parts = [plan(10, sigma=2.0 + 0.1 * place) for place in range(10)]
    full = PrivacyPlan(
        population=1000, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=9.0), steps=2, delta=1e-5
    )
    epsilon, delta = composition.together([*parts, full])
    exact = full.loss.with_(*(part.loss for part in parts)).epsilon(delta, grid=1e-3)
    assert exact <= epsilon <= sum(part.epsilon(delta / 11, grid=1e-3) for part in (*parts, full))
    assert epsilon < 1.2 * exact, "Renyi DP adds them up with little loss"


def test_full_batch_plans_are_composed_exactly_however_many_they_are():
    whole = [
        PrivacyPlan(
            population=1000 + place,
            participation=FullBatch(),
            mechanism=Gaussian(noise_multiplier=9.0 + place),
            steps=1 + place,
            delta=1e-5,
        )
        for place in range(12)
    ]
    noise = sum(one.steps / one.noise_multiplier**2 for one in whole) ** -0.5
    assert composition.together(whole)[0] == pytest.approx(dp_accounting.get_epsilon_gaussian(noise, 1e-5), rel=1e-9)
    sampled = [plan(10, sigma=2.0 + 0.1 * place) for place in range(7)]
    mixed = composition.together([*whole, *sampled])[0]
    assert mixed == pytest.approx(
        whole[0].loss.with_(*(one.loss for one in (*whole[1:], *sampled))).epsilon(1e-5), rel=1e-3
    )


def test_a_list_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "absent").write_text("a file where the owner's directory should be")
    with pytest.raises(SfumatoError, match="cannot be extended"):
        uses.record(["a"], "run", plan(), tmp_path / "absent")


def test_many_plans_that_are_each_free_at_delta_are_not_free_together():
    """Each may fail with a chance of delta, so all of them with that of many."""
    parts = [plan(1, sigma=9000.0 + place, batch_size=999) for place in range(9)]
    assert {part.epsilon(1e-4) for part in parts} == {0.0}
    assert min(part.loss.delta(0) for part in parts) > 2e-5
    epsilon, _ = composition.together([replace(part, delta=1e-4) for part in parts])
    assert epsilon > 0


def test_data_are_known_again_by_their_place(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path, places=["folder:/pictures"])
    uses.record(["b"], "run2", plan(60), tmp_path)
    steps = {
        place: [found.steps for found in uses.plans(["c"], tmp_path, places=[place])]
        for place in ("folder:/pictures", "folder:/others", "")
    }
    assert list(steps.values()) == [[50], [], []]


def test_figures_that_runs_have_published_are_added_up(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path, figures=0.5)
    uses.record(["a"], "run2", plan(60), tmp_path)
    uses.record(["b"], "run3", plan(70), tmp_path, figures=4.0)
    uses.record(["a"], "run4", plan(70), tmp_path, figures=0.75)
    uses.record(["a"], "run4", plan(70), tmp_path, figures=0.75)
    assert uses.figures(["a"], tmp_path) == [0.5, 0.75]
    (line,) = sentences.of_figures(uses.figures(["a"], tmp_path))
    assert line.startswith("2 releases of yours are about test images")
    assert "(1.250, 0)-differentially private" in line
    assert sentences.of_figures(uses.figures(["b"], tmp_path)) == []
    uses.record(["b"], "run3", plan(70), tmp_path)
    assert uses.figures(["b"], tmp_path) == [4.0], "a line that says less takes nothing back"
    assert len(uses.plans(["a"], tmp_path)) == 3
    uses.record(["c"], "run5", plan(50), tmp_path, places=["folder:/pictures"], figures=2.0)
    assert uses.figures(["d"], tmp_path, places=["folder:/pictures"]) == [2.0], "changed data at one place"


def test_changed_images_are_known_by_where_the_features_came_from(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path, places=["features:/old", "folder:/pictures"])
    uses.record(["b"], "run2", plan(60), tmp_path, places=["folder:/others"])
    for places, steps in (
        (["folder:/pictures"], [50]),
        (["features:/new", "folder:/pictures"], [50]),
        (["features:/old"], [50]),
        (["features:/new"], []),
    ):
        assert [found.steps for found in uses.plans(["c"], tmp_path, places=places)] == steps


def test_a_choice_by_test_images_is_added_to_published_figures_and_is_no_run(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path, figures=0.5)
    for _ in range(2):
        uses.record_choice(["a"], PrivateChoice(epsilon=0.25, candidates=3), tmp_path)
    uses.record_choice(["b"], PrivateChoice(epsilon=4.0, candidates=3), tmp_path, places=["folder:/pictures"])
    assert uses.figures(["a"], tmp_path) == [0.5, 0.25, 0.25]
    assert uses.figures(["c"], tmp_path, places=["folder:/pictures"]) == [4.0]
    assert [use.steps for use in uses.plans(["a"], tmp_path)] == [50]
    assert uses.other_assignments(["a"], tmp_path) == 0


@pytest.mark.parametrize("number", ["ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_refused_before_a_line_is_written(tmp_path, monkeypatch, number):
    """Two runs that begin at once there would each write the line after the same one, and the list be of no use."""
    fcntl = pytest.importorskip("fcntl")

    def refused(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(SfumatoError, match=r"is on a file system without locks \(.*move its directory"):
        uses.record(["a"], "run1", plan(), tmp_path)
    assert not (tmp_path / uses.FILE).exists()


def test_zeros_in_the_list_are_a_line_that_a_power_cut_kept_from_it(tmp_path):
    uses.record(["a"], "run1", plan(50), tmp_path)
    path = tmp_path / uses.FILE
    whole = path.read_bytes()
    for left in (bytes(40), bytes(30) + b'"plan": {}}\n', b'\n{"data": "a", "pl' + bytes(20)):
        path.write_bytes(whole + left)
        assert [found.steps for found in uses.plans(["a"], tmp_path)] == [50]
        uses.record(["a"], "run2", plan(60), tmp_path)
        assert [found.steps for found in uses.plans(["a"], tmp_path)] == [50, 60]
