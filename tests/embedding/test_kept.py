"""Weights of rounds that are kept: how many of them a rule averages, by the noise that really was in them."""

import pytest
import torch

from sfumato import RunKey, SfumatoError
from sfumato.averaging import denoising
from sfumato.embedding import EmbeddingExperiment
from sfumato.embedding.prepare import check
from sfumato.embedding.run import begin, job_of
from sfumato.embedding.steps import EmbeddingSteps
from sfumato.observers.progress import NoProgress
from sfumato.randomness import NoiseState
from sfumato.runs.aggregated import kept_hashes
from sfumato.runs.directory import RunDirectory
from sfumato.training.conclusion import aggregating
from sfumato.training.preparation.start import Start

ALONE = {
    "steps": 4,
    "batch_size": 6,
    "clients": 3,
    "noise_multiplier": 2.0,
    "max_norm": 0.8,
    "delta": 1e-3,
    "seed": 1,
    "model": "linear",
    "dimension": 8,
    "client_rate": 1e-9,
    "client_examples": 1,
}


def test_the_rule_is_told_the_noise_that_a_round_has(source, tmp_path, monkeypatch):
    """Clients that hardly move leave a round its noise alone: sigma C over their number."""
    asked, start = EmbeddingExperiment(**ALONE), Start(device="cpu", threads=1)
    job, _ = job_of(asked, source, start=start)
    found = EmbeddingSteps(job, RunKey.from_seed(2))(0, NoiseState(step=0))[0]
    measured = torch.cat([value.flatten() for value in found.values()]).double().std()
    told = {}

    def last_k(distances, steps, **run):
        told.update(run)
        return 1

    monkeypatch.setattr(denoising, "last_k", last_k)
    run = begin(asked, source, RunDirectory(tmp_path / "run"), device="cpu", threads=1, progress=NoProgress(), keep=3)
    aggregating.default_last(RunDirectory(run.directory), tuple(kept_hashes(RunDirectory(run.directory))))
    assert told["noise"] ** 0.5 == pytest.approx(2.0 * 0.8 / 3)
    assert measured == pytest.approx(2.0 * 0.8 / 3, rel=0.15)


def test_methods_without_rounds_of_a_plan_keep_none():
    check({"keep": None}, "central")
    check({"keep": 0}, "untrained")
    check({"keep": 3}, "dpsgd")
    with pytest.raises(SfumatoError, match="keep is 3, but method untrained has no rounds by a plan"):
        check({"keep": 3}, "untrained")
    with pytest.raises(SfumatoError, match="keep must be at least 1, got -3"):
        check({"keep": -3}, "fedemb")
