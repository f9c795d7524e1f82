"""The statement: says the plan's epsilon, rounded up, and names what it does not cover."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError, Statement
from sfumato.privacy import Circumstances
from sfumato.privacy.statement import rounded_up

PLAN = PrivacyPlan(
    sampling=Poisson(examples=1000, batch_size=100), mechanism=Gaussian(noise_multiplier=2.0), steps=50, delta=1e-5
)


def statement(**facts) -> Statement:
    return Statement(plan=PLAN, circumstances=Circumstances(**facts))


def test_the_sentence_can_be_checked_from_its_own_words():
    sentence = statement().sentence
    for part in (
        rounded_up(PLAN.epsilon()),
        "1e-05",
        "each single training example",
        "add-or-remove adjacency",
        "50 steps of the Poisson-subsampled Gaussian mechanism",
        "probability 0.1",
        "clipping norm 1",
        "noise multiplier 2",
        "privacy loss distribution",
        "N = 1000",
        PLAN.fingerprint[:16],
    ):
        assert part in sentence


def test_full_batch_is_named():
    full = Statement(plan=replace(PLAN, sampling=FullBatch(examples=1000)), circumstances=Circumstances())
    assert "every example in every step" in full.sentence
    assert full.to_dict()["accountant"] == "exact Gaussian composition"


def test_a_seed_voids_the_promise_in_plain_sight():
    assert "To whoever knows the seed of this run it promises nothing" in statement(seeded=True).sentence
    assert "seed" in statement(seeded=True).plain[0]
    assert "seed" not in statement().sentence


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"read": ("examples",)}, "Read from the data and treated as public: the number of training examples."),
        ({"read": ("classes",)}, "Read from the data and treated as public: the list of classes."),
        ({"read": ("size",)}, "Read from the data and treated as public: the image size."),
        ({"pretrained": "file"}, "The data behind the pre-trained weights (from a file of the owner)"),
        ({}, "measured on the test split"),
        ({}, "Checks of the data before training"),
        ({}, "earlier runs on the same data"),
        ({}, "Two records of one person"),
        ({}, "the noise is float64 Gaussian"),
        ({}, "a 256-bit key (HMAC-SHA512, then Philox"),
        ({"steps_taken": 7}, "The choice to end the run after 7 steps"),
        ({}, "Running time, memory use"),
    ],
)
def test_what_is_not_covered_is_named(facts, words):
    assert words in "\n".join(statement(**facts).not_covered)


def test_what_does_not_apply_is_not_named():
    text = "\n".join(statement(test_public=True).not_covered)
    assert "Read from the data" not in text
    assert "test split" not in text
    assert "pre-trained" not in text


def test_an_early_end_does_not_lower_epsilon():
    early = statement(steps_taken=3).to_dict()
    assert early["epsilon"] == statement().to_dict()["epsilon"] >= PLAN.epsilon()
    assert (early["steps_planned"], early["steps_taken"]) == (50, 3)


def test_it_survives_json_and_follows_from_plan_and_circumstances():
    facts = Circumstances(read=("examples", "channels"), pretrained="timm", seeded=True)
    data = json.loads(json.dumps(Statement(plan=PLAN, circumstances=facts).to_dict()))
    again = Statement(
        plan=PrivacyPlan.from_dict(data["plan"]), circumstances=Circumstances.from_dict(data["circumstances"])
    )
    assert json.loads(json.dumps(again.to_dict())) == data


@given(value=st.floats(0, 1e6), digits=st.integers(2, 6))
def test_a_printed_epsilon_is_never_below_the_true_one(value, digits):
    printed = float(rounded_up(value, digits))
    assert value <= printed <= value + 10**-digits * (1 + 1e-6)


def test_bounds_in_words_are_rounded_up():
    for sigma, factor in ((0.93, None), (2.0, None), (0.2, None)):
        plan = replace(PLAN, mechanism=Gaussian(noise_multiplier=sigma))
        words = Statement(plan=plan, circumstances=Circumstances()).plain[1]
        factor = float(words.split("factor of ")[1].split(",")[0])
        assert math.exp(plan.epsilon()) <= factor <= 1.11 * math.exp(plan.epsilon()) + 0.1


def test_a_large_delta_counts_in_the_bound_on_tests():
    plan = replace(PLAN, delta=0.3)
    assert plan.epsilon() < 1
    assert "at most 3" in Statement(plan=plan, circumstances=Circumstances()).plain[2]


def test_delta_is_printed_in_full():
    assert "1.0000049e-05" in Statement(plan=replace(PLAN, delta=1.0000049e-05), circumstances=Circumstances()).sentence


def test_the_bound_on_tests_is_the_theorem_s():
    """TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR)) at FPR 1% (Kairouz et al. 2015)."""
    epsilon = PLAN.epsilon()
    bound = min(math.exp(epsilon) * 0.01 + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - 0.01))
    assert f"at most {math.ceil(bound * 100)}%" in statement().plain[2]


def test_unknown_facts_are_refused():
    with pytest.raises(SfumatoError, match="unknown facts"):
        Circumstances(read=("weather",))
    with pytest.raises(SfumatoError, match="missing or unknown"):
        Circumstances.from_dict({"read": [], "colour": "blue"})
