"""A loop of one's own: what it releases, what it goes on with, what it refuses."""

import hashlib
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sfumato
from sfumato import SfumatoError
from sfumato.cli import main
from sfumato.observers import progress
from sfumato.randomness import Noise, RunKey, Sampler
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training import loop
from sfumato.training.custom.records import own_records
from tests.training.custom.conftest import network


def begun(data, directory, model=None, **choices):
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": 8, "seed": 1, "threads": 1, **choices}
    run = sfumato.private_steps(model, optimizer, data, directory=directory, with_state=[scheduler], **choices)
    return run, model, scheduler


def taken(data, directory, *, until=None, **choices):
    run, model, scheduler = begun(data, directory, **choices)
    for step in run:
        scheduler.step()
        if step.number == until:
            break
    return run, model


def digest(model):
    content = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(content).hexdigest()


def test_each_step_is_clipped_sum_plus_noise_over_public_constants(data, tmp_path):
    """By the equation, one example at a time, with the sampler's participants and the noise of the run's own key."""
    run, model, _ = begun(data, tmp_path / "a", steps=3)
    inputs, targets = data
    reference, key = network(), run._job.key
    sampler = Sampler(run.plan, key, records=60)
    noise = Noise(run.plan.mechanism, max_norm=1.0, key=key)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5, momentum=0.9)
    for step in run:
        total = {name: torch.zeros_like(value) for name, value in reference.named_parameters()}
        for row in sampler.draw(step.number - 1):
            reference.zero_grad()
            functional.cross_entropy(reference(inputs[row : row + 1]), targets[row : row + 1]).backward()
            length = torch.cat([value.grad.flatten() for value in reference.parameters()]).norm()
            for name, value in reference.named_parameters():
                total[name] += value.grad * min(1.0, 1.0 / float(length))
        for name, value in noise.add(total, step.number - 1).items():
            reference.get_parameter(name).grad = value / 20
        optimizer.step()
        for own, other in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_the_statement_follows_from_the_record(data, tmp_path):
    run, model = taken(data, tmp_path / "a")
    assert sfumato.verify(tmp_path / "a").holds
    assert run.statement.epsilon == run.plan.epsilon()
    assert any("own code around the steps" in line for line in run.statement.not_covered)
    assert not (tmp_path / "a" / names.RUN_KEY).exists()
    page = (tmp_path / "a" / names.REPORT).read_text()
    assert "Sequential, trained with private_steps" in page
    assert run.statement.sentence[:60] in page
    again, weights = begun(data, tmp_path / "a", model=nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))[:2]
    assert list(again) == []
    assert again.statement == run.statement
    assert digest(weights) == digest(model)


@pytest.mark.parametrize("pause", [0.0, 1e6])
def test_an_interrupted_loop_goes_on_to_the_same_bytes_and_pays_each_step_once(data, tmp_path, monkeypatch, pause):
    """With a checkpoint after each step, and with none since the beginning."""
    _, model = taken(data, tmp_path / "whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", pause)
    monkeypatch.setattr(loop, "pause_after", lambda saving: pause)
    for until in (3, 5):
        taken(data, tmp_path / "cut", until=until)
    _, again = taken(data, tmp_path / "cut")
    assert digest(again) == digest(model)
    lines = [json.loads(line) for line in (tmp_path / "cut" / names.LEDGER).read_text().splitlines()]
    assert [line["body"]["step"] for line in lines if line["kind"] == "release"] == list(range(8))


def test_the_line_is_in_the_ledger_before_the_weights_move(data, tmp_path, monkeypatch):
    run, *_ = begun(data, tmp_path / "a")
    seen, move = [], loop.descend

    def moving(*given):
        seen.append((tmp_path / "a" / names.LEDGER).read_text().count('"kind":"release"'))
        move(*given)

    monkeypatch.setattr(loop, "descend", moving)
    for _ in itertools.islice(run, 3):
        pass
    assert seen == [1, 2, 3]


def test_a_loop_is_ended_early_with_the_whole_plans_epsilon(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "pause_after", lambda saving: 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    run, *_ = taken(data, tmp_path / "a", until=4)
    statement = run.finish()
    assert statement.epsilon == run.plan.epsilon()
    assert statement.circumstances.steps_taken == 4
    assert sfumato.verify(tmp_path / "a").holds


def test_it_is_on_the_owners_list_once_and_public_data_are_not(data, tmp_path):
    taken(data, tmp_path / "a", until=2)
    run, _ = taken(data, tmp_path / "a")
    key = sfumato.owner_key()
    materials = own_records(data, key).data_digests
    assert uses.earlier_uses(DataIdentity(materials)).plans == [run.plan]
    other, _ = taken(data, tmp_path / "b", seed=2)
    assert "1 earlier run" in other.note or "2 runs" in other.note
    shuffled = data[0].flip(0), data[1].flip(0)
    assert own_records(shuffled, key).data_digests == materials
    for same in ((data[0], 1 - data[1]), (data[0].double(), data[1])):  # another question about the same people
        assert set(own_records(same, key).data_digests) & set(materials)
    taken((data[0] + 1, data[1]), tmp_path / "c", public=True)
    assert uses.earlier_uses(DataIdentity(own_records((data[0] + 1, data[1]), key).data_digests)).plans == []


OTHERS = {
    "data": lambda data: {"data": (data[0] * 2, data[1])},
    "plan": lambda data: {"noise_multiplier": 2.0},
    "model": lambda data: {"model": nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_does_not_go_on_with_its_key(data, tmp_path, what):
    taken(data, tmp_path / "a", until=2)
    with pytest.raises(SfumatoError, match=what):
        taken(**{"data": data, "directory": tmp_path / "a", **OTHERS[what](data)})


def test_seeded_runs_that_differ_have_keys_of_their_own(data, tmp_path):
    keys = [begun(data, tmp_path / "a")[0]._job.key]
    keys += [
        begun(**{"data": data, "directory": tmp_path / "b", **other(data)})[0]._job.key for other in OTHERS.values()
    ]
    drawn = {bytes(key.uint64_words("noise", 0)) for key in keys}
    assert len(drawn) == len(keys)


class Noisy(Dataset):
    """One that augments by itself."""

    def __len__(self):
        return 30

    def __getitem__(self, place):
        return torch.full((6,), float(place)) + torch.rand(()), place % 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda data: TensorDataset(*data), None),
        (lambda data: (data[0].numpy(), data[1].numpy()), None),
        (lambda data: DataLoader(TensorDataset(*data)), "its .dataset"),
        (lambda data: Noisy(), "without random transforms"),
        (lambda data: (data[0], data[1][:-1]), "59 and 60 rows"),
        (lambda data: data[0], "got Tensor"),
        (lambda data: ([1, 2], [3, 4]), "inputs must be tensors or arrays, got list"),
    ],
)
def test_data_as_they_come(data, tmp_path, given, words):
    if words is None:
        assert digest(taken(given(data), tmp_path / "a", until=2)[1]) == digest(taken(data, tmp_path / "b", until=2)[1])
        return
    with pytest.raises(SfumatoError, match=words):
        begun(given(data), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_opened_source_is_data_too(tmp_path):
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = sfumato.private_steps(
        model, optimizer, source, noise_multiplier=4.0, batch_size=300, epochs=2, directory=tmp_path / "a", seed=0
    )
    assert [step.last for step in run] == [False] * 9 + [True]
    assert len(run) == 10
    assert run.statement.circumstances.data_public


def test_its_model_file_is_not_taken_for_one_that_can_be_built(data, tmp_path):
    taken(data, tmp_path / "a")
    with pytest.raises(SfumatoError, match="loop of your own"):
        sfumato.load(tmp_path / "a")


def test_the_key_of_another_run_is_refused(data, tmp_path):
    taken(data, tmp_path / "a", until=2, seed=None)
    RunDirectory(tmp_path / "a").path.joinpath(names.RUN_KEY).unlink()
    RunKey.fresh().save(tmp_path / "a" / names.RUN_KEY)
    with pytest.raises(SfumatoError, match="another run"):
        taken(data, tmp_path / "a", seed=None)


def test_a_budget_is_kept_to(data, tmp_path):
    sfumato.set_budget("own", epsilon=3.0, delta=1e-5)
    choices = {"budget": "own", "noise_multiplier": None, "epsilon": 2.0, "delta": 1e-5, "seed": None}
    taken(data, tmp_path / "a", until=2, **choices)
    taken(data, tmp_path / "a", **choices)
    assert len(sfumato.read_budget("own").reservations) == 1
    with pytest.raises(SfumatoError, match="the budget own has epsilon 3"):
        taken(data, tmp_path / "b", **choices)
    assert not (tmp_path / "b").exists()
    with pytest.raises(SfumatoError, match="no budget"):
        begun(data, tmp_path / "c", **choices | {"budget": "other"})
    with pytest.raises(SfumatoError, match="and cost nothing"):
        begun(data, tmp_path / "c", public=True, **choices)
    with pytest.raises(SfumatoError, match="a seeded run has no guarantee, so it cannot count in the budget own"):
        begun(data, tmp_path / "c", **choices | {"seed": 1})


def test_verbs_send_to_the_loop_what_only_it_can_do(data, tmp_path, capsys):
    taken(data, tmp_path / "a", until=2)
    for verb in ("train", "finish", "report", "verify", "audit"):
        assert main([verb, str(tmp_path / "a")]) == 1
        assert "was trained by a custom loop (private_steps)" in capsys.readouterr().err


@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_a_body_that_still_steps_along_its_own_gradient_is_refused(data, tmp_path, rate):
    """Without a rate too: momentum of a plain gradient would move the weights in the next step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": 3, "directory": tmp_path / "run"}
    next(steps := iter(sfumato.private_steps(model, optimizer, data, **choices)))
    before = digest(model)
    optimizer.step()  # trainers call it with no gradient there, which moves nothing
    assert digest(model) == before
    next(steps)
    optimizer.param_groups[0]["lr"] = rate
    functional.cross_entropy(model(data[0]), data[1]).backward()
    optimizer.step()
    what = (
        r"has changed 4 .* such as momentum_buffer of" if rate == 0 else r"has changed 8 .* without clipping and noise"
    )
    with pytest.raises(SfumatoError, match=rf"{what}.*; leave backward\(\) and"):
        next(steps)


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_targets_beyond_the_outputs_are_refused_before_there_is_a_run(data, tmp_path, loss):
    inputs, targets = data
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    beyond = targets.clone()
    beyond[-1] = beyond_outputs = model(inputs[:1]).shape[1]
    with pytest.raises(SfumatoError, match=f"between 0 and {beyond_outputs}, but the model has {beyond_outputs} "):
        sfumato.private_steps(
            *(model, optimizer, (inputs, beyond), loss),
            noise_multiplier=1.0,
            batch_size=20,
            steps=3,
            directory=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_step_is_no_batch(data, tmp_path):
    run, _, _ = begun(data, tmp_path / "run")
    with pytest.raises(SfumatoError, match=r"has no inputs and targets.*for step in run"):
        for _, _ in run:
            pass


BODIES = {
    "manual descent": lambda model: model[0].weight.data.sub_(0.1),
    "moved buffers": lambda model: model.train()(torch.randn(4, 6)),
    "another layer": lambda model: model.__setitem__(0, nn.Linear(6, 8)),
    "frozen": lambda model: model[0].requires_grad_(False),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_changes_the_model_is_refused(data, tmp_path, what):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)).eval()
    run, *_ = begun(data, tmp_path / "run", model=model)
    two = r"has changed 2 .*, such as 0\."
    words = {"another layer": two, "frozen": two, "moved buffers": r"such as 1\."}
    next(steps := iter(run))
    BODIES[what](model)
    with pytest.raises(SfumatoError, match=words.get(what, r"has changed 1 .*0\.weight")):
        next(steps)


def test_what_a_break_leaves_has_all_steps_that_were_taken(data, tmp_path):
    run, model = taken(data, tmp_path / "a", until=4)
    seen = digest(model)
    assert run.finish().circumstances.steps_taken == 4
    assert digest(model) == seen
    run, model, _ = begun(data, tmp_path / "b")

    def fail():
        for step in run:
            assert step.number < 3

    with pytest.raises(AssertionError):
        fail()
    seen = digest(model)
    assert run.finish().circumstances.steps_taken == 3
    assert digest(model) == seen


CHANGES = {
    "in place": lambda inputs, targets: inputs.sub_(inputs.mean(0)),
    "targets": lambda inputs, targets: targets.fill_(0),
    "past torch's count of changes": lambda inputs, targets: inputs.data.mul_(2),
    "by NumPy": lambda inputs, targets: np.copyto(inputs.numpy(), 0),
    "the order within a record": lambda inputs, targets: inputs.copy_(inputs.flip(1)),
    "pairs of numbers that change places": lambda inputs, targets: inputs.copy_(inputs.roll(2, 1)),
}


@pytest.mark.parametrize(
    ("what", "given"), [*((what, "tensors") for what in CHANGES), ("in place", "arrays"), ("in place", "set")]
)
def test_data_that_the_body_changes_are_refused_at_the_next_step(data, tmp_path, what, given):
    """Whatever way they are changed, and wherever they came from; also when the loop goes on later."""
    kinds = {"tensors": data, "arrays": (data[0].numpy(), data[1].numpy()), "set": TensorDataset(*data)}
    run, *_ = begun(kinds[given], tmp_path / "a")
    next(steps := iter(run))
    CHANGES[what](*data)
    before = digest(run.model)
    with pytest.raises(SfumatoError, match=r"step 2: record \d+ of the data has changed since it was first read"):
        next(steps)
    assert digest(run.model) == before
    with pytest.raises(SfumatoError, match=r"step 1: record \d+ of the data has changed since it was first read"):
        next(iter(run))


def steps_of(data, directory, make, later=(), before=None, rates=None):
    """Takes steps whose rates a scheduler sets that is made before the call, after it, or in the body."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = make(optimizer) if before == "call" else None
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": 8, "seed": 1, "threads": 1}
    later = [scheduler] if later == "own" else later
    run = sfumato.private_steps(model, optimizer, data, directory=directory, with_state=later, **choices)
    scheduler = make(optimizer) if before == "loop" else scheduler
    for step in run:
        scheduler = scheduler or make(optimizer)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if step.number == 4:
            break


SCHEDULERS = {
    "steps": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    "one after another": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2), SCHEDULERS["steps"](optimizer)], [3]
    ),
    "chained": lambda optimizer: torch.optim.lr_scheduler.ChainedScheduler([SCHEDULERS["steps"](optimizer)]),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_goes_on_where_it_was(data, tmp_path, make):
    cut, whole, reference = [], [], torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    for _ in range(2):
        steps_of(data, tmp_path / "cut", make, later="own", before="call", rates=cut)
    scheduler = make(reference)
    for _ in range(8):
        reference.step()
        scheduler.step()
        whole.append(reference.param_groups[0]["lr"])
    assert cut == whole


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize(("before", "taken"), [("call", 0), ("loop", 0), (None, 1)])
def test_a_scheduler_that_was_not_handed_over_is_refused_where_it_is_first_seen(data, tmp_path, before, taken):
    other = SCHEDULERS["steps"](torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    for place, later in enumerate(([], [other])):
        rates = []
        with pytest.raises(SfumatoError, match=r"a learning rate scheduler changes .* give with_state=\[scheduler\]"):
            steps_of(data, tmp_path / f"{place}", SCHEDULERS["steps"], later=later, before=before, rates=rates)
        assert len(rates) == taken


@pytest.mark.parametrize("mode", [torch.inference_mode(), torch.device("meta")], ids=["inference", "meta"])
def test_settings_of_torch_under_which_no_step_is_taken_are_named(data, tmp_path, mode):
    run, *_ = begun(data, tmp_path / "a")
    with mode, pytest.raises(SfumatoError, match="no private step can be taken under torch"):
        begun(data, tmp_path / "b")
    with mode, pytest.raises(SfumatoError, match="no private step can be taken under torch"):
        next(iter(run))
    assert next(iter(run)).number == 1


class Indexed(nn.Module):
    """One with an index of rows in a buffer, and perhaps more state."""

    def __init__(self, index=0, **buffers):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.zeros(4, 6)), nn.Linear(6, 3)
        for name, value in {"index": torch.tensor([index]), **buffers}.items():
            self.register_buffer(name, value)

    def forward(self, inputs):
        return self.last(inputs + self.table[self.index])


class Remembering(Indexed):
    def get_extra_state(self):
        return {"seen": 1}


MODELS = {
    "half": (lambda: network().half(), "fails on synthetic records: RuntimeError: mat1 and mat2 .* parameters float16"),
    "double": (lambda: network().double(), r"inputs float32; targets int64; parameters float64\)"),
    "an index beyond": (lambda: Indexed(7), "fails on one example: IndexError: index 7 is out of bounds"),
    "extra state": (Remembering, r"_extra_state of the model is no dense tensor \(dict\)"),
    "sparse": (lambda: Indexed(more=torch.eye(3).to_sparse()), r"more of .* \(a tensor of layout torch\.sparse_coo\)"),
    "nested": (
        lambda: Indexed(more=torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged)),
        r"\(a tensor that is nested\)",
    ),
    "meta": (lambda: network().to("meta"), r"0\.weight of the model is no dense tensor \(a tensor on meta\)"),
}


@pytest.mark.parametrize("what", MODELS)
def test_models_that_torch_would_refuse_with_its_own_error_are_refused_in_a_line(data, tmp_path, what):
    make, words = MODELS[what]
    with pytest.raises(SfumatoError, match=words):
        begun(data, tmp_path / "a", model=make())
    assert not (tmp_path / "a").exists()


INPUTS = {
    "sparse": (lambda inputs: inputs.to_sparse(), r"inputs must be tensors or arrays, got a tensor of layout torch"),
    "strides": (lambda inputs: inputs.numpy()[::-1], "got an array of float32 .*negative"),
    "text": (lambda inputs: np.full((60, 6), "a"), "got an array of <U1"),
}


@pytest.mark.parametrize("what", INPUTS)
def test_inputs_that_are_no_dense_numbers_are_refused_in_a_line(data, tmp_path, what):
    make, words = INPUTS[what]
    with pytest.raises(SfumatoError, match=words):
        begun((make(data[0]), data[1]), tmp_path / "a")


def test_an_index_that_comes_in_from_outside_stops_the_step_in_a_line(data, tmp_path):
    model = Indexed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    choices = {"rounds": 2, "steps": 2, "noise_multiplier": 1.0, "batch_size": 20, "directory": tmp_path / "a"}
    run, weights = sfumato.private_rounds(model, optimizer, data, **choices), model.state_dict()
    with pytest.raises(
        SfumatoError, match="model, loss or data set fail in step 1: IndexError: index 9 is out of bounds"
    ):
        run.train(weights | {"index": torch.tensor([9])})
    run.train(weights | {"index": torch.tensor([3])})
    assert run.completed == 1


def test_a_line_says_what_is_going_on_while_a_large_model_is_checked(data, tmp_path, monkeypatch, capsys):
    begun(data, tmp_path / "a")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    begun(data, tmp_path / "a")
    assert capsys.readouterr().err == "comparing the clipped gradients of this model with a slow reference ...\n"


def test_a_step_knows_its_epoch_and_what_was_spent_so_far(data, tmp_path):
    """20 of 60 records a step: 3 steps an epoch. 25 of 60: 2.4, and 5 epochs are 12 steps."""
    run, *_ = begun(data, tmp_path / "a", steps=7)
    found = list(run)
    assert run.steps_per_epoch == 3
    assert [(step.number, step.steps, step.epoch) for step in found] == [
        (number, 7, epoch) for number, epoch in zip(range(1, 8), [1, 1, 1, 2, 2, 2, 3], strict=True)
    ]
    assert [step.epsilon for step in found[::3]] == [run.plan.epsilon(steps=steps) for steps in (1, 4, 7)]
    assert found[-1].epsilon == run.statement.epsilon
    run, *_ = begun(data, tmp_path / "b", steps=None, epochs=5, batch_size=25)
    assert (len(run), run.steps_per_epoch) == (12, 3)
    assert [step.epoch for step in run] == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5]


class Sharp(torch.optim.SGD):
    def step(self, closure=None):
        return closure()  # type: ignore[misc] - there is none


class Odd(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for one in self.param_groups[0]["params"]:
            self.state[one]["history"] = {1.0}


def _moved(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    functional.cross_entropy(model(torch.randn(4, 6)), torch.arange(4) % 3).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


OPTIMIZERS = {
    "a state that no checkpoint holds": (lambda model: Odd(model.parameters(), lr=0.1), "holds a set"),
    "a closure": (lambda model: torch.optim.LBFGS(model.parameters()), r"LBFGS\.step needs closure"),
    "losses": (lambda model: Sharp(model.parameters()), "Sharp fails on a step with gradients alone: TypeError"),
    "other parameters": (lambda model: torch.optim.SGD(network().parameters(), lr=0.1), "not trainable parameters"),
    "some": (lambda model: torch.optim.SGD(model[0].parameters(), lr=0.1), "leaves out 2"),
    "momentum of plain gradients": (_moved, "already has a state, such as momentum of plain gradients"),
}


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_an_optimizer_that_a_run_cannot_keep_is_refused_before_there_is_one(data, tmp_path, what):
    model, (make, words) = network(), OPTIMIZERS[what]
    optimizer = make(model)
    before = digest(model)
    with pytest.raises(SfumatoError, match=words):
        sfumato.private_steps(
            model, optimizer, data, noise_multiplier=1.0, batch_size=20, steps=3, directory=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
    assert digest(model) == before


def _nan(data):
    inputs, targets = data
    inputs = inputs.clone()
    inputs[7, 0], inputs[9, 1] = torch.nan, torch.inf
    return inputs, targets


BAD = {
    "float64": (
        lambda data: (data[0].double(), data[1]),
        r"fails on synthetic records: .*inputs float64; .*inputs\.to\(torch\.float32\)",
    ),
    "not finite": (_nan, "2 of 60 records hold numbers that are not finite, the first is record 7"),
    "a negative target": (lambda data: (data[0], data[1] - 1), "the targets lie between -1 and 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_data_that_would_be_trained_on_in_vain_are_refused(data, tmp_path, what):
    with pytest.raises(SfumatoError, match=BAD[what][1]):
        begun(BAD[what][0](data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", OTHERS)
def test_a_finished_run_is_not_that_of_other_data_another_plan_or_model(data, tmp_path, what):
    taken(data, tmp_path / "a")
    words = {"data": "data: fingerprint was", "plan": "plan: noise_multiplier was", "model": "model: 0.bias was"}[what]
    with pytest.raises(SfumatoError, match=f"differs in its {words}"):
        begun(**{"data": data, "directory": tmp_path / "a", **OTHERS[what](data)})


def test_records_of_one_name_are_counted_together_in_whatever_normalisation(data, tmp_path, capsys):
    inputs, targets = data
    first, _ = taken(data, tmp_path / "a", seed=None, steps=1)
    assert first.note.startswith("note: these records are known by their numbers alone: ")
    named, _ = taken((inputs * 2, targets), tmp_path / "b", seed=None, steps=1, name="faces")
    assert named.note == "", "no number in common with the first, and a name"
    again, _ = taken((inputs * 3, targets), tmp_path / "c", seed=None, steps=1, name="faces")
    assert "1 earlier run of yours used these data" in again.note
    unnamed, _ = taken((inputs * 3, targets), tmp_path / "d", seed=None, steps=1)
    assert "2 earlier runs of yours used these data" in unnamed.note, "by way of the one with these numbers"
    assert main(["spent", "name:faces"]) == 0
    told = capsys.readouterr()
    assert "for each single example: 3 runs" in told.out
    assert "note: 2 runs of yours used tensors or arrays that are known by their numbers alone" in told.err
    assert main(["spent", "name:others"]) == 0
    assert "no known run of yours used name:others" in capsys.readouterr().out


def test_a_run_goes_on_under_the_name_that_it_began_with(data, tmp_path):
    taken(data, tmp_path / "a", seed=None, name="faces", until=2)
    for other in (None, "others"):
        with pytest.raises(SfumatoError, match=rf"name is {other!r}, but the run in .* began with 'faces'"):
            begun(data, tmp_path / "a", seed=None, name=other)
    taken(data, tmp_path / "a", seed=None, name="faces")
    with pytest.raises(SfumatoError, match=r"name must be a name of letters.*got 'a b'"):
        begun(data, tmp_path / "b", name="a b")
    with pytest.raises(SfumatoError, match="name is faces, but public data"):
        begun(data, tmp_path / "b", name="faces", public=True)
