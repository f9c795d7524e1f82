"""The whole loop held against the plan: who took part, which noise, which divisor, which key, what is published."""

import json
import secrets
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, Sampler, train
from sfumato.experiment.settings import Settings
from sfumato.runs.directory import RunDirectory
from sfumato.training.conclusion import run_report
from sfumato.training.preparation.prepare import prepare
from sfumato.training.step import PrivateStep


class Recorder:
    """What went into and came out of each private step."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.steps: list[int] = []
        self.targets: list[np.ndarray] = []
        self.sums: list[dict[str, torch.Tensor]] = []
        self.released: list[dict[str, torch.Tensor]] = []
        inner = PrivateStep.__call__

        def outer(private_step, step, micro_batches, state):
            pieces = list(micro_batches)
            total = private_step.gradient.zeros()
            for inputs, targets, *_ in pieces:
                for name, part in private_step.gradient(inputs, targets).gradients.items():
                    total[name] += part
            result, following = inner(private_step, step, pieces, state)
            self.steps.append(step)
            self.targets.append(np.concatenate([t.numpy() for _, t, *_ in pieces]) if pieces else np.zeros(0, np.int64))
            self.sums.append(total)
            self.released.append(result)
            return result, following

        patch.setattr(PrivateStep, "__call__", outer)

    def noise(self, place: int, plan: PrivacyPlan) -> np.ndarray:
        """What was added to the clipped sum, in units of C."""
        scale = plan.expected_batch_size * plan.max_norm
        parts = [(self.released[place][name] * scale - value).flatten() for name, value in self.sums[place].items()]
        return torch.cat(parts).numpy() / plan.max_norm


@pytest.fixture
def audited(spots, options, tmp_path, monkeypatch):
    plan = PrivacyPlan.calibrate(examples=200, batch_size=30, steps=40, noise_multiplier=4.0, delta=1e-3, max_norm=0.5)
    keys = []
    real = RunKey.load.__func__

    def load(cls, path):
        keys.append(real(cls, path))
        return keys[-1]

    monkeypatch.setattr(RunKey, "load", classmethod(load))
    recorder = Recorder(monkeypatch)
    train("linear", spots, plan, directory=tmp_path / "run", **options)
    return recorder, plan, keys[-1]


def test_each_step_is_taken_once_by_those_whom_the_plan_s_sampler_drew(audited, spots):
    recorder, plan, key = audited
    sampler = Sampler(plan, key, records=200)
    assert recorder.steps == list(range(40))
    for step, targets in zip(recorder.steps, recorder.targets, strict=True):
        assert targets.tolist() == spots.train.labels[sampler.draw(step)].tolist()
    assert len({targets.tobytes() for targets in recorder.targets}) > 35, "every step has participants of its own"


def test_each_step_has_fresh_noise_of_the_plan_s_scale(audited):
    recorder, plan, _ = audited
    drawn = np.stack([recorder.noise(place, plan) for place in range(40)])
    assert abs((drawn**2).mean() / 4.0**2 - 1) < 5.5 * np.sqrt(2 / drawn.size)
    correlation = np.corrcoef(drawn)[np.triu_indices(40, 1)]
    assert np.abs(correlation).max() < 5.5 / np.sqrt(drawn.shape[1])


def test_the_run_s_key_is_what_the_operating_system_gave(spots, plan, monkeypatch):
    given = []
    real = secrets.token_bytes

    def token_bytes(count):
        given.append(real(count))
        return given[-1]

    monkeypatch.setattr("sfumato.randomness.keys.secrets.token_bytes", token_bytes)
    job = prepare(None, spots, plan, Settings(model="linear", optimizer="sgd", learning_rate=1.0))
    assert job.key._secret == given[-1]
    assert len(given[-1]) == 32


def test_ledgers_of_runs_on_the_same_data_cannot_be_linked(spots, plan, options, tmp_path):
    heads = []
    for name in ("a", "b"):
        run = train("linear", spots, plan, directory=tmp_path / name, **options)
        content = (run.directory / "ledger.jsonl").read_text()
        assert spots.fingerprint not in content
        heads.append(json.loads(content.splitlines()[0])["body"]["data_commitment"])
    assert heads[0] != heads[1]


def test_the_public_page_holds_nothing_measured_on_private_data(copy):
    before = run_report.report(RunDirectory(copy), public=True)
    evaluation = json.loads((copy / "evaluation.json").read_text())
    evaluation["accuracy"], evaluation["loss"] = 0.123456, 9.87654
    evaluation["confusion"] = [[7] * 4] * 4
    evaluation["samples"] = evaluation["samples"][:1]
    evaluation["over_steps"]["intervals"] = evaluation["over_steps"]["intervals"][:1]
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    (copy / "metrics.jsonl").write_text("".join(json.dumps({**row, "accuracy": 0.111}) + "\n" for row in rows))
    assert run_report.report(RunDirectory(copy), public=True) == before
    assert run_report.report(RunDirectory(copy)) != before


def test_the_public_page_names_no_seed_and_no_path(copy):
    settings = json.loads((copy / "settings.json").read_text())
    settings["settings"] |= {"seed": 987654321, "pretrained": "/home/someone/secret.safetensors"}
    (copy / "settings.json").write_text(json.dumps(settings))
    for public in (True, False):
        page = run_report.report(RunDirectory(copy), public=public)
        assert "987654321" not in page
        assert "secret.safetensors" not in page


def test_the_micro_batch_follows_from_the_declared_number_and_not_from_the_true_one(spots, plan, monkeypatch):
    """It is printed on the public page."""
    from dataclasses import replace

    from sfumato.data import Records
    from sfumato.training.preparation import prepare as module

    settings = Settings(model="scattering", optimizer="sgd", learning_rate=1.0)
    width = prepare(None, spots, plan, settings).input_shape[0]
    monkeypatch.setattr(module, "FEATURE_MEMORY", 4 * width * 200)
    more = Records(
        images=np.concatenate([spots.train.images, spots.train.images[:1]]),
        labels=np.concatenate([spots.train.labels, spots.train.labels[:1]]),
    )
    sizes = [prepare(None, source, plan, settings).performance for source in (spots, replace(spots, train=more))]
    assert sizes[0] == sizes[1]


def test_an_infinite_epsilon_is_refused_before_anything_is_spent(spots, options, tmp_path):
    from sfumato import SfumatoError

    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=3, noise_multiplier=5.0, delta=1e-30)
    with pytest.raises(SfumatoError, match="delta 1e-30 is below the resolution"):
        train("linear", spots, plan, directory=Path(tmp_path) / "run", **options)
    assert not (tmp_path / "run").exists()
