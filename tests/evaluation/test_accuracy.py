"""Calibration errors, and several independent labels: figures against plain counting, and what must not be done."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sfumato import PrivacyPlan, RunKey, SfumatoError, open_source, pretrain, train, verify
from sfumato.data import Records
from sfumato.evaluation import accuracy
from sfumato.experiment.settings import Settings
from sfumato.privacy import FullBatch, Gaussian, TruncatedPoisson
from sfumato.report import MultilabelEvaluation
from sfumato.runs import directory as names
from sfumato.training.inputs import Inputs
from sfumato.training.preparation.estimate import estimate
from sfumato.training.preparation.prepare import prepare

NAMES = ("westward", "northward", "eastward")
CHOICES = {"learning_rate": 2.0, "optimizer": "sgd", "momentum": 0.0, "averaging": None, "seed": 3}


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright side for each label that is true; some have none."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, 3)) < (0.5, 0.3, 0.4)).astype(np.uint8)
    images = generator.integers(0, 60, (count, 8, 8))
    images[:, :, 0] += 150 * labels[:, :1]
    images[:, 0, 1:7] += 150 * labels[:, 1:2]
    images[:, :, 7] += 150 * labels[:, 2:]
    return images.astype(np.uint8), labels


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> str:
    (x, y), (x_test, y_test) = pictures(300, 0), pictures(80, 1)
    path = tmp_path_factory.mktemp("several") / "pictures.npz"
    users = {"users_train": np.arange(300) // 3, "users_test": 100 + np.arange(80)}
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=np.array(NAMES), **users)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(spec):
    return open_source(spec, owner_key=bytes(32), label_columns=NAMES)


def plan(source, **others) -> PrivacyPlan:
    given = {"mechanism": Gaussian(noise_multiplier=2.0), "population": source.examples, "steps": 25, "delta": 1e-3}
    return PrivacyPlan(**given | {"participation": FullBatch(), **others})


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "")
        return train("linear", source, plan(source), directory=place, threads=1, device="cpu", keep=4, **CHOICES)


@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.2, 0.5, 0.8]), st.integers(0, 999))
def test_figures_are_those_of_plain_counting(records, width, threshold, seed):
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randint(-3, 4, (records, width), generator=generator).double()  # with ties
    labels = torch.randint(2, (records, width), generator=generator)
    found = accuracy.label_evaluation(outputs, labels, [f"l{place}" for place in range(width)], threshold=threshold)
    scores, truth = (1 / (1 + np.exp(-outputs.numpy()))), labels.numpy()
    said = scores >= threshold
    assert found.accuracy.value == pytest.approx(np.mean(said == truth))
    assert found.exact_match.value == pytest.approx(np.mean((said == truth).all(1)))
    assert found.baseline == pytest.approx(np.maximum(truth.mean(0), 1 - truth.mean(0)).mean())
    assert found.examples == records
    for place, one in enumerate(found.labels):
        true, yes = truth[:, place] == 1, said[:, place]
        assert (one.name, one.positives, one.negatives) == (f"l{place}", true.sum(), (~true).sum())
        for share, value in ((one.sensitivity, yes[true]), (one.specificity, ~yes[~true])):
            assert (share is None) == (len(value) == 0)
            assert share is None or share.value == pytest.approx(value.mean())
        assert (one.auc is None) == (len(set(true)) == 1)
        assert one.auc is None or one.auc.value == pytest.approx(roc_auc_score(true, scores[:, place]))
    for figure in (found.accuracy, found.exact_match, *(one.auc for one in found.labels if one.auc)):
        assert 0 <= figure.low <= figure.value + 1e-12 <= figure.high + 2e-12 <= 1 + 3e-12
        assert figure.high - figure.low > 0.01
    assert MultilabelEvaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    scored = accuracy.label_score(outputs, labels)
    assert scored["accuracy"] == pytest.approx(np.mean((scores >= 0.5) == truth))


def test_each_label_is_learnt_and_kept(run, source, spec):
    figures = run.figures
    assert figures["accuracy"] > 0.85
    assert [one["name"] for one in figures["labels"]] == list(NAMES)
    assert [one["positives"] for one in figures["labels"]] == source.test.labels.sum(0).tolist()
    assert all(one["auc"][0] > 0.95 for one in figures["labels"])
    assert verify(run.directory).holds
    assert [name for name, _ in run.main_figures] == ["accuracy of labels", "mean area under ROC", "exact match"]
    loaded = run.load()
    assert loaded.loss == "multilabel"
    assert loaded.classes == NAMES
    found = loaded.predict(source.test.images)
    assert ((found >= 0.5).numpy() == source.test.labels).mean() == pytest.approx(figures["accuracy"])
    assert found.sum(1).max() > 1.5  # not a distribution over the labels
    again = loaded.open_source(spec)
    assert again.classes == NAMES
    loaded.module_for(again)


def test_the_page_has_a_table_of_labels_and_its_public_version_none(run):
    page = (run.directory / names.REPORT).read_text()
    assert "Label by label" in page
    assert "What is taken for what" not in page
    assert all(name in page for name in NAMES)
    from sfumato.training.conclusion.run_report import report

    public = report(names.RunDirectory(run.directory), public=True)
    assert "Label by label" not in public
    assert f"{run.accuracy:.1%}" not in public
    assert not any(name in public for name in NAMES)


def test_padding_has_no_labels(spec):
    """Steps of one shape, whoever takes part, with the labels of the records in their order."""
    few = open_source(spec, owner_key=bytes(32), label_columns=NAMES, examples=200)
    rule, facts = TruncatedPoisson(batch_size=20, largest=28), {"population": 200, "steps": 6, "adjacency": "zero-out"}
    settings = Settings(model="linear", learning_rate=1.0, loss="multilabel", seed=0)
    job = prepare(None, few, plan(few, participation=rule, **facts), settings, micro_batch=10)
    rows = np.array([3, 50, 51, 120, 121, 122, 123, 124, 125, 126, 199])
    pieces = list(Inputs(job).micro_batches(RunKey.from_seed(0), 1, rows))
    targets, weights = torch.cat([piece[1] for piece in pieces]), torch.cat([piece[3] for piece in pieces])
    assert targets[weights].tolist() == few.train.labels[rows].tolist()
    assert not targets[~weights].any()
    assert estimate(job).micro_batches == 3


def test_what_takes_one_class_for_each_image_is_refused(run, spec, source, tmp_path, digits):
    place = {"directory": tmp_path / "run", "device": "cpu", "threads": 1}
    with pytest.raises(SfumatoError, match=r"report_epsilon 0\.1 needs one class for each record"):
        train("linear", source, plan(source), report_epsilon=0.1, **place, **CHOICES)
    for loss in ("softmax", "sigmoid"):
        with pytest.raises(SfumatoError, match=f"loss is {loss}, but each record of the source has several labels"):
            train("linear", source, plan(source), loss=loss, **place, **CHOICES)
    with pytest.raises(SfumatoError, match="loss is multilabel, but each record of the source has one label"):
        train("linear", digits, plan(digits), loss="multilabel", **place, **CHOICES)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SfumatoError, match="label 0 means '0' in the source and 'westward' in the model"):
        run.load().module_for(digits)
    with pytest.raises(SfumatoError, match="digits has one label per image, but the model predicts several"):
        run.load().open_source("digits")
    one_each = Records(images=source.test.images, labels=source.test.labels.argmax(1))
    with pytest.raises(SfumatoError, match="the source has one label for each record, but the model is for several"):
        run.load().module_for(replace(source, train=one_each, test=one_each))


def test_figures_of_classes_are_not_taken_of_labels():
    """Three records of three labels would broadcast."""
    outputs, matrix = torch.randn(3, 3), torch.ones(3, 3, dtype=torch.int64)
    for labels, loss in ((matrix, "softmax"), (matrix, "multilabel"), (matrix[0], "multilabel")):
        with pytest.raises(TypeError):
            accuracy.score_of(outputs, labels, loss=loss)
    with pytest.raises(TypeError):
        accuracy.label_score(outputs, matrix[0])


def test_the_rule_is_the_loss_of_the_source(source):
    """No private label decides a default."""
    from sfumato.experiment.experiment import Experiment, forecast

    turned = replace(source.train, labels=1 - source.train.labels)
    decided = Experiment(epsilon=3.0).decide(source)
    assert decided.settings.objective.loss == "multilabel"
    assert Experiment(epsilon=3.0).decide(replace(source, train=turned)) == decided
    assert "multilabel" in " ".join(decided.reasons)
    assert forecast(decided.plan, decided.settings, source) is None
    assert Settings.from_dict(decided.settings.to_dict()) == decided.settings


def test_public_training_takes_several_labels_and_views(spec, tmp_path):
    public = open_source(spec, owner_key=bytes(32), label_columns=NAMES, public=True)
    how = {"steps": 60, "batch_size": 32, "learning_rate": 0.05, "threads": 1, "views": 2, "shift": 1}
    assert pretrain("linear", public, directory=tmp_path / "p", **how).accuracy > 0.7


def test_expected_calibration_error_is_the_mean_gap_of_bins():
    sure = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.7, 0.7]).double()
    logits = torch.stack([sure.log(), (1 - sure).log()], 1)
    found = accuracy.calibration(logits, torch.tensor([0, 0, 1, 1, 0, 1]), loss="softmax")
    assert found.error == pytest.approx((4 * 0.45 + 2 * 0.2) / 6)
    assert accuracy.calibration(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), loss="softmax") is None
