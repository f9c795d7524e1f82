"""A loop of one's own that goes on: its noise, dropout, budget, records and guards are those that it started with."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import sfumato
from sfumato import PrivacyPlan, SfumatoError
from sfumato.cli import main
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.runs import directory as names
from sfumato.training.custom.records import own_records

STEPS = 6
CORRELATED = {"tree": {"mechanism": "tree"}, "banded": {"mechanism": "banded", "bands": 3, "order": "position"}}


def begun(data, directory, *, dropout=0.0, **choices):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout) if dropout else nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": STEPS, "seed": 1, "threads": 1, **choices}
    return sfumato.private_steps(model, optimizer, data, directory=directory, **choices), model


def taken(data, directory, *, until=None, **choices):
    run, model = begun(data, directory, **choices)
    for step in run:
        if step.number == until:
            break
    return torch.cat([value.detach().flatten() for value in model.parameters()])


@pytest.mark.parametrize("name", CORRELATED)
def test_correlated_noise_goes_on_after_an_interruption(data, tmp_path, name):
    """To the same bytes: what the noise remembers of earlier steps is in the checkpoint."""
    request = request_by_names(examples=60, momentum=0.0, **CORRELATED[name])._asdict()
    plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=STEPS, noise_multiplier=1.0, delta=1e-4, **request)
    given = {"plan": plan, "noise_multiplier": None, "batch_size": None, "steps": None}
    whole = taken(data, tmp_path / "whole", **given)
    for until in (3, 5, None):
        cut = taken(data, tmp_path / "cut", until=until, **given)
    assert torch.equal(cut, whole)


def test_a_loop_whose_settings_were_edited_is_not_resumed(data, tmp_path):
    taken(data, tmp_path / "cut", until=3)
    path = tmp_path / "cut" / "settings.json"
    record = json.loads(path.read_text())
    record["performance"]["micro_batch"] += 1
    path.write_text(json.dumps(record))
    with pytest.raises(SfumatoError, match=r"differs from the beginning of the ledger in performance\.micro_batch"):
        taken(data, tmp_path / "cut")


def test_dropout_follows_the_record_however_the_batch_is_cut(data, tmp_path):
    one, other = (taken(data, tmp_path / f"{size}", dropout=0.5, micro_batch=size) for size in (60, 7))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_run_whose_line_was_lost_asks_its_budget_when_it_goes_on(data, home, tmp_path):
    sfumato.set_budget("own", epsilon=3.0, delta=1e-5)
    before = {name: (home / name).read_bytes() for name in ("uses.jsonl", "lists.json")}
    choices = {"budget": "own", "noise_multiplier": None, "epsilon": 2.0, "delta": 1e-5, "seed": None}
    taken(data, tmp_path / "run", until=2, **choices)
    for name, content in before.items():  # an old copy is restored
        (home / name).write_bytes(content)
    assert sfumato.read_budget("own").reservations == ()
    taken(data, tmp_path / "run", until=3, **choices)
    assert len(sfumato.read_budget("own").reservations) == 1
    for name, content in before.items():
        (home / name).write_bytes(content)
    sfumato.set_budget("own", epsilon=2.0)
    with pytest.raises(SfumatoError, match=r"the budget own has epsilon 2 .* this one needs"):
        taken(data, tmp_path / "run", **choices)


class Changing(Dataset):
    """Its records change when `shift` does, those from `first` on."""

    def __init__(self, first):
        self.first, self.shift = first, 0.0

    def __len__(self):
        return 30

    def __getitem__(self, place):
        return torch.full((6,), place + self.shift * (place >= self.first)), place % 3


@pytest.mark.parametrize(("count", "odd"), [(30, 29), (9, 8), (3, 2)])
def test_records_of_a_map_style_set_are_compared_however_many_are_read_at_once(count, odd):
    data = Changing(odd)
    records = own_records(data, bytes(32))
    rows = torch.arange(count).numpy()
    records.take(rows)
    data.shift = 1.0
    with pytest.raises(SfumatoError, match=f"record {odd} of the data has changed"):
        records.take(rows)


def test_every_step_of_the_loop_looks_at_the_model(data, tmp_path):
    """After the first step, after a later one, and after the second since an interruption."""
    for number in (1, 2, 3):
        run, model = begun(data, tmp_path / "run")
        steps = iter(run)
        while next(steps).number < number:
            pass
        with torch.no_grad():
            model[0].bias.add_(1.0)
        with pytest.raises(SfumatoError, match=r"has changed 1 .*0\.bias"):
            next(steps)


def test_a_run_by_a_seed_says_so(data, tmp_path):
    for seed in (1, None):
        run, _ = begun(data, tmp_path / str(seed), seed=seed, steps=2)
        list(run)
        assert run.statement.circumstances.seeded == (seed is not None)


@pytest.mark.parametrize("changes", [lambda model: model[0].weight.data.sub_(1.0), lambda model: None])
def test_a_loop_that_is_left_goes_on_from_what_its_steps_made(data, tmp_path, changes):
    """Whether or not the body has moved the weights before its `break`: then the step is taken again."""
    run, model = begun(data, tmp_path / "cut")
    for step in run:
        if step.number == 2:
            changes(model)
            break
    assert torch.equal(taken(data, tmp_path / "cut"), taken(data, tmp_path / "whole"))


def test_a_loop_without_its_key_takes_no_step_more_and_can_be_ended(data, tmp_path):
    taken(data, tmp_path / "cut", until=3)
    (tmp_path / "cut" / names.RUN_KEY).unlink()
    with pytest.raises(SfumatoError, match=r"the run key .* is missing or damaged"):
        taken(data, tmp_path / "cut")
    run, _ = begun(data, tmp_path / "cut")
    assert run.finish().circumstances.steps_taken == 3


def test_a_loop_that_only_had_to_be_marked_as_finished_is_no_run_of_a_verb(data, tmp_path, capsys):
    for verb in ("train", "finish"):
        taken(data, tmp_path / verb)
        (tmp_path / verb / names.DONE).unlink()
        assert main([verb, str(tmp_path / verb)]) == 1
        assert "was trained by a custom loop (private_steps); it is finished" in capsys.readouterr().err
    assert sfumato.verify(tmp_path / "train").holds
    (tmp_path / "train" / names.PLAN).unlink()
    assert not sfumato.verify(tmp_path / "train").holds


def test_a_plan_goes_with_nothing_that_it_has(data, tmp_path):
    plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=STEPS, noise_multiplier=1.0, delta=1e-4)
    left_out = {"noise_multiplier": None, "batch_size": None, "steps": None}
    for name, value in {"delta": 1e-4, "max_norm": 1.0, "epochs": 0}.items():
        with pytest.raises(SfumatoError, match=f"plan and {name} are both given"):
            begun(data, tmp_path / "a", plan=plan, **left_out | {name: value})


@pytest.mark.parametrize("declared", [True, False])
def test_a_number_of_persons_that_is_declared_was_not_read(data, tmp_path, declared):
    choices = {"users": [f"{row // 2}" for row in range(60)], "batch_size": 10, "examples": 30 if declared else None}
    run, _ = begun(data, tmp_path / "a", **choices)
    list(run)
    assert run.statement.circumstances.read == (() if declared else ("examples", "users"))
