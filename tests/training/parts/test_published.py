"""Figures that may be published: one release in a run's life, with noise, of which nothing exact is told."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, SfumatoError, load, open_source, search, train, verify
from sfumato.data import Declared
from sfumato.evaluation import accuracy
from sfumato.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.privacy import Gaussian, Ledger, NoisyTable, Poisson, User
from sfumato.privacy import ledger as ledgers
from sfumato.privacy.noisy_table import TEMPERATURES
from sfumato.randomness import Choice
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import published as records
from sfumato.search import Trial
from sfumato.training.conclusion import finish
from sfumato.training.conclusion.run_report import report
from sfumato.training.parts import published
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import recorded_key, recorded_performance
from sfumato.training.scorers import Scorer

pytestmark = pytest.mark.usefixtures("one_secret")

SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None)
TABLE = NoisyTable(epsilon=1.0, classes=2, predictions=True, edges=(0.0, 0.6, 0.9, 1.0), temperature=False)


@pytest.fixture(scope="module")
def private():
    return open_source("digits", owner_key=bytes(32), public=False)


@pytest.fixture
def plan(private) -> PrivacyPlan:
    return PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=private.examples,
        participation=Poisson(batch_size=64),
        steps=6,
        delta=1e-5,
    )


def trained(source, plan, place, **others):
    given = {"report_epsilon": 2.5, "keep": 0} | others
    return train(None, source, plan, directory=place, settings=SETTINGS, threads=1, device="cpu", **given)


@pytest.fixture(scope="module")
def finished(private, tmp_path_factory):
    plan = PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=private.examples,
        participation=Poisson(batch_size=64),
        steps=6,
        delta=1e-5,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr("sfumato.report.sections.learning_curves.curve", lambda *_: "")
        return trained(private, plan, tmp_path_factory.mktemp("runs") / "run")


def synthetic(records=400, seed=0):
    """Logits of two classes and labels that they are right of in most cases."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (records,), generator=generator)
    own = 1.2 + 1.5 * torch.randn(records, generator=generator)
    return torch.stack([torch.where(labels == place, own, torch.zeros(())) for place in (0, 1)], 1), labels


def predicted(outputs, labels):
    """What a model says of records."""
    return published.Predictions(outputs=outputs, labels=labels, classes=("no", "yes"), loss="softmax")


def released(place, table=TABLE, *, key=None, step=3, records=400, temperature=1.0, outputs=None):
    """A release in a directory, with a ledger of its own."""
    place.mkdir(exist_ok=True)
    given, labels = synthetic(records)
    with Ledger(place / names.LEDGER) as ledger:
        return published.release_table(
            table,
            RunDirectory(place),
            ledger,
            step,
            predicted(given if outputs is None else outputs, labels),
            temperature=temperature,
            key=RunKey.from_seed(1) if key is None else key,
        )


def test_a_run_publishes_figures_and_says_what_they_cost(finished, private):
    figures, statement = finished.published, finished.statement
    assert figures.table.epsilon == 2.5
    exact = finished.accuracy
    assert figures.accuracy.low <= exact <= figures.accuracy.high
    assert figures.accuracy.high - figures.accuracy.low < 0.4
    assert "(2.5, 0)-differentially private for each single test example" in statement.sentence
    largest = max(statement.epsilon, 2.5)
    assert f"the larger epsilon of the two, {math.ceil(1000 * largest) / 1000:.3f}" in statement.sentence
    written = json.loads((finished.directory / names.STATEMENT).read_text())
    assert written["figures"]["epsilon"] == 2.5
    assert written["epsilon"] < 2.5 <= written["figures"]["epsilon_of_any_example"]
    assert any(
        "Exact accuracy" in line and "Only the noisy counts are covered" in line for line in written["not_covered"]
    )
    assert verify(finished.directory).holds
    assert load(finished.directory).reading.temperature == figures.temperature in TEMPERATURES


def test_the_public_page_has_them_and_nothing_exact(finished):
    run = RunDirectory(finished.directory)
    page, exact = report(run, public=True), run.read_json(names.EVALUATION)
    value, low, high = finished.published.accuracy
    assert f"Accuracy: {100 * value:.1f}% ({100 * low:.1f}% to {100 * high:.1f}%)" in page
    # The exact figures are not in the facts that it is drawn from, however they are changed.
    other = {**exact, "accuracy": 0.123, "loss": 9.87, "confusion": [row[::-1] for row in exact["confusion"]]}
    run.write_json(names.EVALUATION, other)
    assert report(run, public=True) == page
    run.write_json(names.EVALUATION, exact, private=True)


def test_the_exact_number_of_test_records_is_nowhere_given_away(finished, private, plan):
    exact = len(private.test)
    for name in (names.FIGURES, names.STATEMENT, names.PLAN):
        text = (finished.directory / name).read_text()
        assert f" {exact}" not in text
    whole = finished.published.counts.sum()
    assert finished.published.records.value == whole
    # What is counted, and how, is the same for any number of test records.
    fewer = replace(private, test=private.test.select(np.arange(exact) < 100))
    tables = [published.plan_table(2.5, source, plan) for source in (private, fewer)]
    assert tables[0] == tables[1] == finished.published.table


def test_the_sum_of_counts_has_the_noise_of_all_cells(tmp_path):
    sums = [released(tmp_path / f"{seed}", key=RunKey.from_seed(seed)).counts.sum() - 400 for seed in range(150)]
    expected = TABLE.cells * TABLE.variance
    assert 0.6 < np.var(sums) / expected < 1.6
    assert abs(np.mean(sums)) < 4 * math.sqrt(expected / len(sums))


def test_the_ledger_has_the_release_before_anything_is_drawn(tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    synced = []

    def stopping(*_):
        assert synced, "a power cut would lose the line, and not what was drawn"
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "sync", lambda ledger: synced.append(ledger))
        patch.setattr(published, "noisy_counts", stopping)
        with pytest.raises(StopError):
            released(tmp_path / "run")
    assert [entry.kind for entry in ledgers.read(tmp_path / "run" / names.LEDGER)] == [records.ENTRY]
    assert not (tmp_path / "run" / names.FIGURES).exists()
    assert (released(tmp_path / "run").counts == released(tmp_path / "other").counts).all()
    assert len(ledgers.read(tmp_path / "run" / names.LEDGER)) == 1


def test_a_release_is_made_once(tmp_path):
    first = released(tmp_path / "run")
    before = (tmp_path / "run" / names.FIGURES).read_bytes()
    again = released(tmp_path / "run", outputs=synthetic()[0].flip(1))  # another machine's rounding, only more of it
    assert (again.counts == first.counts).all()
    assert (tmp_path / "run" / names.FIGURES).read_bytes() == before
    assert len(ledgers.read(tmp_path / "run" / names.LEDGER)) == 1
    with pytest.raises(SfumatoError, match="the model after step 3, not of this one"):
        released(tmp_path / "run", step=4)
    with pytest.raises(SfumatoError, match="not of this one"):
        released(tmp_path / "run", replace(TABLE, epsilon=2.0))


def test_a_file_that_no_ledger_records_is_no_release(tmp_path):
    first = released(tmp_path / "run")
    (tmp_path / "run" / names.LEDGER).unlink()
    assert (released(tmp_path / "run", key=RunKey.from_seed(2)).counts != first.counts).any()


def test_of_other_counts_the_noise_is_another(tmp_path):
    outputs, labels = synthetic()
    changed = outputs.clone()
    changed[0] = changed[0].flip(0)
    one, other = (released(tmp_path / f"{place}", outputs=given) for place, given in enumerate((outputs, changed)))
    counts = [published.count_cells(TABLE, given.double(), labels, loss="softmax") for given in (outputs, changed)]
    noise = [found.counts - exact for found, exact in zip((one, other), counts, strict=True)]
    assert (noise[0] != noise[1]).any(), "with one noise the difference of both would be exact"


def test_without_the_run_key_nothing_is_released(tmp_path, monkeypatch):
    place = tmp_path / "run"
    place.mkdir()
    given, lost = predicted(*synthetic()), {"temperature": None, "key": None}
    with Ledger(place / names.LEDGER) as ledger:
        assert published.release_table(TABLE, RunDirectory(place), ledger, 3, given, **lost) is None
        assert not ledger.entries
        ledger.append(records.ENTRY, records.body(TABLE, 3))
        with pytest.raises(SfumatoError, match="the run key is lost"):
            published.release_table(TABLE, RunDirectory(place), ledger, 3, given, **lost)


def test_a_record_is_in_one_cell(tmp_path):
    outputs, labels = synthetic(50)
    whole = published.count_cells(TABLE, outputs.double(), labels, loss="softmax")
    assert whole.sum() == 50
    for place in range(50):
        rest = torch.arange(50) != place
        change = whole - published.count_cells(TABLE, outputs[rest].double(), labels[rest], loss="softmax")
        assert change.sum() == change.max() == 1
        assert change.min() == 0
    sure = torch.tensor([[0.0, 0.0], [0.0, 50.0]]).double()
    found = published.count_cells(replace(TABLE, edges=(0.0, 0.5, 1.0)), sure, torch.tensor([0, 1]), loss="softmax")[0]
    assert found[0, 0, 1] == found[1, 1, 1] == 1, "one on an edge is in the bin above, and 1 in the last"


def test_a_record_is_in_one_cell_of_one_group():
    outputs, labels = synthetic(50)
    table, groups = replace(TABLE, groups=3), np.arange(50) % 3

    def counted(which):
        given = {"loss": "softmax", "groups": groups[which.numpy()]}
        return published.count_cells(table, outputs[which].double(), labels[which], **given)

    whole = counted(torch.ones(50, dtype=torch.bool))
    assert whole.sum((1, 2, 3)).tolist() == [17, 17, 16]
    assert (whole.sum(0) == published.count_cells(TABLE, outputs.double(), labels, loss="softmax")[0]).all()
    for place in range(50):
        change = whole - counted(torch.arange(50) != place)
        assert change.sum() == change[place % 3].max() == 1
        assert change.min() == 0


def test_every_count_of_every_group_has_noise_of_its_own(tmp_path):
    outputs, labels = synthetic()
    table = replace(TABLE, epsilon=0.2, groups=2)
    given = replace(predicted(outputs, labels), groups=("a", "b"), group_of=np.array(["a"] * 400))
    place = tmp_path / "run"
    place.mkdir()
    with Ledger(place / names.LEDGER) as ledger:
        found = published.release_table(
            table, RunDirectory(place), ledger, 3, given, temperature=1.0, key=RunKey.from_seed(1)
        )
    exact = published.count_cells(table, outputs.double(), labels, loss="softmax", groups=given.places)
    noise = found.group_counts - exact
    assert (noise[1] != 0).mean() > 0.6, "that a group has no record is not shown"
    assert (noise[0] != noise[1]).any()
    assert (found.counts == found.group_counts.sum(0)).all()


def test_groups_of_a_table_are_declared():
    for given in (("sex",), ("sex", "female", "male")):
        declared = Declared(groups_from=given)
        if len(given) > 1:
            published.refuse_read_groups(declared)
            continue
        with pytest.raises(SfumatoError, match="the groups would be read from private data"):
            published.refuse_read_groups(declared)


def test_a_record_moves_each_score_of_a_temperature_by_at_most_one():
    outputs, labels = synthetic(60)
    for one in TEMPERATURES[::24]:
        whole = published._gap(outputs.double() / one, labels, "softmax")
        for place in range(60):
            rest = torch.arange(60) != place
            part = published._gap(outputs[rest].double() / one, labels[rest], "softmax")
            assert abs(whole - part) <= published.GRAIN


def test_the_temperature_meets_confidence_with_accuracy(tmp_path):
    table = replace(TABLE, epsilon=4.0, temperature=True)
    outputs, labels = synthetic(4000)
    sharp = 3.0 * outputs
    with Ledger(tmp_path / names.LEDGER) as ledger:
        place, key = RunDirectory(tmp_path), RunKey.from_seed(1)
        found = published.release_table(table, place, ledger, 3, predicted(sharp, labels), temperature=None, key=key)
    confidence, chosen = (sharp / found.temperature).softmax(1).max(1)
    assert abs(confidence.mean() - (chosen == labels).double().mean()) < 0.02
    assert abs(sharp.softmax(1).amax(1).mean() - (chosen == labels).double().mean()) > 0.05


def test_the_temperature_is_drawn_by_the_law_of_its_choice(monkeypatch):
    table, scores = replace(TABLE, epsilon=0.4, temperature=True), list(range(len(TEMPERATURES)))
    monkeypatch.setattr(published, "scores_of", lambda _: scores)
    given = predicted(*synthetic(4))
    drawn = [published._draw_figures(table, RunKey.from_seed(seed), given, None).temperature for seed in range(100)]
    mean = np.mean([scores[TEMPERATURES.index(one)] for one in drawn])
    for times, right in ((1.0, True), (0.5, False), (2.0, False)):
        law = np.array(replace(table.choice, epsilon=times * table.choice.epsilon).probabilities(scores))
        deviation = math.sqrt((law @ np.square(scores) - (law @ scores) ** 2) / len(drawn))
        assert (abs(mean - law @ scores) < 3.5 * deviation) == right


def test_a_killed_run_publishes_the_same_bytes(finished, private, plan, tmp_path, killed_at, monkeypatch):
    class StopError(Exception):
        pass

    monkeypatch.setitem(ledgers.KINDS["opening"], "salt", ledgers._SALT)  # `one_secret` has one for all openings
    with killed_at(4):
        trained(private, plan, tmp_path / "run")

    def stopping(*_):
        raise StopError

    for name in ("to_bytes", "close"):  # once after the release, and once before the ledger's end
        with monkeypatch.context() as patch:
            patch.setattr(finish, name, stopping)
            with pytest.raises(StopError):
                trained(private, plan, tmp_path / "run")
    trained(private, plan, tmp_path / "run")
    for name in (names.FIGURES, names.MODEL, names.STATEMENT):
        assert (tmp_path / "run" / name).read_bytes() == (finished.directory / name).read_bytes(), name
    assert verify(tmp_path / "run").holds


def test_a_run_whose_figures_were_published_early_takes_no_further_step(
    private, plan, tmp_path, killed_at, monkeypatch
):
    class StopError(Exception):
        pass

    def stopping(*_):
        raise StopError

    monkeypatch.setattr("sfumato.training.loop.CHECKPOINT_SECONDS", -1.0)
    with killed_at(4):
        trained(private, plan, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")

    def job():
        return prepare(
            None, private, plan, SETTINGS, keep=0, report_epsilon=2.5, recorded=recorded_performance(run),
            key=recorded_key(run), threads=1, device="cpu",
        )  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr(finish, "close", stopping)
        with pytest.raises(StopError):
            finish_early(job(), run)
    with pytest.raises(SfumatoError, match="was being ended after 3 of 6 steps"):
        trained(private, plan, tmp_path / "run")
    assert finish_early(job(), run).published is not None
    assert verify(tmp_path / "run").holds


def test_verify_finds_a_second_release_and_changed_counts(finished, tmp_path):
    for name, change, found in (
        (
            "changed",
            lambda place: _edit(place / names.FIGURES),
            "figures.json is not the file that the ledger ends with",
        ),
        ("gone", lambda place: (place / names.FIGURES).unlink(), "figures.json"),
        ("twice", lambda place: _again(place / names.LEDGER), "figures, cannot stand there with its table"),
        ("other", _of_other_noise, "figures.json is of another table"),
        ("hidden", lambda place: _without(place / names.LEDGER), "records other figures than the statement"),
    ):
        place = shutil.copytree(finished.directory, tmp_path / name)
        change(place)
        assert found in verify(place).line, name


def test_counts_that_no_release_wrote_are_on_no_page_and_found(private, plan, finished, tmp_path):
    run = trained(private, plan, tmp_path / "run", report_epsilon=None)
    page = report(RunDirectory(run.directory), public=True)
    shutil.copy(finished.directory / names.FIGURES, run.directory / names.FIGURES)
    assert "the statement does not mention the figures" in verify(run.directory).line
    assert report(RunDirectory(run.directory), public=True) == page


def _edit(path):
    data = json.loads(path.read_text())
    data["counts"][0][0][0] += 5
    path.write_text(json.dumps(data))


def _rewritten(path, change):
    previous, lines = None, b""
    for kind, body in change([(entry.kind, dict(entry.body)) for entry in ledgers.read(path)]):
        previous = ledgers.Entry.after(previous, kind, body)
        lines += previous.line()
    path.write_bytes(lines)


def _again(path):
    _rewritten(path, lambda events: [*events[:-1], events[-2], events[-1]])


def _of_other_noise(place):
    """Counts whose file claims less noise than the statement, under a ledger that binds it."""
    path = place / names.FIGURES
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"table": data["table"] | {"epsilon": 9.0}}))
    bound = {records.ENTRY: file_hash(path)}
    _rewritten(place / names.LEDGER, lambda events: [*events[:-1], ("end", events[-1][1] | bound)])


def _without(path):
    _rewritten(path, lambda events: [event for event in events if event[0] != records.ENTRY])


def test_what_no_theorem_covers_is_refused(private, plan, arrays):
    persons = replace(plan, unit=User())
    with pytest.raises(SfumatoError, match="protects users"):
        published.plan_table(1.0, private, persons)
    with pytest.raises(SfumatoError, match="the data are public"):
        published.plan_table(1.0, replace(private, public=True), plan)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(SfumatoError, match="epsilon"):
            published.plan_table(wrong, private, plan)


def test_several_runs_publish_nothing(arrays, tmp_path):
    trial = Trial(experiment=Experiment(epsilon=3.0), source=arrays, options={"report_epsilon": 1.0})
    space = {"learning_rate": Choice(values=(0.1, 0.2))}
    calls = (
        lambda: search.repeat(trial, seeds=2, directory=tmp_path / "a"),
        lambda: search.repeat(trial, epsilons=(1.0, 3.0), directory=tmp_path / "b"),
        lambda: search.open_search(trial, space, directory=tmp_path / "c"),
        lambda: search.one_at_a_time(trial, space, directory=tmp_path / "d"),
    )
    for call in calls:
        with pytest.raises(SfumatoError, match="the figures of each would cost it"):
            call()


def test_runs_that_publish_figures_of_the_same_images_are_added_up_for_their_owner(
    private, plan, tmp_path, monkeypatch, heard
):
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    trained(private, plan, tmp_path / "first", progress=heard)
    trained(private, plan, tmp_path / "silent", progress=heard, report_epsilon=None)
    assert not any("are about test images" in line for line in heard.lines)
    trained(private, plan, tmp_path / "second", progress=heard, report_epsilon=1.0)
    (line,) = [line for line in heard.lines if "are about test images" in line]
    assert line.startswith("note: with this one, 2 releases of yours are about test images")
    assert "(3.500, 0)-differentially private" in line
    assert "(3.500, 0)-differentially private" in (tmp_path / "second/report.html").read_text()
    assert "3.500" not in report(RunDirectory(tmp_path / "second"), public=True)


class Whispering(torch.nn.Module):
    """A record of one colour changes what is said of all others in its batch."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.last = torch.nn.Linear(64, 20), torch.nn.Linear(20, 10)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8

    def forward(self, images):
        flat = images.flatten(1)
        outputs = self.last(torch.tanh(self.first(flat)))
        return torch.where((flat.std(1) < 1e-3).any(), 100 * outputs.flip(1), outputs)


def test_a_record_moves_one_count_whatever_a_model_makes_of_a_batch(private, plan, tmp_path, monkeypatch):
    # Such a model is refused; here the count alone must hold.
    monkeypatch.setattr("sfumato.gradients.checks.mixing.refuse_mixing", lambda *_: None)
    images = private.test.take(slice(None)).copy()
    images[0] = 0
    whole = replace(private.test, images=images)
    plan = replace(plan, steps=1)
    seen = []
    counted = published.count_cells
    monkeypatch.setattr(finish, "report", lambda *_, **__: "")
    monkeypatch.setattr(
        published, "count_cells", lambda *given, **others: seen.append(counted(*given, **others)) or seen[-1]
    )
    for name, part in (("whole", whole), ("less", whole.select(np.arange(len(whole)) > 0))):
        source = replace(private, test=part)
        train(
            Whispering(), source, plan, directory=tmp_path / name, settings=replace(SETTINGS, model="module"),
            report_epsilon=2.5, keep=0, threads=1, device="cpu",
        )  # fmt: skip
    change = seen[0] - seen[1]
    assert change.sum() == abs(change).sum() == 1


@pytest.mark.parametrize("trained", ["all", "classifier"])
def test_not_even_rounding_tells_how_many_test_records_there_are(private, plan, trained):
    """Of 257 records the last stands alone in its block, of 129 in that of its features."""
    generator = torch.Generator().manual_seed(0)
    layers = {"flat": torch.nn.Flatten(), "first": torch.nn.Linear(64, 300), "head": torch.nn.Linear(300, 10)}
    module = torch.nn.Sequential(OrderedDict(layers))
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    settings = replace(SETTINGS, model="module", trainable=(trained,))
    outputs = []
    for count in (129, 257, 320):
        source = replace(private, test=private.test.select(np.arange(len(private.test)) < count))
        job = prepare(module, source, plan, settings, keep=0, threads=1, device="cpu")
        assert (job.trunk is None) == (trained == "all")
        outputs.append(Scorer(job).per_example_outputs(module.state_dict()))
    assert torch.equal(outputs[0], outputs[2][:129])
    assert torch.equal(outputs[1], outputs[2][:257])


def test_a_model_that_keeps_something_of_test_records_is_refused():
    calls = itertools.count()

    class Counting(Whispering):
        def forward(self, images):
            return super().forward(images) + next(calls)

    with pytest.raises(SfumatoError, match="so it stores something"):
        accuracy.per_example_logits(Counting(), torch.zeros(2, 3, 64))
