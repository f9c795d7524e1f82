"""What is said of a plan before it is paid for."""

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato import PrivacyPlan
from sfumato.experiment import defaults
from sfumato.privacy import FixedOrder, User
from sfumato.privacy.planning import remarks


def by_rule(examples: int, epsilon: float = 3.0, delta: float = 1e-5) -> PrivacyPlan:
    sizes = {name: rule.value for name, rule in defaults.plan_rules(examples).items()}
    return PrivacyPlan.calibrate(examples=examples, epsilon=epsilon, delta=delta, **sizes)


def test_a_plan_by_which_little_can_be_learnt_is_named_with_what_would_help():
    few = by_rule(examples=320)
    told = remarks.weak_signal_note(few, 40)
    assert told is not None
    assert "about 8 images for each of 40 classes" in told
    found = re.search(r"epsilon ([\d.]+) in place of 3, some (\d+) images of each class", told)
    assert found is not None
    richer, larger = by_rule(examples=320, epsilon=1.03 * float(found[1])), by_rule(examples=40 * int(found[2]))
    for enough in (richer, larger):
        assert remarks.signal_per_class(enough, 40) >= remarks.ENOUGH_SIGNAL
        assert remarks.weak_signal_note(enough, 40) is None
    assert remarks.weak_signal_note(by_rule(examples=1438), 10) is None, "digits"
    assert "epsilon" not in (remarks.weak_signal_note(by_rule(examples=320), 100_000) or "epsilon")


@pytest.mark.parametrize(("examples", "told"), [(10, "about 1 image for each of 10 classes"), (30, "3 images for")])
def test_a_single_image_is_not_written_in_the_plural(examples, told):
    assert told in (remarks.weak_signal_note(by_rule(examples=examples), 10) or "")


def test_forecasts_are_what_the_trials_on_little_data_have_learnt():
    results = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "little-data.json"
    found = {tuple(key.rsplit(", epsilon ", 1)): value for key, value in json.loads(results.read_text()).items()}
    trials = []
    for (data, epsilon), trial in found.items():
        chance = 1 / int(re.findall(r"(\d+) classes", data)[0])
        if epsilon != "1000":
            share = (trial["accuracy"] - chance) / (found[data, "1000"]["accuracy"] - chance)
            trials.append((remarks.expected_gain(trial["signal"]), share))
    for row in remarks.MEASURED_GAINS:
        shares = [share for which, share in trials if which == row]
        assert len(shares) == row.trials
        told = (row.lowest, row.median, row.highest)
        assert told == pytest.approx((min(shares), statistics.median(shares), max(shares)), abs=0.006)


def test_a_forecast_for_declared_shares_is_that_of_the_rarest_class():
    found = by_rule(examples=1438, epsilon=3.0)
    even, rare = (remarks.forecast(found, 4, rarest) for rarest in (0.25, 0.01))
    signal = remarks.signal_per_class(found, 4)
    for told, runs in ((even, remarks.expected_gain(signal)), (rare, remarks.expected_gain(signal * 0.04))):
        assert told.startswith(f"{25 + 65 * runs.lowest:.0f} to {25 + 65 * runs.highest:.0f}% ")
    assert even != rare
    assert "of the rarest class (declared share 0.01) recognised" in rare
    assert "accuracy" not in rare


def test_a_forecast_gives_an_example_in_accuracy():
    found = remarks.forecast(by_rule(examples=1438, epsilon=3.0), 4)
    expected = "68 to 89% accuracy if the same model reaches 90% without privacy"  # 1/4 + 0.66 (0.9 - 1/4)
    assert found == expected


def test_classes_that_the_noise_hides_are_those_below_the_fewest_images_that_trials_learnt_from():
    plan = by_rule(examples=1438)
    each = remarks.signal_per_class(plan, 1) / 1438
    enough = math.ceil(remarks.HIDDEN / each)
    counts = {"A": 1438 - 2 * enough + 1 - 3, "B": enough, "C": enough - 1, "J": 3}
    assert remarks.unlearnt(plan, counts) == {"C": enough - 1, "J": 3}
    assert remarks.unlearnt(by_rule(examples=1438, epsilon=300), counts) == {}
    named = remarks.counted({f"c{number}": number for number in range(20)})
    assert named.startswith("c0 (0 images), c1 (1 image), c2 (2 images)")
    assert named.endswith("c10 (10 images), and 9 more")


def test_examples_that_no_step_reaches_are_named():
    rule = FixedOrder(batch_size=50, assignment="position")
    for steps, told in ((30, "30 of 60 bins take part: the examples of the other 30 are not used"), (60, None)):
        plan = replace(by_rule(3000), participation=rule, steps=steps, adjacency="zero-out")
        assert remarks.unused_examples_note(plan) == told
        assert remarks.unused_examples_note(replace(by_rule(3000), steps=steps)) is None


def test_noise_that_is_longer_than_all_updates_can_be_together_is_named():
    """100 rounds of 8 vectors of norm 1, all alike, have a sum of 800; noise of 16 in 2,500 parameters one of 8,000."""
    plan = PrivacyPlan.calibrate(
        examples=1000, batch_size=64, steps=100, noise_multiplier=16.0, delta=1e-5, unit=User(clients=True)
    )
    told = remarks.drowned_updates_note(plan, clients=8, parameters=2500)
    assert told is not None
    assert "in 100 rounds of 8 clients the noise in 2,500 parameters is 10 times as long" in told
    assert "of 1 client the noise in 2,500 parameters is 80 times" in (
        remarks.drowned_updates_note(plan, clients=1, parameters=2500) or ""
    )
    assert " is 32,000 times as long" in (remarks.drowned_updates_note(plan, clients=1, parameters=400_000_000) or "")
    assert remarks.drowned_updates_note(plan, clients=80, parameters=2450) is None
    assert remarks.drowned_updates_note(replace(plan, steps=10_100), clients=8, parameters=2500) is None
