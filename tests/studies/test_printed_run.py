"""The printed algorithm as a run: it promises nothing, says so everywhere, and computes what the paper prints."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import RunKey, SfumatoError, load, models
from sfumato.cli import main
from sfumato.experiment import Experiment
from sfumato.randomness import NoiseState, Sampler
from sfumato.training import loop
from studies import algorithm_1 as printed
from studies import printed_run

CHOICES = {"model": "lenet-300-100,norm=batch", "normalisation": printed_run.TEST_PHASE, "public_data": "digits"}
ASKED = Experiment(epsilon=3.0, batch_size=32, steps=6, public_examples=5, seed=4, learning_rate=0.5, **CHOICES)


def trained(place, digits, **other):
    return printed_run.train(digits, replace(ASKED, **other), directory=place, device="cpu", threads=1)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("printed") / "run", digits)


def test_nothing_is_promised_and_the_claim_is_told(run):
    said = json.loads((run.directory / "statement.json").read_text())
    assert (said["epsilon"], said["delta"]) == (None, None)
    assert said["status"] == "claimed, does not hold"
    assert said["claimed"]["epsilon"] == pytest.approx(3.0, abs=0.01)
    for text in (said["sentence"], (run.directory / "report.html").read_text()):
        assert "no privacy guarantee" in text
        assert "does not hold" in text
    assert load(run.directory).statement.to_dict()["epsilon"] is None
    assert not (run.directory / "ledger.jsonl").exists()


def test_the_file_has_the_test_phase_of_the_paper(run, digits):
    loaded = load(run.directory)
    images = [digits.test.images[place] for place in range(7)]
    module = models.create(CHOICES["model"], classes=10, channels=1, size=8)
    weights = {name: value for name, value in loaded.module.state_dict().items() if name in module.state_dict()}
    module.load_state_dict(weights, strict=False)
    inputs = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1
    right = printed.outputs(module, inputs.float(), loaded.module.state_dict()[models.EXAMPLES])
    torch.testing.assert_close(loaded.logits(images), right, atol=1e-5, rtol=1e-4)


def test_a_step_is_the_noisy_sum_of_the_whole_batch(digits, monkeypatch):
    seen = {}

    def execute(job, *_, **__):
        seen["job"] = job

    monkeypatch.setattr(printed_run, "execute", execute)
    trained("unused", digits)
    job, key = seen["job"], RunKey.from_seed(1, "test")
    steps = printed_run.PrintedSteps(job, key)
    found, state = steps(2, NoiseState(step=2))
    rows = Sampler(job.plan, key, records=len(digits.train)).draw(2)
    images = job.transform(torch.from_numpy(digits.train.take(rows)))
    labels = torch.from_numpy(digits.train.labels[rows])
    right = printed.clipped_sum(copy.deepcopy(job.module), images, labels, job.inputs, max_norm=job.plan.max_norm)
    noise = torch.cat([(32 * job.plan.max_norm * found[name] - right[name]).flatten() for name in right])
    assert noise.std().item() == pytest.approx(job.plan.noise_multiplier * job.plan.max_norm, rel=0.02)
    assert abs(noise.mean().item()) < 5 * noise.std().item() / len(noise) ** 0.5
    assert state.step == 3


def test_killed_and_resumed_it_has_the_same_bytes(run, digits, tmp_path, killed_at):
    with killed_at(4) as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 1e-9)
        trained(tmp_path / "run", digits)
    trained(tmp_path / "run", digits)
    for name in ("model.safetensors", "statement.json"):
        assert (tmp_path / "run" / name).read_bytes() == (run.directory / name).read_bytes()


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        ({"model": "lenet-300-100,norm=layer"}, "has no batch norm"),
        ({"views": 2}, "views is not as in the printed algorithm"),
        ({"mechanism": "tree"}, "mechanism is not as in the printed algorithm"),
        ({"normalisation": "group", "public_data": None, "public_examples": None}, "normalisation is group"),
    ],
)
def test_what_the_paper_has_not_is_refused(digits, tmp_path, choices, refusal):
    with pytest.raises(SfumatoError, match=refusal):
        trained(tmp_path / "run", digits, **choices)
    assert not (tmp_path / "run").exists()


def test_private_data_are_refused(digits, tmp_path):
    with pytest.raises(SfumatoError, match="has no guarantee, but this digits source is private; declare it public"):
        trained(tmp_path / "run", replace(digits, public=False))


CHOSEN = "printed digits --model lenet-300-100,norm=batch --public-data digits"


def test_it_is_trained_and_promises_nothing(study, workplace, capsys):
    asked = f"{CHOSEN} --public-examples 4 --noise-multiplier 8 --batch-size 16 --steps 2 --output run"
    found = json.loads(study(f"{asked} --json"))
    assert found["epsilon"] is None
    assert "does not hold" in found["statement"]
    assert main(["verify", "run"]) == 1
    assert "has no guarantee" in capsys.readouterr().err
    assert "is finished" in study(asked, status=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--loss sigmoid", "loss is not as in the printed algorithm; leave it out"),
        ("--precision bfloat16", "--precision is given, but the printed algorithm does not use it"),
    ],
)
def test_what_it_does_not_read_is_refused(options, words, workplace, study):
    assert words in study(f"{CHOSEN} --epsilon 1 --steps 2 --batch-size 16 {options}", status=1)
