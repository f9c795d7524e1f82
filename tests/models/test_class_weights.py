"""Shares of the classes that are declared: weights that follow from them alone, after clipping."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from sfumato import PrivacyPlan, RunKey, SfumatoError, open_source, train, verify
from sfumato.experiment.settings import Settings
from sfumato.gradients.checks import oracle
from sfumato.models.losses import answer_weights, class_weights, parse_shares
from sfumato.privacy import FixedClipping, Gaussian, TruncatedPoisson, User
from sfumato.training.inputs import Inputs, head_on_features
from sfumato.training.job import PublicTraining
from sfumato.training.preparation.prepare import prepare

SHARES = {"0": 0.4, "1": 0.3, "2": 0.2, "3": 0.1}
SETTINGS = {"learning_rate": 1.0, "seed": 0, "class_prevalence": SHARES}


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=9))
def test_weights_are_inverse_to_the_shares_and_at_most_one(counts):
    shares = {str(number): count / sum(counts) for number, count in enumerate(counts)}
    weights = class_weights(shares, tuple(shares))
    assert max(weights) == 1.0
    assert np.ptp([weight * share for weight, share in zip(weights, shares.values(), strict=True)]) < 1e-12


@pytest.mark.parametrize(
    "given_as", [{"a": 0.1, "b, c": 0.9}, ("a=0.1", "b, c=0.9"), ["a=0.1,b, c=0.9"], "a=0.1,b, c=0.9"]
)
def test_shares_in_all_forms(given_as):
    assert parse_shares(given_as) == {"a": 0.1, "b, c": 0.9}
    settings = Settings(model="cnn", learning_rate=1.0, class_prevalence=given_as)
    assert settings.to_dict()["class_prevalence"] == {"a": 0.1, "b, c": 0.9}
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (
            {"a": 0.1, "b": 0.8},
            "class_prevalence sum to 0.9, not to 1; give every class's share, such as pneumonia=0.02",
        ),
        ({"a": 1.0, "b": 0.0}, "class_prevalence of 'a' must lie strictly between 0 and 1, got 1.0"),
        (["a=0.1", "a=0.9"], "class_prevalence names a class twice"),
        (["a"], "class_prevalence 'a' is not NAME=SHARE"),
    ],
)
def test_shares_that_are_none_are_refused(shares, message):
    with pytest.raises(SfumatoError) as found:
        parse_shares(shares)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (
            {"norml": 0.9, "odd": 0.1},
            "must be one of normal, odd; got 'norml'; did you mean normal",
        ),
        ({"odd": 1.0}, "has no share for the class 'normal'"),
    ],
)
def test_every_class_has_its_share(shares, message):
    with pytest.raises(SfumatoError, match=message):
        class_weights(shares, ("normal", "odd"))


@pytest.mark.parametrize(
    ("model", "padded"),
    [
        ({"model": "cnn"}, True),
        ({"model": "cnn", "views": 2, "shift": 1}, False),
        ({"model": "scattering"}, False),
        ({"model": "linear", "loss": "sigmoid"}, True),
    ],
)
def test_a_step_s_sum_is_that_of_weighted_clipped_gradients(spots, model, padded):
    """By the slow truth, class by class; and not what weights in the loss would give."""
    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=12, noise_multiplier=1.0, delta=1e-3, max_norm=0.3)
    if padded:
        plan = PrivacyPlan(
            population=200,
            participation=TruncatedPoisson(batch_size=20, largest=28),
            mechanism=Gaussian(noise_multiplier=2.0),
            steps=6,
            delta=1e-3,
            clipping=FixedClipping(0.3),
            adjacency="zero-out",
        )
    job = prepare(None, spots, plan, Settings(**model, **SETTINGS), micro_batch=7)
    participants, key = np.arange(0, 200, 19), RunKey.from_seed(0)
    pieces = list(Inputs(job).micro_batches(key, 0, participants))
    total = job.gradient.zeros()
    for piece in pieces:
        for name, value in job.gradient(*piece).gradients.items():
            total[name] += value
    bare = replace(job.settings, class_prevalence=None)
    plain = prepare(None, spots, plan, bare, micro_batch=7)
    plain.module.load_state_dict(job.module.state_dict())
    trained = plain.module if plain.trunk is None else head_on_features(plain.module, plain.trunk.head)
    expected = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in total.items()}
    seen = 0
    loss = functional.cross_entropy if job.settings.objective.loss == "softmax" else sigmoid
    for inputs, targets, _, weights in pieces:
        for label, share in enumerate(SHARES.values()):
            rows = torch.nonzero((targets == label) & (weights > 0)).flatten()
            seen += len(rows)
            if len(rows):
                how = {"max_norm": 0.3, "views": job.settings.augmentation.views}
                own, *_ = oracle.clipped_sum(trained, loss, inputs[rows], targets[rows], **how)
                for name in expected:
                    expected[name] += 0.1 / share * own[name]
    assert seen == len(participants)
    for name, value in total.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-5)


def test_weights_do_not_depend_on_how_frequent_the_classes_are_among_the_records(spots, plan):
    """Nor on whether they are at all."""
    asked, found = Settings(model="linear", **SETTINGS), []
    for classes in ([0, 1, 2, 3], [0, 0, 0, 0, 1, 2, 2, 3], [3, 3, 2]):
        labels = np.resize(classes, len(spots.train.labels)).astype(spots.train.labels.dtype)
        source = replace(spots, train=replace(spots.train, labels=labels))
        pieces = Inputs(prepare(None, source, plan, asked)).micro_batches(RunKey.from_seed(0), 0, np.arange(40))
        for _, targets, _, weights in pieces:
            found.append(torch.tensor([0.25, 1 / 3, 0.5, 1.0])[targets])
            assert torch.equal(weights, found[-1].to(weights.dtype))
    assert len({float(one.mean()) for one in found}) == 3


def sigmoid(logits, labels):
    wanted = functional.one_hot(labels, logits.shape[-1]).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(-1).mean()


def test_no_record_adds_more_than_the_bound(spots, plan):
    job = prepare(None, spots, plan, Settings(model="cnn", **SETTINGS))
    for inputs, targets, keys, weights in Inputs(job).micro_batches(RunKey.from_seed(0), 0, np.arange(8)):
        for row in range(len(targets)):
            one = slice(row, row + 1)
            found = job.gradient(100 * inputs[one], targets[one], keys, weights[one]).gradients
            length = torch.cat([value.double().flatten() for value in found.values()]).norm()
            assert length <= plan.max_norm * float(weights[row])


@pytest.fixture(scope="module")
def weighted(tmp_path_factory, spots, plan):
    patch = pytest.MonkeyPatch()
    patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
    try:
        place = tmp_path_factory.mktemp("runs") / "weighted"
        yield train("linear", spots, plan, directory=place, learning_rate=1.0, seed=5, class_prevalence=SHARES)
    finally:
        patch.undo()


def test_a_run_records_its_shares_and_its_statement_names_them(weighted):
    settings = json.loads((weighted.directory / "settings.json").read_text())
    assert settings["settings"]["class_prevalence"] == SHARES
    line = "The shares of the classes by which examples are weighted (0 0.4, 1 0.3, 2 0.2, 3 0.1). sfumato trusts"
    assert any(one.startswith(line) for one in weighted.statement.not_covered)
    assert verify(weighted.directory).holds
    assert "0 0.4, 1 0.3" in (weighted.directory / "report.html").read_text()


def test_where_there_is_nothing_to_weigh_they_are_refused(spots, plan):
    with pytest.raises(SfumatoError, match="names must be one of 0, 1, 2, 3; got 'cat'"):
        prepare(None, spots, plan, Settings(model="linear", learning_rate=1.0, class_prevalence={"cat": 0.5, "0": 0.5}))
    with pytest.raises(SfumatoError, match="class_prevalence is for private training"):
        PublicTraining(settings=Settings(model="linear", **SETTINGS), steps=3, batch_size=5)


def test_users_who_are_clipped_as_a_whole_are_refused(spots):
    whose = np.array([str(number // 4) for number in range(200)])
    source = replace(spots, train=replace(spots.train, users=whose), users=50)
    plan = PrivacyPlan.calibrate(
        examples=50, unit=User(at_most=4), batch_size=10, steps=3, noise_multiplier=4.0, delta=1e-3
    )
    with pytest.raises(SfumatoError, match="who are clipped as a whole; leave it out"):
        prepare(None, source, plan, Settings(model="linear", **SETTINGS))


LABELS = {"rare": 0.1, "half": 0.5, "usual": 0.8}


@pytest.fixture(scope="module")
def several():
    """60 images with three labels each, of which none, one or many are true."""
    generator = np.random.default_rng(0)
    truth = (generator.random((60, 3)) < tuple(LABELS.values())).astype(np.uint8)
    images = generator.integers(0, 256, (60, 8, 8), np.uint8)
    return open_source((images, truth), owner_key=bytes(32), label_columns=tuple(LABELS), test_fraction=0.3)


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=9))
def test_both_answers_to_a_label_count_alike_in_the_mean_and_at_most_one(shares):
    prevalence = {str(number): share for number, share in enumerate(shares)}
    for (no, yes), share in zip(answer_weights(prevalence, tuple(prevalence)), shares, strict=True):
        assert share * yes == pytest.approx((1 - share) * no)
        assert max(no, yes) == pytest.approx(1)


@pytest.mark.parametrize("max_norm", [0.3, 1e3])
def test_weighted_answers_are_clipped_after_weighting(several, max_norm):
    """By one example after the other: torch's own loss with weights written out, its gradient, and its length cut."""
    plan = PrivacyPlan.calibrate(
        examples=several.examples, batch_size=10, steps=4, noise_multiplier=1.0, delta=1e-3, max_norm=max_norm
    )
    settings = Settings(model="linear", loss="multilabel", **SETTINGS | {"class_prevalence": LABELS})
    job = prepare(None, several, plan, settings, micro_batch=7)
    with torch.no_grad():
        for value in job.module.parameters():
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    yes, no = torch.tensor([1.0, 1.0, 0.25]), torch.tensor([0.1 / 0.9, 1.0, 1.0])
    found, expected, lengths = job.gradient.zeros(), job.gradient.zeros(), []
    everyone = np.arange(len(several.train))
    for inputs, targets, keys, weights in Inputs(job).micro_batches(RunKey.from_seed(0), 0, everyone):
        assert weights is None
        for name, value in job.gradient(inputs, targets, keys, weights).gradients.items():
            found[name] += value
        for image, answers in zip(inputs, targets, strict=True):
            wanted = answers.float()
            logits = job.module(image[None])[0]
            each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            loss = (each * (wanted * yes + (1 - wanted) * no)).sum()
            own = torch.autograd.grad(loss, [*job.module.parameters()])
            length = torch.cat([value.flatten() for value in own]).norm()
            lengths.append(float(length))
            for (name, _), value in zip(job.module.named_parameters(), own, strict=True):
                expected[name] += value * min(1, max_norm / length)
    assert (np.array(lengths) > max_norm).mean() > 0.9 if max_norm < 1 else max(lengths) < max_norm
    for name, value in found.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-4, atol=1e-5)


def test_a_run_of_several_labels_names_its_shares(several, tmp_path):
    how = {"epsilon": 8.0, "steps": 3, "class_prevalence": LABELS, "threads": 1}
    run = train("linear", several, directory=tmp_path / "run", **how)
    assert any("(rare 0.1, half 0.5, usual 0.8). sfumato trusts" in line for line in run.statement.not_covered)
    assert verify(run.directory).holds
    assert run.load().reading.shares == dict.fromkeys(LABELS, 0.5)
