"""What the last weights of a run say beside its model: against the same by hand, from the run's own files."""

import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

from sfumato import load, open_source, train
from sfumato.averaging import mean
from sfumato.experiment.settings import Settings
from sfumato.runs import aggregated
from sfumato.runs.directory import RunDirectory

SETTINGS = Settings(model="linear", learning_rate=2.0, optimizer="sgd", momentum=0.0, ema=0.0, seed=3)


@pytest.fixture(scope="module")
def run(digits, planned, tmp_path_factory):
    place = tmp_path_factory.mktemp("over") / "run"
    train(None, digits, planned, directory=place, settings=SETTINGS, threads=1, device="cpu", keep=8)
    return place


def logits_of(run, digits, weights) -> torch.Tensor:
    loaded = load(run)
    loaded.module.load_state_dict({**loaded.module.state_dict(), **weights})
    return loaded.logits(list(digits.test.images))


def test_accuracies_and_deviations_are_those_of_the_kept_weights(run, digits):
    found = json.loads((run / "evaluation.json").read_text())["over_steps"]
    labels = torch.from_numpy(digits.test.labels)
    kept = list(aggregated.load_weights(RunDirectory(run), (21, 22, 23, 24)).values())
    outputs = [logits_of(run, digits, one) for one in kept]
    shares = [(one.argmax(1) == labels).double().mean().item() for one in outputs]
    pairs = [(0, 1), (1, 2), (2, 3)]
    means = [
        (logits_of(run, digits, mean([kept[a], kept[b]])).argmax(1) == labels).double().mean().item() for a, b in pairs
    ]
    said = [((outputs[a].softmax(1) + outputs[b].softmax(1)).argmax(1) == labels).double().mean() for a, b in pairs]
    votes = [
        sum(functional.one_hot(outputs[i].argmax(1), 10) + outputs[i].softmax(1) / 128 for i in ab) for ab in pairs
    ]
    most = [(one.argmax(1) == labels).double().mean().item() for one in votes]
    rows = {name: (accuracy, deviation) for name, accuracy, deviation in found["rows"]}
    assert (found["records"], found["steps"], found["width"]) == (len(labels), 4, 2)
    assert rows["last"] == pytest.approx((shares[-1], statistics.stdev(shares)))
    assert rows["upa"] == pytest.approx((means[-1], statistics.stdev(means)))
    assert rows["opa"] == pytest.approx((float(said[-1]), statistics.stdev(map(float, said))))
    assert rows["omv"] == pytest.approx((most[-1], statistics.stdev(most)))
    assert found["released"] == pytest.approx(shares[-1])


def test_the_released_average_is_measured_by_itself_and_noted(digits, planned, tmp_path):
    settings = replace(SETTINGS, learning_rate=4.0, aggregate="uta", aggregate_last=12)
    train(None, digits, planned, directory=tmp_path / "run", settings=settings, threads=1, device="cpu", keep=8)
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["over_steps"]
    right = logits_of(tmp_path / "run", digits, {}).argmax(1) == torch.from_numpy(digits.test.labels)
    last = {name: accuracy for name, accuracy, _ in found["rows"]}["last"]
    assert found["released"] == pytest.approx(right.double().mean().item()) != last
    assert "the model is an average of weights" in " ".join(found["notes"])
    assert "the model is an average of weights" in (tmp_path / "run" / "report.html").read_text()


def test_each_sample_has_the_interval_of_its_first_class(run, digits):
    evaluation = json.loads((run / "evaluation.json").read_text())
    found = evaluation["over_steps"]
    assert len(found["intervals"]) == len(evaluation["samples"])
    assert found["notes"] == []
    steps = tuple(step for step in aggregated.kept_hashes(RunDirectory(run)) if step > 12)
    each = torch.stack(
        [logits_of(run, digits, one) for one in aggregated.load_weights(RunDirectory(run), steps).values()]
    ).double()
    first = logits_of(run, digits, {}).argmax(1, keepdim=True)
    k = len(steps)
    half = stats.t.ppf(0.975, k - 1) * each.std(0) * np.sqrt(1 + 1 / k)
    low, high = ((each.mean(0) + sign * half).gather(1, first).flatten() for sign in (-1, 1))
    ends = torch.tensor(found["intervals"], dtype=torch.float64)
    for column, expected in ((0, low), (1, high)):
        distances = (ends[:, column].unsqueeze(1) - expected).abs().amin(1)
        assert distances.max() < 1e-4
    page = (run / "report.html").read_text()
    assert "The last steps" in page
    assert page.count('class="interval"') == len(found["intervals"])


def test_a_public_page_of_private_data_has_none_of_it(planned, digits, tmp_path):
    private = open_source("npz:" + str(written(digits, tmp_path)), owner_key=bytes(32))
    train(None, private, planned, directory=tmp_path / "run", settings=SETTINGS, threads=1, device="cpu", keep=8)
    from sfumato.training.conclusion import run_report

    run = RunDirectory(tmp_path / "run")
    assert "The last steps" in run_report.report(run)
    public = run_report.report(run, public=True)
    assert "The last steps" not in public
    assert 'class="interval"' not in public


def written(digits, place):
    path = place / "digits.npz"
    images = {f"x_{name}": part.images for name, part in (("train", digits.train), ("test", digits.test))}
    np.savez(path, **images, y_train=digits.train.labels, y_test=digits.test.labels)
    return path
