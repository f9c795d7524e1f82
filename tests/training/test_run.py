"""Training from Python: what comes out, what it leaves alone, and what is published."""

import json
import re
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sfumato
from sfumato import PrivacyPlan, SfumatoError, load, train
from sfumato.experiment import Settings
from sfumato.observers import Observer
from sfumato.runs.checkpoint import METADATA, read_safetensors, to_bytes
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training.preparation.building import origins, origins_of, origins_of_backbone
from sfumato.training.preparation.prepare import prepare


def test_it_learns_and_says_what_it_promised(one_run, plan):
    assert one_run.accuracy > 0.7
    assert one_run.steps == 12
    assert one_run.statement.plan == plan
    assert one_run.statement.circumstances.seeded


def test_the_run_directory_holds_what_the_documentation_says(one_run):
    names = {path.name for path in one_run.directory.iterdir()}
    assert names == {
        "done",
        "evaluation.json",
        "kept",
        "ledger.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "plan.json",
        "report.html",
        "settings.json",
        "statement.json",
    }
    for name in ("evaluation.json", "metrics.jsonl", "report.html", "settings.json"):
        assert stat.S_IMODE((one_run.directory / name).stat().st_mode) == 0o600


def test_what_is_published_holds_no_path_clock_or_line_of_the_ledger(one_run):
    """No date either, and not what the data are called."""
    entries = sfumato.privacy.ledger.read(one_run.directory / "ledger.jsonl")
    tensors, metadata = read_safetensors(one_run.directory / "model.safetensors")
    published = (one_run.directory / "statement.json").read_text() + metadata[METADATA] + " ".join(tensors)
    assert not re.search(r"/(?!classes)\w+/|\b20\d\d-\d\d|\d\d:\d\d", published)
    assert not [entry for entry in entries if entry.hash in published]
    for text in (published, (one_run.directory / "ledger.jsonl").read_text()):
        assert str(one_run.directory.parent) not in text
        assert "spots" not in text


def test_the_model_is_read_back_and_predicts(one_run, spots):
    loaded = one_run.load()
    logits = loaded.module(loaded.transform(spots.test.images))
    accuracy = (logits.argmax(1).numpy() == spots.test.labels).mean()
    assert accuracy == pytest.approx(one_run.accuracy)
    assert loaded.classes == spots.classes
    assert loaded.statement == one_run.statement
    assert not loaded.module.training


def test_a_model_file_alone_is_enough(one_run, tmp_path):
    (tmp_path / "given.safetensors").write_bytes((one_run.directory / "model.safetensors").read_bytes())
    assert sfumato.load(tmp_path / "given.safetensors").classes == one_run.load().classes


def test_the_same_seed_gives_the_same_bytes_and_no_seed_others(spots, plan, options, tmp_path):
    short = replace(plan, steps=3)
    content = []
    for place, seed in enumerate((5, 5, None, None)):
        run = train("lenet-300-100", spots, short, directory=tmp_path / str(place), **{**options, "seed": seed})
        content.append((run.directory / "model.safetensors").read_bytes())
    assert content[0] == content[1]
    assert len(set(content)) == 3


def thrown(job):
    """One draw of the job's noise."""
    return job.key.generator("noise", 0).standard_normal()


def test_runs_of_other_plans_data_or_settings_share_no_noise_under_one_seed(spots, plan, tmp_path):
    settings = Settings(model="module", optimizer="sgd", learning_rate=1.0, seed=7)
    torch.manual_seed(0)
    first, other = (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)) for _ in range(2))
    named = replace(settings, model="linear")
    sums = [
        prepare(first, spots, plan, settings),
        prepare(other, spots, plan, settings),
        prepare(first, replace(spots, features="a" * 64), plan, settings),
        prepare(first, replace(spots, features="b" * 64), plan, settings),
        prepare(first, replace(spots, fingerprint="c" * 64), plan, settings),
        prepare(first, spots, replace(plan, steps=13), settings),
        prepare(first, spots, plan, replace(settings, seed=8)),
        prepare(None, spots, plan, named),
        prepare(None, spots, plan, replace(named, learning_rate=2.0)),
    ]
    keys = {thrown(job) for job in sums}
    assert len(keys) == len(sums)
    assert thrown(prepare(first, spots, plan, settings)) == thrown(sums[0])
    state = {name: torch.zeros_like(value) for name, value in sums[7].module.state_dict().items()}
    path = tmp_path / "start.safetensors"
    begun = []
    for shift in (0.0, 1.0):
        save_file({name: value + shift for name, value in state.items()}, path)
        begun.append(thrown(prepare(None, spots, plan, replace(named, pretrained=str(path), head="pretrained"))))
    assert begun[0] != begun[1], "other weights in the same file"


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_run_that_is_called_like_a_library_is_no_library(spots, plan, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    train("cnn", spots, plan, directory=name, learning_rate=1.0, threads=1)
    assert origins_of_backbone(name, None) == ("private run",)
    assert origins_of_backbone("timm:resnet18", name) == ("private run",)
    assert origins_of_backbone(f"{name}:resnet18", None) == (name,)
    assert origins_of(f"./{name}") == ("private run",)


def test_a_module_of_one_s_own_is_trained_as_a_copy(spots, plan, tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout(0.1))
    module.eval()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    run = train(module, spots, plan, directory=tmp_path / "run", learning_rate=1.0, threads=1, averaging=None)
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert run.statement.circumstances.origins == ("own model",), "its first weights may be of other data"
    with pytest.raises(SfumatoError, match="only its own code can build"):
        run.load()
    loaded = run.load(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout(0.1)))
    images = loaded.transform(spots.test.images)
    assert (loaded.module(images).argmax(1).numpy() == spots.test.labels).mean() == pytest.approx(run.accuracy)


@pytest.mark.parametrize(
    ("model", "pretrained", "words"),
    [
        ("module", None, ("own model",)),
        ("mine:build,depth=2", None, ("own model",)),
        ("mine:build", "timm", ("own model", "timm")),
        ("timm:resnet10t", "timm", ("timm",)),
        ("timm:resnet10t", None, ()),
        ("cnn", None, ()),
    ],
)
def test_where_the_first_weights_come_from(spots, model, pretrained, words):
    settings = Settings(model=model, optimizer="sgd", learning_rate=1.0, pretrained=pretrained)
    assert origins(spots, settings) == words


def test_model_files_of_other_versions_are_refused(one_run, tmp_path):
    tensors, metadata = read_safetensors(one_run.directory / "model.safetensors")
    about = json.loads(metadata[METADATA])
    statement = about["statement"]
    facts = {name: value for name, value in statement["circumstances"].items() if name != "origins"}
    for change, refused, words in (
        ({"format": 1}, load, "was written by another version of sfumato"),
        ({"statement": {**statement, "circumstances": facts}}, origins_of, "says of its model that statement is"),
    ):
        path = tmp_path / "model.safetensors"
        path.write_bytes(to_bytes(tensors, {METADATA: json.dumps(about | change)}))
        with pytest.raises(SfumatoError, match=words):
            refused(str(path))


def test_a_module_has_its_weights_already(spots, plan, tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(SfumatoError, match="pretrained timm is given with a module, which already has weights"):
        train(module, spots, plan, directory=tmp_path / "run", learning_rate=1.0, pretrained="timm")
    assert not (tmp_path / "run").exists()


def test_without_averaging_the_last_weights_are_kept(spots, plan, options, tmp_path):
    averaged = train("linear", spots, plan, directory=tmp_path / "a", **options)
    last = train("linear", spots, plan, directory=tmp_path / "b", **{**options, "averaging": None})
    assert not torch.equal(next(averaged.load().module.parameters()), next(last.load().module.parameters()))


def test_a_plan_for_another_number_of_examples_is_refused(spots, options, tmp_path):
    plan = PrivacyPlan.calibrate(examples=201, batch_size=50, steps=12, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(SfumatoError, match="the plan is for 201 examples, but the source has 200"):
        train("cnn", spots, plan, directory=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_declared_number_of_examples_is_what_the_plan_divides_by(arrays, options, tmp_path):
    source = sfumato.open_source(arrays, owner_key=bytes(32), examples=400, classes=list("0123"), size=8, channels=1)
    plan = PrivacyPlan.calibrate(examples=400, batch_size=100, steps=2, noise_multiplier=1.0, delta=1e-3)
    run = train("linear", source, plan, directory=tmp_path / "run", **options)
    assert not any("Read from the data" in line for line in run.statement.not_covered)
    assert run.statement.plan.sampling_probability == 0.25


def test_facts_read_from_the_data_are_named(spots, plan, options, tmp_path):
    run = train("linear", spots, plan, directory=tmp_path / "run", **options | {"seed": None})
    named = [line for line in run.statement.not_covered if "Read from the data" in line]
    assert len(named) == 4


def test_runs_on_private_data_are_counted_and_on_public_data_not(spots, plan, options, tmp_path, home):
    first = train("linear", spots, plan, directory=tmp_path / "a", **options)
    second = train("linear", spots, plan, directory=tmp_path / "b", **options)
    assert (first.uses, first.joint_cost) == (1, None)
    assert second.uses == len(uses.earlier_uses(DataIdentity(spots.data_digests)).plans) == 2
    assert second.joint_cost is not None
    assert (first.adjacency, second.adjacency) == (None, "add-or-remove")
    assert plan.epsilon() < second.joint_cost[0] < 2 * plan.epsilon()
    public = replace(spots, public=True)
    assert train("linear", public, plan, directory=tmp_path / "c", **options).uses == 0


def test_private_figures_of_single_examples_are_nowhere(one_run):
    """No loss or norm of a training batch, no realised batch size, is kept."""
    rows = [json.loads(line) for line in (one_run.directory / "metrics.jsonl").read_text().splitlines()]
    assert set(rows[0]) == {"step", "epsilon", "learning_rate", "accuracy", "top5", "loss"}
    assert set(rows[-1]) == {*rows[0], "accuracy_of_last_weights"}
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert np.all(np.diff([row["epsilon"] for row in rows]) > 0)
    for line in (one_run.directory / "ledger.jsonl").read_text().splitlines()[1:-1]:
        assert set(json.loads(line)["body"]) == {"step", "plan", "release"}


def test_threads_are_given_back(spots, plan, options, tmp_path):
    before = torch.get_num_threads()
    train("linear", spots, plan, directory=tmp_path / "a", **{**options, "threads": 1})
    assert torch.get_num_threads() == before


def test_global_random_states_are_left_alone(spots, plan, options, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train("cnn", spots, plan, directory=tmp_path / "a", **options)
    assert torch.equal(torch.rand(2), expected)


def test_data_that_changed_where_they_lie_are_known_again_from_python(arrays, tmp_path):
    plan = PrivacyPlan.calibrate(examples=200, batch_size=200, steps=1, noise_multiplier=8.0, delta=1e-3)
    content, path = dict(np.load(arrays.removeprefix("npz:"))), tmp_path / "spots.npz"
    np.savez(path, **content)
    for place, changed in ((0, 0), (1, 1)):
        content["x_train"][0] += changed
        np.savez(path, **content)
        run = train("linear", f"npz:{path}", plan, directory=tmp_path / f"{place}", learning_rate=0.5, threads=1)
    assert run.uses == 2
    assert run.joint_cost is not None
    assert run.joint_cost[0] > run.statement.epsilon


class Another(Observer):
    """Trains another model on the same records after the first step."""

    def __init__(self, begin):
        self.begin = begin

    def on_step_end(self, step):
        if step == 1:
            self.begin()


def test_a_run_that_began_meanwhile_is_in_the_total(spots, tmp_path):
    def trained(name, **others):
        return train("linear", spots, epsilon=1.0, steps=3, directory=tmp_path / name, threads=1, **others)

    outer = trained("outer", observers=[Another(lambda: trained("inner"))])
    assert outer.uses == 2
    (line,) = [line for line in outer.costs if "runs" in line]
    assert line in (outer.directory / "report.html").read_text()
