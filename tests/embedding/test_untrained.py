"""An untrained embedding: a function of public constants alone, whose statement claims no epsilon."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import SfumatoError, Source, load, open_source, verify
from sfumato.embedding import EmbeddingExperiment
from sfumato.embedding.run import begin, job_of
from sfumato.observers.progress import NoProgress
from sfumato.runs.directory import RunDirectory

USERS, WIDTH = 50, 8
HOW = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> str:
    """50 people to train on and 12 others to test on, each a class of six images, which differ by a common pattern."""
    generator = np.random.default_rng(0)
    common = generator.standard_normal((3, 8, 8))

    def part(first: int, count: int):
        rows = [
            (128 + 25 * own + 30 * np.tensordot(generator.standard_normal(3), common, 1), first + user)
            for user, own in enumerate(generator.standard_normal((count, 8, 8)))
            for _ in range(6)
        ]
        images, labels = (np.array(column) for column in zip(*rows, strict=True))
        return np.clip(images, 0, 255).astype(np.uint8), labels, np.char.add("p", np.char.zfill(labels.astype(str), 3))

    path = tmp_path_factory.mktemp("people") / "people.npz"
    names = ("x", "y", "users")
    train, test = part(0, USERS), part(USERS, 12)
    parts = {f"{name}_train": column for name, column in zip(names, train, strict=True)}
    np.savez(path, **parts, **{f"{name}_test": column for name, column in zip(names, test, strict=True)})
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(people) -> Source:
    return open_source(people, owner_key=bytes(32), open_set=True)


def load_public(directory) -> str:
    from sfumato.training.conclusion.run_report import report

    return report(RunDirectory(directory), public=True)


def test_untrained_it_is_the_same_whatever_the_data_hold_and_claims_nothing(people, source, tmp_path):
    asked = EmbeddingExperiment(method="untrained", dimension=WIDTH)
    run = begin(asked, source, RunDirectory(tmp_path / "a"), progress=NoProgress(), **HOW)
    other = replace(source, train=source.train.select(source.train.users != "p003"))
    again = begin(asked, other, RunDirectory(tmp_path / "b"), progress=NoProgress(), **HOW)
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
    assert 'id="pairs"' not in load_public(run.directory)


def test_weights_that_have_seen_the_private_records_are_refused_without_training_too(source, tmp_path):
    public = replace(source, public=True)
    seen = EmbeddingExperiment(model="linear", dimension=WIDTH, method="central", steps=2)
    begin(seen, public, RunDirectory(tmp_path / "seen"), progress=NoProgress(), **HOW)
    asked = EmbeddingExperiment(method="untrained", model="linear", dimension=WIDTH, pretrained=str(tmp_path / "seen"))
    with pytest.raises(SfumatoError, match="were trained without privacy on"):
        job_of(asked, source)
