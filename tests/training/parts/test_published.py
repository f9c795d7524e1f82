"""Figures that may be published: one release in a run's life, with noise, of which nothing exact is told."""

import itertools
import json
import math
import shutil
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, SfumatoError, open_source, search, train, verify
from sfumato.evaluation import accuracy
from sfumato.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.privacy import Gaussian, Ledger, NoisyTable, Poisson, User
from sfumato.privacy import ledger as ledgers
from sfumato.randomness import Choice
from sfumato.runs import directory as names
from sfumato.runs import published as records
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.search import Trial
from sfumato.training.conclusion import finish, releases
from sfumato.training.conclusion.run_report import report
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from sfumato.training.scorers import Scorer

pytestmark = pytest.mark.usefixtures("one_secret")

SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None)
TABLE = NoisyTable(epsilon=1.0, classes=2)
COUNTS = np.array([[150, 40], [30, 180]])


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
    given = {"report_epsilon": 2.5, "keep": 0, "settings": SETTINGS} | others
    return train(None, source, plan, directory=place, threads=1, device="cpu", **given)


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
        patch.setattr("sfumato.report.sections.result.curve", lambda *_: "")
        return trained(private, plan, tmp_path_factory.mktemp("runs") / "run")


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
    assert written["epsilon"] < 2.5 <= written["figures"]["epsilon_of_any_unit"]
    assert any(
        "Exact accuracy" in line and "Only the noisy counts are covered" in line for line in written["not_covered"]
    )
    assert verify(finished.directory).holds


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


def released(place, table=TABLE, *, key=None, step=3, counts=COUNTS):
    """A release in a directory, with a ledger of its own."""
    place.mkdir(exist_ok=True)
    with Ledger(place / names.LEDGER) as ledger:
        return releases.release_table(
            table,
            RunDirectory(place),
            ledger,
            step,
            counts,
            classes=("no", "yes"),
            key=RunKey.from_seed(1) if key is None else key,
        )


def test_the_exact_number_of_test_records_is_nowhere_given_away(finished, private):
    exact = len(private.test)
    for name in (names.FIGURES, names.STATEMENT, names.PLAN):
        text = (finished.directory / name).read_text()
        assert f" {exact}" not in text
    assert finished.published.records.value == finished.published.counts.sum()


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
        patch.setattr(releases, "noisy_counts", stopping)
        with pytest.raises(StopError):
            released(tmp_path / "run")
    assert [entry.kind for entry in ledgers.read(tmp_path / "run" / names.LEDGER)] == [records.ENTRY]
    assert not (tmp_path / "run" / names.FIGURES).exists()
    assert (released(tmp_path / "run").counts == released(tmp_path / "other").counts).all()
    assert len(ledgers.read(tmp_path / "run" / names.LEDGER)) == 1


def test_a_release_is_made_once(tmp_path):
    first = released(tmp_path / "run")
    before = (tmp_path / "run" / names.FIGURES).read_bytes()
    again = released(tmp_path / "run", counts=COUNTS.T)  # another machine's rounding, only more of it
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


def test_counts_are_read_back_and_refused_when_damaged(tmp_path):
    own = released(tmp_path)
    run, again = RunDirectory(tmp_path), records.read(RunDirectory(tmp_path))
    assert (again.table, again.classes) == (own.table, own.classes)
    assert (again.counts == own.counts).all()
    good = run.read_json(names.FIGURES)
    for odd in ({"counts": [[1, 2]]}, {"classes": ["a"]}, {"table": {"epsilon": 1.0}}, {"counts": [["a", 1], [1, 1]]}):
        run.write_json(names.FIGURES, good | odd)
        with pytest.raises(SfumatoError):
            records.read(run)


def test_of_other_counts_the_noise_is_another(tmp_path):
    one, other = (COUNTS, COUNTS + np.array([[1, -1], [0, 0]]))
    noise = [released(tmp_path / f"{place}", counts=given).counts - given for place, given in enumerate((one, other))]
    assert (noise[0] != noise[1]).any(), "with one noise the difference of both would be exact"


def test_without_the_run_key_nothing_is_released(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    given = {"classes": ("no", "yes"), "key": None}
    with Ledger(place / names.LEDGER) as ledger:
        assert releases.release_table(TABLE, RunDirectory(place), ledger, 3, COUNTS, **given) is None
        assert not ledger.entries
        ledger.append(records.ENTRY, records.body(TABLE, 3))
        with pytest.raises(SfumatoError, match="the run key is lost"):
            releases.release_table(TABLE, RunDirectory(place), ledger, 3, COUNTS, **given)


@pytest.mark.parametrize("classes", [2, 20])
def test_a_record_is_in_one_cell(classes):
    table, generator = NoisyTable(epsilon=1.0, classes=classes), np.random.default_rng(0)
    labels, predicted = generator.integers(classes, size=(2, 50))
    whole = releases.count_cells(table, labels, predicted)
    assert (whole.sum(), whole.shape) == (50, table.shape)
    for place in range(50):
        rest = np.arange(50) != place
        change = whole - releases.count_cells(table, labels[rest], predicted[rest])
        assert change.sum() == change.max() == 1
        assert change.min() == 0
    right = whole.trace() if classes == 2 else whole[:, 1].sum()
    assert right == (labels == predicted).sum()


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


def test_an_unfinished_run_whose_epsilon_of_the_figures_was_edited_is_refused(private, plan, tmp_path, killed_at):
    with killed_at(4):
        trained(private, plan, tmp_path / "run")
    path = tmp_path / "run" / names.SETTINGS
    record = json.loads(path.read_text())
    record["circumstances"]["figures"]["epsilon"] = 25.0
    path.write_text(json.dumps(record))
    with pytest.raises(SfumatoError, match=r"differs from the beginning of the ledger in circumstances\.figures"):
        trained(private, plan, tmp_path / "run", report_epsilon=25.0)
    assert not (tmp_path / "run" / names.FIGURES).exists()


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
        start = Start.for_run(run, threads=1, device="cpu")
        return prepare(None, private, plan, SETTINGS, start, keep=0, report_epsilon=2.5)

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
    data["counts"][0][0] += 5
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


@pytest.fixture(scope="module")
def people():
    """Private images of 40 persons, who have one to six of them and are wholly in one part."""
    generator = np.random.default_rng(0)
    users = np.repeat(np.arange(40), generator.integers(1, 7, 40)).astype(str)
    labels = generator.integers(2, size=len(users))
    images = (generator.normal(100, 30, (len(users), 8, 8)) + 60 * labels[:, None, None]).clip(0, 255)
    given = {"x": images.astype(np.uint8), "y": labels, "users": users}
    return open_source(given, owner_key=bytes(32), classes=("no", "yes"), test_fraction=0.5)


def of_persons(source) -> PrivacyPlan:
    return PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=source.users,
        participation=Poisson(batch_size=4),
        steps=2,
        delta=1e-5,
        unit=User(),
    )


def counted(source, place, patch):
    """The exact counts behind the table that a run for persons publishes."""
    seen, count = [], releases.count_cells
    with patch.context() as inside:
        inside.setattr(releases, "count_cells", lambda *given: seen.append(count(*given)) or seen[-1])
        run = trained(source, of_persons(source), place)
    return run, seen[0]


def test_a_person_moves_one_count(people, tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "report", lambda *_, **__: "")
    users = people.test.users
    run, whole = counted(people, tmp_path / "whole", monkeypatch)
    assert whole.sum() == len(set(users.tolist())) < len(users)
    for place, person in enumerate(sorted(set(users.tolist()))[:3]):
        less = replace(people, test=people.test.select(users != person))
        change = whole - counted(less, tmp_path / f"{place}", monkeypatch)[1]
        assert change.sum() == abs(change).sum() == 1
    sentence, written = run.statement.sentence, run.statement.to_dict()["figures"]
    assert "(2.5, 0)-differentially private for each single person under add-or-remove adjacency" in sentence
    assert "from one test record of each person" in sentence
    assert written["epsilon_of_any_unit"] == pytest.approx(max(run.statement.epsilon, 2.5), abs=1e-5)
    assert verify(run.directory).holds


def test_persons_are_named_on_the_page_and_in_the_remarks(people, tmp_path):
    run = trained(people, of_persons(people), tmp_path / "run")
    page = report(RunDirectory(run.directory), public=True)
    assert "test images, one of each person, with noise, which cost each person epsilon 2.5" in " ".join(page.split())
    assert any("one of each person. One person raises or lowers" in line for line in run.statement.remarks)


def test_a_test_part_that_does_not_name_one_person_each_is_refused(people, tmp_path):
    nameless = replace(people, test=replace(people.test, users=None))
    with pytest.raises(SfumatoError, match="does not name the user of each record"):
        trained(nameless, of_persons(people), tmp_path / "run")
    images, labels = people.test.take(slice(16)), np.arange(16) % 8
    parts = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    classes = [str(place) for place in range(8)]
    by_class = open_source(parts, owner_key=bytes(32), classes=classes, user_from="class")
    with pytest.raises(SfumatoError, match="each class is one user, who has records in both parts"):
        trained(by_class, of_persons(by_class), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_no_theorem_covers_is_refused(private, plan, tmp_path):
    for source, given, words in (
        (replace(private, public=True), {}, "the data are public"),
        (private, {"settings": replace(SETTINGS, seed=1)}, "seeded noise hides nothing"),
        *((private, {"report_epsilon": wrong}, "epsilon") for wrong in (0.0, -1.0, math.nan)),
    ):
        with pytest.raises(SfumatoError, match=words):
            trained(source, plan, tmp_path / "run", **given)


def test_several_runs_publish_nothing(arrays, tmp_path):
    trial = Trial(experiment=Experiment(epsilon=3.0), source=arrays, options={"report_epsilon": 1.0})
    space = {"learning_rate": Choice(values=(0.1, 0.2))}
    for trials in (
        search.Seeds(trial, 2),
        search.Budgets(trial, (1.0, 3.0)),
        search.Grid(trial, space),
        search.SingleChanges(trial, space),
    ):
        with pytest.raises(SfumatoError, match="the figures of each would cost it"):
            search.sweep(trials, directory=tmp_path / "sweep")


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
    counted = releases.count_cells
    monkeypatch.setattr(finish, "report", lambda *_, **__: "")
    monkeypatch.setattr(
        releases, "count_cells", lambda *given, **others: seen.append(counted(*given, **others)) or seen[-1]
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
