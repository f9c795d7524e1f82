"""A temperature from public data: the best one, in the model file, used by `predict`, and told by the statement."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, SfumatoError, aggregate, load, open_source, train, verify
from sfumato.evaluation import accuracy
from sfumato.evaluation.temperature import fit_temperature
from sfumato.experiment.settings import Settings
from sfumato.observers.progress import NoProgress
from sfumato.privacy import Gaussian, Poisson
from sfumato.randomness import owner_key

pytestmark = pytest.mark.usefixtures("one_secret")

SETTINGS = Settings(model="linear", learning_rate=4.0, optimizer="sgd", momentum=0.0, ema=0.0, seed=None)


@pytest.fixture(scope="module")
def spots(arrays):
    return open_source(arrays, owner_key=bytes(32))


@pytest.fixture(scope="module")
def others(arrays, tmp_path_factory) -> str:
    """A public source like it, with some wrong labels."""
    with np.load(arrays.removeprefix("npz:")) as held:
        given = dict(held)
    given["y_train"][::7] = (given["y_train"][::7] + 1) % 4
    path = tmp_path_factory.mktemp("others") / "public.npz"
    np.savez(path, **given)
    return f"npz:{path}"


@pytest.fixture
def plan(spots) -> PrivacyPlan:
    mechanism, drawn = Gaussian(noise_multiplier=2.0), Poisson(batch_size=50)
    return PrivacyPlan(mechanism=mechanism, population=spots.examples, participation=drawn, steps=8, delta=1e-3)


def trained(source, plan, place, **others):
    return train(None, source, plan, directory=place, settings=SETTINGS, threads=1, device="cpu", keep=4, **others)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_the_temperature_that_was_put_in_is_found(loss, temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn((20_000, 2), generator=generator, dtype=torch.double)
    if loss == "sigmoid":
        logits[:, 1] = -logits[:, 0]
    said = (logits / temperature).softmax(1) if loss == "softmax" else (logits / temperature).sigmoid()
    labels = torch.multinomial(said, 1, generator=generator).flatten()
    assert fit_temperature(logits, labels, loss=loss) == pytest.approx(temperature, rel=0.05)


def test_what_is_no_number_leaves_logits_alone():
    assert fit_temperature(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), loss="softmax") == 1.0
    assert accuracy.calibration(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), loss="softmax") is None


def test_expected_calibration_error_is_the_mean_gap_of_bins():
    sure = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.7, 0.7]).double()
    logits = torch.stack([sure.log(), (1 - sure).log()], 1)
    found = accuracy.calibration(logits, torch.tensor([0, 0, 1, 1, 0, 1]), loss="softmax")
    assert found.error == pytest.approx((4 * 0.45 + 2 * 0.2) / 6)
    assert [band[2] for band in found.bands] == [2, 4]
    assert sum(band[2] * (band[3] - band[4]) for band in found.bands) / 6 == pytest.approx((4 * 0.45 + 2 * 0.2) / 6)


def test_predict_divides_by_it_and_the_statement_names_it(spots, others, plan, tmp_path):
    plain = trained(spots, plan, tmp_path / "plain")
    run = trained(spots, plan, tmp_path / "run", calibrate_on=others)
    loaded, before = load(run.directory), load(plain.directory)
    images = spots.test.take(slice(0, 5))
    assert before.reading.temperature is None
    assert loaded.reading.temperature is not None
    assert torch.equal(loaded.logits(images), before.logits(images))
    assert torch.equal(loaded.predict(images), (before.logits(images) / loaded.reading.temperature).softmax(-1))
    told = "The data on which the temperature was fitted. Their owner declared them public."
    assert told in run.statement.not_covered
    assert told not in plain.statement.not_covered
    assert verify(run.directory).holds
    errors = [json.loads((one.directory / "evaluation.json").read_text())["loss"] for one in (plain, run)]
    assert errors[0] != errors[1]
    assert load(aggregate(run.directory, last=2).path).reading.temperature is None, "it is another model's"


def test_a_resumed_run_is_calibrated_on_the_same(spots, others, plan, tmp_path, killed_at):
    with killed_at(5):
        trained(spots, plan, tmp_path / "run", calibrate_on=others)
    with pytest.raises(SfumatoError, match="calibrated_on_public"):
        trained(spots, plan, tmp_path / "run")
    changed = replace(open_source(others, owner_key=owner_key(), public=True), fingerprint="0" * 64)
    with pytest.raises(SfumatoError, match=r"calibration.*fingerprint"):
        trained(spots, plan, tmp_path / "run", calibrate_on=changed)
    run = trained(spots, plan, tmp_path / "run", calibrate_on=others)
    whole = trained(spots, plan, tmp_path / "whole", calibrate_on=others)
    assert load(run.directory).reading.temperature == load(whole.directory).reading.temperature


def test_the_private_data_themselves_are_refused_and_data_that_were_private_are_told_of(arrays, plan, tmp_path):
    source = open_source(arrays, owner_key=owner_key())
    with pytest.raises(SfumatoError, match="holds the private data of this run"):
        trained(source, plan, tmp_path / "run", calibrate_on=arrays)
    with np.load(arrays.removeprefix("npz:")) as held:
        turned = {name: 255 - held[name] if name.startswith("x") else held[name] for name in held.files}
    np.savez(tmp_path / "others.npz", **turned)
    others = f"npz:{tmp_path / 'others.npz'}"
    plan = replace(plan, steps=1)
    trained(open_source(others, owner_key=owner_key()), plan, tmp_path / "earlier")
    said = []

    class Heard(NoProgress):
        def report(self, line):
            said.append(line)

    trained(source, plan, tmp_path / "run", calibrate_on=others, progress=Heard())
    assert any("declared public, but 1 run of yours used them as private" in line for line in said)
