"""Trainings of embeddings without a guarantee: centrally and by clipped updates without noise, on public data alone;
and without any training. Nothing that they leave behind states an epsilon."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato import RunKey, SfumatoError, Source, load, verify
from sfumato.experiment import EmbeddingExperiment
from sfumato.randomness import Noise, NoiseState
from sfumato.runs.checkpoint import METADATA, read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.clients import NoiselessSteps
from sfumato.training.conclusion.run_report import report
from sfumato.training.preparation import from_record
from sfumato.training.preparation.clients import prepare
from sfumato.training.steps import private_training_steps
from tests.killed import killed
from tests.training.clients.jobs import LINEAR, QUICK, job_of, trained, without_clients

NOISELESS = "fedemb-noiseless"
ROUNDS = {**LINEAR, "steps": 3, "batch_size": 12, "clients": 3, "max_norm": 0.2, "method": NOISELESS}
CENTRAL = {**LINEAR, "steps": 4, "method": "central"}


@pytest.fixture(scope="module")
def public(source: Source) -> Source:
    return replace(source, public=True)


def of_epsilon(value: Any, place: str = "") -> list[tuple[str, Any]]:
    """All that is called epsilon, with or without more words, anywhere in JSON."""
    if isinstance(value, dict):
        inside = [found for name, one in value.items() for found in of_epsilon(one, f"{place}/{name}")]
        return inside + [(f"{place}/{name}", one) for name, one in value.items() if "epsilon" in name]
    return [found for one in value for found in of_epsilon(one, place)] if isinstance(value, list) else []


@pytest.mark.parametrize(("method", "quantile"), [(NOISELESS, None), ("fedavg-noiseless", 0.5)])
def test_nothing_that_it_leaves_behind_states_an_epsilon(public: Source, tmp_path: Path, method: str, quantile: Any):
    run = trained(public, tmp_path / "run", **{**ROUNDS, "method": method, "quantile": quantile})
    assert repr(run).endswith("without privacy)")
    assert not {path.name for path in run.directory.iterdir()} & {"plan.json", "ledger.jsonl"}
    documents = [json.loads(path.read_text()) for path in run.directory.glob("*.json")]
    documents += [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    documents.append(json.loads(read_safetensors(run.directory / "model.safetensors")[1][METADATA]))
    assert {value for document in documents for _, value in of_epsilon(document)} == {None}
    statement = load(run.directory).statement.to_dict()
    assert (statement["epsilon"], statement["delta"], statement["method"]) == (None, None, method)
    assert statement["sentence"].startswith("This model has no privacy guarantee")
    assert "Clipping alone protects nobody" in statement["sentence"]
    assert "differentially private" not in (run.directory / "report.html").read_text("utf-8")
    with pytest.raises(SfumatoError, match="trained without privacy and has no guarantee"):
        verify(run.directory)
    with pytest.raises(SfumatoError, match="was made with sfumato embed, not with sfumato train"):
        from_record.job_from_record(str(run.directory), made_with="train")


@pytest.mark.parametrize("choices", [ROUNDS, CENTRAL], ids=lambda choices: choices["method"])
def test_it_is_refused_on_data_that_nobody_called_public(source: Source, public: Source, tmp_path: Path, choices):
    words = f"method {choices['method']} trains without privacy, but this npz source is private"
    with pytest.raises(SfumatoError, match=words):
        trained(source, tmp_path / "run", **choices)
    decided = EmbeddingExperiment(**choices).decide(public)
    with pytest.raises(SfumatoError, match=words):
        prepare(source, decided)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", [None, "fedavg", "dpsgd"])
def test_no_number_leads_there_only_its_name(public: Source, method: str | None):
    named = "fedavg-noiseless" if method == "fedavg" else NOISELESS
    choices = ROUNDS if method is None else without_clients(ROUNDS, method)
    words = f"adds no noise, and without noise there is no guarantee.* with method {named}"
    with pytest.raises(SfumatoError, match=words):
        EmbeddingExperiment(**{**choices, "method": method, "noise_multiplier": 0}).decide(public)


@pytest.mark.parametrize(
    "choice",
    [{"epsilon": 8.0}, {"noise_multiplier": 0}, {"delta": 1e-5}, {"accountant": "rdp"}, {"adjacency": "zero-out"}],
    ids=str,
)
def test_whatever_belongs_to_a_guarantee_is_refused(public: Source, choice: dict[str, Any]):
    (name,) = choice
    for others in (ROUNDS, CENTRAL):
        with pytest.raises(
            SfumatoError, match=f"method {others['method']} does not use {name}, but {name}=.* is given"
        ):
            EmbeddingExperiment(**others, **choice).decide(public)


@pytest.mark.parametrize(
    "choice",
    [{}, {"method": "fedavg"}, {"grouping": "group"}, {"grouping": "fixed", "clients": None, "batch_size": 2}],
    ids=str,
)
def test_a_round_is_the_private_one_less_its_noise(public: Source, choice: dict[str, Any]):
    """With one key: the same users, clients, local training and clipping; the private round has its noise besides."""
    choices = {**ROUNDS, "method": "fedemb", "seed": 1, "client_rate": 0.5, **choice}
    private = job_of(public, noise_multiplier=0.5, **choices)
    other = job_of(public, **{**choices, "method": f"{choices['method']}-noiseless"})
    other.module.load_state_dict(private.module.state_dict())
    for key in map(RunKey.from_seed, range(3)):
        noisy, _ = private_training_steps(private, key)(0, NoiseState(step=0))
        found, _ = NoiselessSteps(other, key)(0, NoiseState(step=0))
        noise = Noise(private.plan.mechanism, max_norm=0.2, key=key).add(private.gradient.zeros(), 0)
        for name, value in found.items():
            expected = noisy[name].double() - noise[name].double() / private.client_count
            torch.testing.assert_close(value.double(), expected, rtol=0, atol=1e-6)
    assert sum(value.square().sum() for value in found.values()).sqrt() <= 0.2 * (1 + 1e-6)


def test_it_goes_on_with_the_same_clipping_or_not_at_all(public: Source, tmp_path: Path):
    with killed(loop, "descend"):
        trained(public, tmp_path / "run", **ROUNDS)
    with pytest.raises(SfumatoError, match="differs in its round: max_norm"):
        trained(public, tmp_path / "run", **{**ROUNDS, "max_norm": 0.3})
    with pytest.raises(SfumatoError, match="differs in its"):
        trained(public, tmp_path / "run", **{**ROUNDS, "method": "fedavg-noiseless"})
    assert trained(public, tmp_path / "run", **ROUNDS).steps == 3


def test_weights_that_have_seen_the_private_records_are_refused_whatever_the_method(source, public, tmp_path):
    run = trained(public, tmp_path / "seen", **CENTRAL)
    assert run.figures["recall"] >= 0
    assert load(run.directory).embed(np.zeros((8, 8, 1), np.uint8)).shape == (1, 8)
    for method in ("fedemb", "fedavg", "dpsgd", "untrained"):
        choices = {} if method == "untrained" else without_clients(QUICK, method)
        with pytest.raises(SfumatoError, match="were trained without privacy on"):
            job_of(source, **{**LINEAR, **choices, "method": method, "pretrained": str(tmp_path / "seen")})


def test_untrained_it_is_the_same_whatever_the_data_hold_and_claims_nothing(source, tmp_path):
    run = trained(source, tmp_path / "a", method="untrained", dimension=8)
    other = replace(source, train=source.train.select(source.train.users != "p03"))
    again = trained(other, tmp_path / "b", method="untrained", dimension=8)
    weights, others = (load(one.directory).module.state_dict() for one in (run, again))
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    statement = run.statement.to_dict()
    assert statement["epsilon"] is None
    assert "has used no private data" in statement["sentence"]
    assert not (run.directory / "ledger.jsonl").exists()
    assert run.figures["compared"]["gain"] == [0, 0, 0]
    assert (run.directory / "evaluation.json").stat().st_mode & 0o077 == 0, "figures of private data are the owner's"
    with pytest.raises(SfumatoError, match="has used no private data"):
        verify(run.directory)
    assert "recall" not in repr(run)
    assert 'id="pairs"' in (run.directory / "report.html").read_text("utf-8")
    assert 'id="pairs"' not in report(RunDirectory(run.directory), public=True)
