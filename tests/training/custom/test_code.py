"""A loss and an optimizer of one's own in a run: what is recorded, what a resumption demands, what is refused."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import PrivacyPlan, SfumatoError, open_source, train, verify
from sfumato.gradients.checks import selfcheck
from sfumato.privacy import ledger
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.search.audit_subject import from_run
from sfumato.training import loop
from sfumato.training.custom.code import CustomCode

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=5, noise_multiplier=8.0, delta=1e-3)
SMOOTHED = nn.CrossEntropyLoss(label_smoothing=0.1)


def decayed(parameters):
    """Two groups of other rates, with a state of its own for each parameter."""
    matrices = [one for one in parameters if one.dim() > 1]
    rest = [one for one in parameters if one.dim() <= 1]
    return torch.optim.NAdam([{"params": matrices, "lr": 0.02}, {"params": rest, "lr": 0.01}])


def trained(directory, source, **choices):
    given = {"loss": SMOOTHED, "optimizer": decayed, "seed": 5, "threads": 1, "views": 2, "shift": 1}
    return train("linear", source, PLAN, directory=directory, **(given | choices))


def test_a_run_goes_on_bit_for_bit(spots, tmp_path, monkeypatch, killed_at):
    whole = trained(tmp_path / "whole", spots, schedule="linear")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(4):
        trained(tmp_path / "run", spots, schedule="linear")
    again = trained(tmp_path / "run", spots, schedule="linear")
    for name in ("model.safetensors", "metrics.jsonl", "statement.json"):
        assert file_hash(whole.directory / name) == file_hash(again.directory / name), name
    assert verify(again.directory).holds
    rows = [json.loads(line) for line in (again.directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.02, 0.016, 0.012, 0.008, 0.004])


def test_its_record_names_them_and_its_statement_leaves_them_out(spots, tmp_path):
    run = trained(tmp_path / "run", spots)
    record = json.loads((run.directory / "settings.json").read_text())
    assert record["code"] == {"loss": "CrossEntropyLoss", "optimizer": "NAdam"}
    assert record["settings"]["optimizer"] == "own"
    assert record["settings"]["learning_rate"] == 0.02
    assert run.statement.circumstances.own_code == ("loss", "optimizer")
    assert any("own loss and optimizer" in line for line in run.statement.not_covered)
    assert run.load().loss == "softmax"
    page = (run.directory / "report.html").read_text()
    assert "NAdam" in page
    assert "CrossEntropyLoss" in page
    with pytest.raises(SfumatoError, match="was trained with a custom loss"):
        from_run(run.directory)


OTHERS = {
    "a named loss": ("differs in its code: loss was ", {"loss": "softmax"}),
    "another optimizer": ("its code: optimizer was ", {"optimizer": partial(torch.optim.AdamW, lr=0.02)}),
    "other groups": ("does not fit the model or the optimizer: ", {"optimizer": partial(torch.optim.NAdam, lr=0.02)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_run_goes_on_with_another(spots, tmp_path, name, killed_at):
    """Its record would not be true."""
    with killed_at(2):
        trained(tmp_path / "run", spots)
    what, other = OTHERS[name]
    with pytest.raises(SfumatoError, match=what):
        trained(tmp_path / "run", spots, **other)
    assert [one.kind for one in ledger.read(tmp_path / "run" / "ledger.jsonl")].count("release") == 2


def test_another_number_of_the_loss_releases_no_paid_step_again(spots, tmp_path, killed_at):
    """Two sums under one noise would show their difference without any."""
    with killed_at(2):
        trained(tmp_path / "run", spots)
    paid = [one.body for one in ledger.read(tmp_path / "run" / "ledger.jsonl") if one.kind == "release"]
    run = trained(tmp_path / "run", spots, loss=nn.CrossEntropyLoss(label_smoothing=0.2))
    after = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [one.body for one in after if one.kind == "release"][: len(paid)] == paid
    assert [one.body for one in after if one.kind == "lost"] == [{"first": 0, "last": len(paid) - 1}]
    assert run.statement.circumstances.steps_lost == len(paid)


def test_a_run_by_a_seed_promises_nothing_whatever_its_code(spots, tmp_path):
    """No key can be bound to all code that two runs may differ in."""
    assert not trained(tmp_path / "run", spots, seed=3).statement.promises


def test_a_class_takes_the_learning_rate_or_its_own(spots, tmp_path):
    first = trained(tmp_path / "a", spots, optimizer=torch.optim.Adam, learning_rate=0.25)
    other = trained(tmp_path / "b", spots, optimizer=partial(torch.optim.Adam, lr=0.25))
    for run, rate in ((first, 0.25), (other, 0.25), (trained(tmp_path / "c", spots, optimizer=torch.optim.Adam), 1e-3)):
        assert RunDirectory(run.directory).read_json("settings.json")["settings"]["learning_rate"] == rate


def test_the_slow_truth_is_that_of_the_loss(spots, tmp_path, monkeypatch):
    """The self-check compares by the very loss of the run."""
    seen = []
    monkeypatch.setattr(selfcheck, "check", lambda gradient, build, model, loss, *_, **__: seen.append(loss))
    trained(tmp_path / "run", spots)
    assert [type(one) for one in seen] == [nn.CrossEntropyLoss]
    assert seen[0].label_smoothing == 0.1
    assert seen[0] is not SMOOTHED


def test_several_labels(tmp_path):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 2, (200, 3), generator=generator)
    source = open_source((images, labels), owner_key=bytes(32))
    plan = PrivacyPlan.calibrate(examples=source.examples, batch_size=20, steps=2, noise_multiplier=8.0, delta=1e-3)

    def focal(outputs, targets):
        plain = functional.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none")
        return (plain * (1 - (-plain).exp()) ** 2).sum(-1).mean()

    run = train("linear", source, plan, directory=tmp_path / "run", loss=focal, learning_rate=0.1, threads=1)
    assert run.load().loss == "multilabel"
    assert run.statement.circumstances.own_code == ("loss", "preparation of the data")


class Counting(nn.Module):
    """Weighs what comes later more."""

    count = 0

    def forward(self, outputs, targets):
        self.count += 1
        return self.count * functional.cross_entropy(outputs, targets)


LOSSES = {
    "of the batch": (lambda outputs, targets: (outputs - outputs.mean(0)).sum(), "constant on one example"),
    "weights": (nn.CrossEntropyLoss(weight=torch.arange(1.0, 5.0)), "class weights that its mean divides out again"),
    "no number": (nn.CrossEntropyLoss(reduction="none"), r"must return one floating-point number, .* got shape \(2,\)"),
    "fails": (nn.BCEWithLogitsLoss(), "the model or loss fails on one example: ValueError"),
    "keeps something": (Counting(), "the plain computation gives"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_is_named_before_there_is_a_run(spots, tmp_path, name):
    loss, problem = LOSSES[name]
    with pytest.raises(SfumatoError, match=problem):
        trained(tmp_path / "run", spots, loss=loss)
    assert not (tmp_path / "run").exists()


class Sharp(torch.optim.SGD):
    """Climbs first, by losses that it asks for."""

    def step(self, closure=None):
        with torch.enable_grad():
            return closure()  # type: ignore[misc] - there is none


OPTIMIZERS = {
    "needs losses": (torch.optim.LBFGS, "LBFGS.step needs closure"),
    "asks for losses": (Sharp, "Sharp fails on a step with gradients alone: TypeError"),
    "over a model": (torch.optim.SGD(nn.Linear(2, 2).parameters()), "SGD over parameters, but a run trains a copy"),
    "no optimizer": (lambda parameters: None, "must make a torch.optim.Optimizer, got NoneType"),
    "fails": (lambda: None, "optimizer fails on a list of parameters: TypeError"),
    "other parameters": (lambda _: torch.optim.SGD(nn.Linear(2, 2).parameters()), "has 2 tensors that are not"),
    "some": (lambda given: torch.optim.SGD(given[:1]), "leaves out 1 trainable parameters of the model, such as"),
    "no rate": (lambda given: torch.optim.SGD(given, lr=0.0), r"SGD needs a learning rate above 0, got \[0.0\]"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_cannot_be_is_named_before_there_is_a_run(spots, tmp_path, name):
    optimizer, problem = OPTIMIZERS[name]
    with pytest.raises(SfumatoError, match=problem):
        trained(tmp_path / "run", spots, optimizer=optimizer)
    assert not (tmp_path / "run").exists()


TWICE = {
    "momentum": ({"optimizer": torch.optim.SGD, "momentum": 0.9}, "momentum is given with your own optimizer"),
    "a rate": ({"optimizer": decayed, "learning_rate": 1.0}, "learning_rate is given with your own optimizer"),
    "both": (
        {"optimizer": decayed, "weight_decay": 1.0, "momentum": 0.1},
        "momentum, weight_decay are given with your own optimizer",
    ),
    "no name": ({"optimizer": "own", "learning_rate": 1.0}, "optimizer must be one of sgd, .*, lamb; got 'own'"),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_an_optimizer_has_itself_is_not_said_twice(spots, tmp_path, name):
    choices, problem = TWICE[name]
    with pytest.raises(SfumatoError, match=problem):
        trained(tmp_path / "run", spots, **choices)


def test_a_rule_without_a_plan_takes_them(arrays, tmp_path):
    own = {"loss": SMOOTHED, "optimizer": decayed}
    run = train(
        "linear", arrays, noise_multiplier=8.0, delta=1e-3, batch_size=20, steps=2, directory=tmp_path / "run", **own
    )
    assert run.statement.circumstances.own_code == ("loss", "optimizer")
    assert CustomCode.from_arguments(None, {"loss": "sigmoid"}) == (CustomCode(), None, {"loss": "sigmoid"})


class Late(torch.optim.SGD):
    """Counts its steps where no state_dict finds it, and goes by the count later than anybody tries."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        if self.taken == 5:
            for group in self.param_groups:
                for one in group["params"]:
                    one.data.mul_(2)
        return super().step(closure)


class Copies:
    """Keeps a copy of the checkpoint as it stands after three steps."""

    def __init__(self, place):
        self.place = place

    def on_step_end(self, step):
        if step == 4:
            self.content = self.place.read_bytes()

    def __getattr__(self, name):
        return lambda *_: None


def test_a_step_that_would_be_taken_at_other_weights_is_lost(spots, tmp_path, monkeypatch, killed_at):
    """Else both would be released with the same noise, and their difference would have none: it is lost."""
    plan = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=8, noise_multiplier=8.0, delta=1e-3)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    place, copies = tmp_path / "run" / "checkpoint.safetensors", Copies(tmp_path / "run" / "checkpoint.safetensors")

    def late(**choices):
        given = {"optimizer": partial(Late, lr=0.1), "learning_rate": None, "threads": 1, **choices}
        return train("linear", spots, plan, directory=tmp_path / "run", **given)

    with killed_at(7):
        late(observers=[copies])
    place.write_bytes(copies.content)
    run = late()
    assert run.statement.circumstances.steps_lost > 0
    assert verify(tmp_path / "run").holds
