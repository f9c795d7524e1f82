"""Training by clipped updates without noise: the same rounds as private ones, and nothing anywhere that promises."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato import RunKey, SfumatoError, Source, embed, load, open_source, verify
from sfumato.embedding import EmbeddingExperiment
from sfumato.embedding.method import decide_noiseless
from sfumato.embedding.prepare import decide, prepare
from sfumato.embedding.run import begin, job_of
from sfumato.embedding.steps import EmbeddingSteps, NoiselessSteps
from sfumato.observers.progress import NoProgress
from sfumato.randomness import Noise, NoiseState
from sfumato.runs.checkpoint import METADATA, read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.preparation import from_record
from sfumato.training.preparation.start import Start
from tests.killed import killed

USERS, NOISELESS = 24, "fedemb-noiseless"
QUICK = {"model": "linear", "dimension": 8, "steps": 3, "batch_size": 12, "clients": 3, "max_norm": 0.2}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """24 users to train on, in four groups, and 8 others to test on; six images each, of two classes."""
    generator = np.random.default_rng(0)
    users = np.repeat(np.arange(USERS + 8), 6)
    labels = (users + generator.integers(0, 2, len(users))) % 9
    images = (25 * labels[:, None, None] + generator.integers(0, 20, (len(users), 8, 8))).astype(np.uint8)
    columns = {"x": images, "y": labels, "users": np.char.add("p", users.astype(str))}
    columns["groups"] = np.char.add("g", (users % 4).astype(str))
    train = users < USERS
    path = tmp_path_factory.mktemp("people") / "people.npz"
    parts = {f"{name}_train": column[train] for name, column in columns.items()}
    np.savez(path, **parts, **{f"{name}_test": column[~train] for name, column in columns.items()})
    return open_source(f"npz:{path}", owner_key=bytes(32), open_set=True, public=True)


def asked(**further: Any) -> EmbeddingExperiment:
    return EmbeddingExperiment(**{**QUICK, "method": NOISELESS, **further})


def of_epsilon(value: Any, place: str = "") -> list[tuple[str, Any]]:
    """All that is called epsilon, with or without more words, anywhere in JSON."""
    if isinstance(value, dict):
        inside = [found for name, one in value.items() for found in of_epsilon(one, f"{place}/{name}")]
        return inside + [(f"{place}/{name}", one) for name, one in value.items() if "epsilon" in name]
    return [found for one in value for found in of_epsilon(one, place)] if isinstance(value, list) else []


@pytest.mark.parametrize(("method", "quantile"), [(NOISELESS, None), ("fedavg-noiseless", 0.5)])
def test_nothing_that_it_leaves_behind_states_an_epsilon(source: Source, tmp_path: Path, method: str, quantile: Any):
    choices = {**QUICK, "method": method, "quantile": quantile}
    run = embed(source, directory=tmp_path / "run", device="cpu", threads=1, **choices)
    assert repr(run).endswith("without privacy)")
    left = {path.name for path in run.directory.iterdir()}
    assert not left & {"plan.json", "ledger.jsonl"}
    documents = [json.loads(path.read_text()) for path in run.directory.glob("*.json")]
    documents += [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    documents.append(json.loads(read_safetensors(run.directory / "model.safetensors")[1][METADATA]))
    found = [value for document in documents for _, value in of_epsilon(document)]
    assert found
    assert set(found) == {None}
    statement = load(run.directory).statement.to_dict()
    assert (statement["epsilon"], statement["delta"], statement["method"]) == (None, None, method)
    assert statement["sentence"].startswith("This model has no privacy guarantee")
    assert "Clipping alone protects nobody" in statement["sentence"]
    assert "differentially private" not in (run.directory / "report.html").read_text("utf-8")
    with pytest.raises(SfumatoError, match="trained without privacy and has no guarantee"):
        verify(run.directory)
    with pytest.raises(SfumatoError, match="was trained without privacy; resume it with sfumato embed"):
        from_record.job_from_record(str(run.directory), trust_code=False)


def test_it_is_refused_on_data_that_nobody_called_public(source: Source, tmp_path: Path):
    private = replace(source, public=False)
    with pytest.raises(SfumatoError, match="method fedemb-noiseless trains without privacy, but this npz source is pr"):
        begin(asked(), private, RunDirectory(tmp_path / "run"), progress=NoProgress())
    rounds = decide_noiseless(asked(), private)
    central = decide(replace(asked(), method="central", clients=None, max_norm=None), source)
    for decided in (rounds, central):
        with pytest.raises(SfumatoError, match="trains without privacy"):
            prepare(private, decided)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", [None, "fedavg", "dpsgd"])
def test_no_number_leads_there_only_its_name(source: Source, tmp_path: Path, method: str | None):
    named = "fedavg-noiseless" if method == "fedavg" else NOISELESS
    clients = {"clients": None} if method == "dpsgd" else {}
    zero = asked(method=method, noise_multiplier=0, **clients)
    with pytest.raises(
        SfumatoError, match=f"adds no noise, and without noise there is no guarantee.* with method {named}"
    ):
        begin(zero, source, RunDirectory(tmp_path / "run"), progress=NoProgress())
    with pytest.raises(SfumatoError, match="has no plan and no guarantee"):
        asked().decide(source)
    assert not (tmp_path / "run").exists()


def test_its_name_takes_no_plan_either(source: Source):
    private = EmbeddingExperiment(**QUICK, noise_multiplier=0.5)
    decided = private.decide(source)
    with pytest.raises(SfumatoError, match="method fedemb-noiseless has no rounds with noise, but a plan is given"):
        prepare(source, decided._replace(clients=replace(decided.clients, method=NOISELESS)))


@pytest.mark.parametrize(
    "promised",
    [{"epsilon": 8.0}, {"noise_multiplier": 0}, {"delta": 1e-5}, {"accountant": "rdp"}, {"adjacency": "zero-out"}],
    ids=str,
)
def test_whatever_belongs_to_a_promise_is_refused(source: Source, promised: dict[str, Any]):
    (name,) = promised
    with pytest.raises(SfumatoError, match=f"adds no noise and has no guarantee, but {name}=.* is given"):
        job_of(asked(**promised), source)


@pytest.mark.parametrize(
    "choice",
    [{}, {"method": "fedavg"}, {"grouping": "group"}, {"grouping": "fixed", "clients": None, "batch_size": 2}],
    ids=str,
)
def test_a_round_is_the_private_one_less_its_noise(source: Source, choice: dict[str, Any]):
    """With one key: the same users, clients, local training and clipping; the private round has its noise besides."""
    private = EmbeddingExperiment(**{**QUICK, **choice, "noise_multiplier": 0.5, "seed": 1, "client_rate": 0.5})
    without = replace(private, method=f"{private.chosen}-noiseless", noise_multiplier=None)
    start = Start(device="cpu", threads=1)
    one, (other, _) = job_of(private, source, start=start)[0], job_of(without, source, start=start)
    other.module.load_state_dict(one.module.state_dict())
    for key in map(RunKey.from_seed, range(3)):
        noisy, _ = EmbeddingSteps(one, key)(0, NoiseState(step=0))
        found, _ = NoiselessSteps(other, key)(0, NoiseState(step=0))
        noise = Noise(one.plan.mechanism, max_norm=one.plan.max_norm, key=key).add(one.gradient.zeros(), 0)
        for name, value in found.items():
            expected = noisy[name].double() - noise[name].double() / one.clients.count
            torch.testing.assert_close(value.double(), expected, rtol=0, atol=1e-6)
    assert sum(value.square().sum() for value in found.values()).sqrt() <= 0.2 * (1 + 1e-6)


def test_it_goes_on_with_the_same_clipping_or_not_at_all(source: Source, tmp_path: Path):
    def begun(**further: Any):
        one = asked(**further)
        return begin(one, source, RunDirectory(tmp_path / "run"), device="cpu", threads=1, progress=NoProgress())

    with killed(loop, "descend"):
        begun()
    with pytest.raises(SfumatoError, match="differs in its round: max_norm"):
        begun(max_norm=0.3)
    with pytest.raises(SfumatoError, match="differs in its"):
        begun(method="fedavg-noiseless")
    assert begun().steps == 3
