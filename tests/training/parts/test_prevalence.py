"""Scores that are moved to declared shares or to an operating point: in the model file, on the page, when resumed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, SfumatoError, load, open_source, train, verify
from sfumato.experiment.settings import Settings
from sfumato.models.losses import probabilities
from sfumato.models.shares import logit_offsets
from sfumato.privacy import Gaussian, Ledger, NoisyTable, Poisson
from sfumato.privacy import ledger as ledgers
from sfumato.privacy.noisy_table import FINE
from sfumato.runs import aggregated
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import point_choice
from sfumato.runs.figures import published as records
from sfumato.training.conclusion import finish
from sfumato.training.conclusion.run_report import report
from sfumato.training.parts import published

pytestmark = pytest.mark.usefixtures("one_secret")

CLASSES = ("normal", "pneumonia")
TRAINED, USED = {"normal": 0.26, "pneumonia": 0.74}, {"normal": 0.38, "pneumonia": 0.62}
SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None)
WEIGHTED = Settings(
    model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None, class_prevalence=TRAINED
)


def part(shares, count, seed):
    """Images (N, 8, 8) that are a little lighter for one class, and labels with these shares."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < shares["pneumonia"]).astype(int)
    images = generator.normal(128, 40, (count, 8, 8)) + 5 * (2 * labels[:, None, None] - 1)
    return images.clip(0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def rays(tmp_path_factory) -> str:
    """A private archive whose test part has other shares."""
    (x_train, y_train), (x_test, y_test) = part(TRAINED, 800, 0), part(USED, 1000, 1)
    path = tmp_path_factory.mktemp("rays") / "rays.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=np.array(CLASSES))
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(rays):
    return open_source(rays, owner_key=bytes(32))


PLAN = PrivacyPlan(
    mechanism=Gaussian(noise_multiplier=4.0),
    population=800,
    participation=Poisson(batch_size=400),
    steps=20,
    delta=1e-5,
)


def trained(source, place, settings=SETTINGS, **others):
    given = {"report_epsilon": 3.0} | others
    return train(None, source, PLAN, directory=place, settings=settings, threads=1, device="cpu", **given)


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    """A run that has chosen an operating point by rule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr("sfumato.report.sections.learning_curves.curve", lambda *_: "")
        return trained(source, tmp_path_factory.mktemp("runs") / "run")


def test_by_rule_the_table_moves_the_model_and_every_figure_speaks_of_it(finished, source):
    figures, loaded = finished.published, finished.load()
    point = figures.operating
    assert point is not None
    assert point.rule == "shares"
    assert point.threshold > 0.5
    assert loaded.reading.operating_point == point
    scores = loaded.predict(list(source.test.take(slice(None))))
    named = scores.argmax(1).numpy()
    assert (named == source.test.labels).mean() == finished.accuracy  # of the page, too
    assert abs(figures.accuracy.value - finished.accuracy) < 0.02
    plain = probabilities(loaded.logits(list(source.test.take(slice(None)))), "softmax")
    assert ((plain[:, 1] >= point.threshold).numpy() == named).all()
    before = (plain.argmax(1).numpy() == source.test.labels)[source.test.labels == 0].mean()
    assert (named == source.test.labels)[source.test.labels == 0].mean() > before + 0.05  # specificity
    assert loaded.reading.shares["pneumonia"] == pytest.approx(0.62, abs=0.05)


def test_the_shares_that_scores_hold_for_are_those_of_the_noisy_table_and_not_exact(finished, source):
    noisy, exact = point_choice.estimate_shares(finished.published), float((source.test.labels == 1).mean())
    assert finished.load().reading.shares == pytest.approx(noisy, rel=1e-12)
    assert noisy["pneumonia"] != pytest.approx(exact, rel=1e-9)


def test_the_pages_and_the_verdict_know_it(finished, tmp_path):
    assert verify(finished.directory).holds
    page = report(RunDirectory(finished.directory), public=True)
    assert f"own score for it is {finished.published.operating.threshold:g} or more" in page
    statement = finished.statement.to_dict()
    assert statement["circumstances"]["figures"]


def rebound(place, **bound):
    """A copy's ledger whose last line binds other files."""
    path, previous, lines = place / names.LEDGER, None, b""
    entries = ledgers.read(path)
    for entry in entries:
        body = dict(entry.body) | (bound if entry.kind == "end" else {})
        previous = ledgers.Entry.after(previous, entry.kind, body)
        lines += previous.line()
    path.write_bytes(lines)


def test_verify_finds_an_operating_point_that_the_counts_do_not_give(finished, tmp_path):
    place = shutil.copytree(finished.directory, tmp_path / "figures")
    data = json.loads((place / names.FIGURES).read_text())
    data["operating_point"]["threshold"] = 0.9
    (place / names.FIGURES).write_text(json.dumps(data))
    rebound(place, **{records.ENTRY: file_hash(place / names.FIGURES)})
    assert "the operating point is not the one that the counts give" in verify(place).line
    place = shutil.copytree(finished.directory, tmp_path / "model")
    weights, metadata = read_safetensors(place / names.MODEL)
    about = json.loads(metadata[METADATA])
    del about["operating_point"]
    (place / names.MODEL).write_bytes(to_bytes(weights, {METADATA: json.dumps(about)}))
    rebound(place, model=file_hash(place / names.MODEL))
    assert "the model has another operating point" in verify(place).line


def test_an_operating_point_is_a_function_of_the_noisy_table_alone(tmp_path, monkeypatch):
    table = NoisyTable(epsilon=1.0, classes=2, predictions=True, edges=FINE, temperature=False)
    generator = torch.Generator().manual_seed(0)
    counts = np.random.default_rng(0).multinomial(4000, np.ones(40) / 40).reshape(2, 2, 10)
    counts[1, :, 5:] //= 3
    monkeypatch.setattr(published, "noisy_counts", lambda *_: counts.flatten().tolist())
    found = []
    for place in range(3):
        outputs, labels = torch.randn(200, 2, generator=generator), torch.randint(2, (200,), generator=generator)
        with Ledger(tmp_path / f"{place}.jsonl") as ledger:
            given = published.Predictions(outputs=outputs, labels=labels, classes=CLASSES, loss="softmax")
            (tmp_path / f"{place}").mkdir()
            run = RunDirectory(tmp_path / f"{place}")
            key = RunKey.from_seed(place)
            for rule in ("shares", "balanced", "pneumonia=0.6"):
                (run / names.FIGURES).unlink(missing_ok=True)
                out = published.release_table(table, run, ledger, 3, given, temperature=1.0, key=key, rule=rule)
                found.append(out.operating)
    assert found[0:3] == found[3:6] == found[6:9]
    assert None not in found


def test_what_is_asked_for_is_kept_when_a_run_is_resumed(rays, source, tmp_path, killed_at, monkeypatch):
    class StopError(Exception):
        pass

    def stopping(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(finish, "close", stopping)
        with pytest.raises(StopError):
            trained(rays, tmp_path / "run", operating_point="pneumonia=0.8")
    with pytest.raises(SfumatoError, match="operating_point"):
        trained(rays, tmp_path / "run", operating_point="balanced")
    from sfumato.training.preparation import from_record

    record = RunDirectory(tmp_path / "run").read_json(names.SETTINGS)
    assert from_record.registry.recorded_options(record, "run") == {
        "report_epsilon": 3.0, "operating_point": "pneumonia=0.8", "keep": 20,
    }  # fmt: skip
    run = trained(rays, tmp_path / "run", operating_point="pneumonia=0.8")
    assert run.published.operating is None or run.published.operating.rule == "pneumonia=0.8"
    assert verify(run.directory).holds


def test_with_weights_scores_hold_where_all_classes_are_as_frequent(source, tmp_path):
    run = trained(source, tmp_path / "run", WEIGHTED)
    loaded, images = run.load(), list(source.test.take(slice(0, 20)))
    assert run.published.operating is None, "weights are what the owner has asked for"
    assert loaded.reading.shares == {"normal": 0.5, "pneumonia": 0.5}
    there = loaded.with_prevalence(USED)
    expected = torch.tensor(logit_offsets((0.5, 0.5), (0.38, 0.62), loss="softmax"))
    scaled = loaded.logits(images) / (loaded.reading.temperature or 1.0)
    assert torch.allclose(there.predict(images), (scaled + expected).softmax(1))
    (line,) = [line for line in run.statement.not_covered if "by which examples are weighted" in line]
    assert "(normal 0.26, pneumonia 0.74). sfumato trusts the owner" in line


def test_an_aggregate_has_the_declared_shares_and_no_operating_point(finished, tmp_path):
    from_record = aggregated.kept_hashes(RunDirectory(finished.directory))
    recipe = aggregated.Recipe(method="upa", steps=tuple(from_record)[-3:])
    path = tmp_path / "aggregate.safetensors"
    path.write_bytes(aggregated.model_bytes(RunDirectory(finished.directory), recipe))
    assert finished.load().reading.operating_point is not None
    assert load(path).reading.operating_point is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"operating_point": "balanced", "report_epsilon": None},
            "no figures are published from which to choose it",
        ),
        ({"operating_point": "best"}, "operating_point must be one of shares"),
        ({"operating_point": "cat=0.9"}, "operating_point must be one of normal, pneumonia; got 'cat'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(rays, source, tmp_path, given, words):
    for spelt_or_opened in (rays, source):
        with pytest.raises(SfumatoError, match=words):
            trained(spelt_or_opened, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
