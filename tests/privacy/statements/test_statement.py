"""The statement: says the plan's epsilon, rounded up, and names what it does not cover."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import Gaussian, PrivacyPlan, SfumatoError, Statement
from sfumato.privacy import (
    BandedToeplitz,
    Circumstances,
    CyclicPoisson,
    FixedOrder,
    FullBatch,
    NoisyTable,
    Search,
    Tree,
    TruncatedPoisson,
    User,
    true_positive_rates,
)
from sfumato.privacy.statements.display import percent_up, rounded_up

PLAN = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=50, noise_multiplier=2.0, delta=1e-5)


FIGURES = NoisyTable(epsilon=4.0, classes=2)


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


def test_a_delta_above_1_over_n_is_named_beside_the_epsilon():
    for delta, named in ((1.1e-3, True), (1e-3, False)):
        plan = replace(PLAN, delta=delta)
        sentence = Statement(plan=plan, circumstances=Circumstances()).sentence
        assert ("Delta is above 1/N" in sentence) == named


def test_circumstances_are_recorded_whole_and_read_only_whole():
    for facts in (Circumstances(), Circumstances(published=True)):
        written = facts.to_dict()
        assert Circumstances.from_dict(written) == facts
        for name in written:
            with pytest.raises(SfumatoError, match="circumstances have missing, unknown or ill-typed fields"):
                Circumstances.from_dict({one: value for one, value in written.items() if one != name})


BANDED = BandedToeplitz(noise_multiplier=6.0, coefficients=(1.0, 0.5))
PAIRS = {
    "tree": (
        FixedOrder(batch_size=100),
        Tree(noise_multiplier=6.0, steps_per_tree=20),
        "50 steps of the Gaussian mechanism with tree aggregation, each example in every 10th step, beginning with one "
        "of the first 10 drawn in secret, clipping norm 1, noise multiplier 6 of each node of a tree for every 20 "
        "steps, accounted by exact Gaussian composition",
        ("in an order that was drawn once in secret", "nodes of a binary tree"),
    ),
    "position": (
        FixedOrder(batch_size=100, assignment="position"),
        BANDED,
        "each example in every 10th step, by its place in the file, whose order is public, clipping norm 1, noise "
        "multiplier 6 before it is correlated over 2 steps, accounted",
        ("whose order is taken as public", "noise of the few steps before it"),
    ),
    "cyclic": (
        CyclicPoisson(batch_size=100, groups=4),
        BANDED,
        "amplified by cyclic Poisson sampling, each example in one of 4 groups drawn in secret, which take turns, and "
        "drawn into each step of its group with probability 0.4, clipping norm 1, noise multiplier 6 before it is "
        "correlated over 2 steps, accounted by privacy loss distribution",
        ("the groups took turns", "depends on this sampling as well as on the noise"),
    ),
    "truncated": (
        TruncatedPoisson(batch_size=100, largest=150),
        Gaussian(noise_multiplier=6.0),
        "probability 0.1, at most 150 of them, the number of examples being public, clipping norm 1, noise multiplier "
        "6, accounted",
        ("The number of examples in the data is taken as public",),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_rule_and_mechanism_is_named_in_plain_words(name):
    participation, mechanism, sentence, plain = PAIRS[name]
    adjacency = participation.adjacencies[0]
    plan = replace(PLAN, participation=participation, mechanism=mechanism, adjacency=adjacency)
    said = Statement(plan=plan, circumstances=Circumstances())
    assert sentence in said.sentence
    assert f"under {adjacency} adjacency" in said.sentence
    for words in plain:
        assert words in "\n".join(said.plain)
    data = json.loads(json.dumps(said.to_dict()))
    assert data["adjacency"] == adjacency
    assert (data["epsilon_rdp"] is None) == (name == "truncated")


def test_zero_out_says_what_it_is_and_that_its_figures_are_no_others():
    removed = "\n".join(statement().plain)
    zeroed = "\n".join(Statement(plan=replace(PLAN, adjacency="zero-out"), circumstances=Circumstances()).plain)
    assert "as if that example had never been used" in removed
    assert "as if that example had contributed nothing" in zeroed
    assert "Its place and the number of examples stay known." in zeroed
    assert "An epsilon for one adjacency says nothing about the other." in zeroed
    assert "zero-out" not in removed
    assert "presence" in removed
    assert "presence" not in zeroed


def test_a_run_by_a_seed_promises_nothing_and_says_so_first():
    seeded, secret = statement(seeded=True), statement()
    opening = (
        "This run is an experiment: its randomness follows from a seed, so its weights have no privacy guarantee. "
        "Its plan, run under a secret key, would be ("
    )
    assert seeded.sentence == secret.sentence.replace("This model is (", opening)
    assert seeded.sentence.startswith(opening)
    assert "seed" not in secret.sentence
    assert seeded.plain[0] == opening.split(" Its plan")[0]
    assert "without the seed" in seeded.plain[1]
    assert seeded.not_covered[0].startswith("Everything")
    assert "no guarantee" not in repr(secret)
    assert "no guarantee" in repr(seeded)
    assert (seeded.promises, secret.promises) == (False, True)


def test_its_data_have_no_figure_where_a_promise_would_have_one():
    data, promised = statement(seeded=True).to_dict(), statement().to_dict()
    names = ("epsilon", "epsilon_rdp", "delta")
    assert (data["promises"], promised["promises"]) == (False, True)
    assert [data[name] for name in names] == [None, None, None]
    assert data["planned"] == {name: promised[name] for name in names}
    assert {"curve", "mu", "true_positives"} & set(data) == set()
    assert "figures" not in statement(seeded=True, figures=FIGURES).to_dict()
    assert "figures published" not in statement(seeded=True, figures=FIGURES).sentence


def test_no_words_of_a_run_by_a_seed_hang_on_who_knows_it():
    data = statement(seeded=True).to_dict()
    text = json.dumps(data)
    assert not re.search("knows? (or guesses )?(the|its|their) seeds?|not know", text)
    assert "at most" not in " ".join(data["plain"])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"read": ("examples",)}, "Read from the data and treated as public: the number of training examples."),
        ({"read": ("classes",)}, "Read from the data and treated as public: the list of classes."),
        ({"read": ("size",)}, "Read from the data and treated as public: the image size."),
        ({"origins": ("file",)}, "The initial weights. They come from one of the owner's files."),
        (
            {"origins": ("own model",)},
            "Your model's initial weights. If they were trained on private data, this guarantee does not cover",
        ),
        ({}, "images of the test split. They have no noise"),
        ({}, "Checks of the data before training"),
        ({}, "Earlier runs on the same data"),
        ({}, "Several records of one person"),
        ({}, "The noise is float64 Gaussian"),
        ({}, "break the random number generator (HMAC-SHA512 and Philox with a 256-bit key)."),
        ({"steps_taken": 7}, "The choice to end the run after 7 steps"),
        ({}, "Side channels: running time, memory use"),
        (
            {"rounds": 2, "own_loop": True},
            "Rounds in which this site sends nothing. An error that a single record causes",
        ),
        ({"figures": FIGURES}, "Only the noisy counts are covered"),
        ({"figures": FIGURES}, "Figures that other runs publish of the same test images. Their epsilons add up."),
        ({"figures": FIGURES}, "A record in both parts of the data"),
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


@given(value=st.floats(0, 1e6), digits=st.integers(2, 6))
def test_a_printed_epsilon_is_never_below_the_true_one(value, digits):
    printed = float(rounded_up(value, digits))
    assert value <= printed <= value + 10**-digits * (1 + 1e-6)


def test_bounds_in_words_are_rounded_up():
    shown = []
    for sigma in (50.0, 10.0, 4.7, 1.5):
        plan = replace(PLAN, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=sigma))
        words = Statement(plan=plan, circumstances=Circumstances()).plain[1]
        shown.append(words.split("factor of ")[1].split(", and")[0])
        factor = float(shown[-1].replace(",", ""))
        assert math.exp(plan.epsilon()) <= factor <= 1.11 * math.exp(plan.epsilon()) + 0.1
    assert ["e" in one for one in shown] == [False, False, False, True]
    assert "," in shown[2]


def test_a_large_delta_counts_in_the_bound_on_tests():
    plan = replace(PLAN, delta=0.3)
    assert plan.epsilon() < 1
    bound = true_positive_rates(plan, [0.01])[0]
    assert bound <= min(math.exp(plan.epsilon()) * 0.01 + 0.3, 1)
    assert f"at most {percent_up(bound)} of" in Statement(plan=plan, circumstances=Circumstances()).plain[2]


def test_a_test_with_1_percent_false_alarms_has_one_figure_everywhere():
    """It is a bound by every (epsilon, delta) of the curve, so it is at most that of the stated pair."""
    said, rate = statement(), 0.01
    bound = true_positive_rates(said.plan, [rate])[0]
    pair = math.exp(said.epsilon) * rate + said.plan.delta, 1 - math.exp(-said.epsilon) * (1 - said.plan.delta - rate)
    assert bound <= min(pair) + 1e-6
    assert f"finds it in at most {percent_up(bound)} of the cases." in said.plain[2]
    assert percent_up(said.to_dict()["true_positives"]["0.01"]) == percent_up(bound)


def test_unknown_facts_are_refused():
    with pytest.raises(SfumatoError, match="read must be one of examples, drift"):
        Circumstances(read=("weather",))
    with pytest.raises(SfumatoError, match="missing, unknown or ill-typed"):
        Circumstances.from_dict({**Circumstances().to_dict(), "colour": "blue"})


def test_figures_are_promised_for_the_unit_of_the_plan():
    persons = replace(PLAN, unit=User())
    found = Statement(plan=persons, circumstances=Circumstances(figures=FIGURES))
    assert "(4.0, 0)-differentially private for each single person under add-or-remove adjacency" in found.sentence
    assert "from one test record of each person. A person is in the training part or in the test part" in found.sentence
    assert "for each single test example under" in statement(figures=FIGURES).sentence


# -- a search that is not covered --------------------------------------------------------------------------------------


def test_a_search_that_is_not_covered_comes_first_and_in_figures():
    found = statement(search=Search(runs=12, epsilon=3.39991, delta=1e-5), origins=("timm",), steps_taken=3)
    assert found.not_covered[0] == (
        "The search for these settings. It has 12 runs on the same data, and the guarantee is that of one. If all were "
        "planned in advance, they have epsilon 3.400 at delta 1e-05 together. No epsilon covers the choice among them, "
        "which was made by exact scores on these data."
    )
    assert found.not_covered[1:] == statement(origins=("timm",), steps_taken=3).not_covered
    assert found.epsilon == statement().epsilon
    assert "1 run on the same data" in statement(search=Search(runs=1, epsilon=1.0, delta=1e-5)).not_covered[0]
    assert "epsilon inf" in statement(search=Search(runs=2, epsilon=math.inf, delta=1e-5)).not_covered[0]
