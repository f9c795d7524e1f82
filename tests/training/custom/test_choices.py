"""Noise, precision, the model's own loss and frozen parts in a loop of one's own."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import sfumato
from sfumato import Gaussian, PrivacyPlan, SfumatoError
from sfumato.privacy import FixedOrder
from sfumato.privacy.ledger import openings, read
from sfumato.privacy.mechanism import Tree
from sfumato.randomness import Sampler
from sfumato.randomness.noise.secure import SecureNoise, grid_of
from sfumato.runs import directory as names
from sfumato.training import loop
from tests.recorders import recording
from tests.training.custom.conftest import network


def begun(data, directory, model=None, **choices):
    model = network() if model is None else model
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": 3, "seed": 1, "threads": 1, **choices}
    return sfumato.private_steps(model, optimizer, data, directory=directory, **choices), model


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


def test_secure_noise_is_that_of_the_grid_and_the_statement_says_so(data, tmp_path):
    run, model = begun(data, tmp_path / "a", noise="secure", seed=None)
    list(run)
    reference, (inputs, targets) = network(), data
    key = run._job.key.with_salts(openings(read(tmp_path / "a" / "ledger.jsonl")))
    noise = SecureNoise(run.plan.mechanism, max_norm=1.0, key=key)
    gradient = sfumato.ClippedGradient(reference, functional.cross_entropy)
    private = sfumato.PrivateStep(plan=run.plan, gradient=gradient, noise=noise)
    sampler = Sampler(run.plan, key, records=60)
    for step in range(3):
        rows = torch.from_numpy(sampler.draw(step))
        pieces = [(inputs[row : row + 1], targets[row : row + 1]) for row in rows]
        for name, value in private(step, pieces).items():
            reference.get_parameter(name).data -= 0.5 * value
    torch.testing.assert_close(weights(model), weights(reference))
    elements = sum(one.numel() for one in model.parameters())
    facts = run.statement.circumstances
    assert facts.noise_grid
    assert facts.noise_grid.alone
    assert facts.noise_grid.exponent == grid_of(1.0, elements).exponent
    assert any("rounded correctly to multiples" in line for line in run.statement.plain)
    assert sfumato.verify(tmp_path / "a").holds
    assert json.loads((tmp_path / "a" / names.SETTINGS).read_text())["performance"]["micro_batch"] == 1


def test_a_run_with_secure_noise_goes_on_with_it_alone(data, tmp_path, monkeypatch):
    whole, model = begun(data, tmp_path / "whole", noise="secure")
    assert len(list(whole)) == 3
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    next(iter(begun(data, tmp_path / "cut", noise="secure")[0]))
    with pytest.raises(SfumatoError, match="circumstances"):
        begun(data, tmp_path / "cut")
    again, other = begun(data, tmp_path / "cut", noise="secure")
    assert len(list(again)) == 2
    assert torch.equal(weights(other), weights(model))


def test_what_cannot_have_secure_noise_is_refused_before_there_is_a_run(data, tmp_path):
    base = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-5)
    tree = replace(base, participation=FixedOrder(batch_size=20), mechanism=Tree(noise_multiplier=1.0))
    given = {"plan": tree, "noise_multiplier": None, "batch_size": None, "steps": None}
    with pytest.raises(SfumatoError, match="noise is secure"):
        begun(data, tmp_path / "a", noise="secure", **given)
    with pytest.raises(SfumatoError, match="noise must be one of standard, secure; got 'loud'"):
        begun(data, tmp_path / "a", noise="loud")
    assert not (tmp_path / "a").exists()


def test_half_precision_is_recorded_and_has_a_key_of_its_own_under_one_seed(data, tmp_path):
    plain, exact = begun(data, tmp_path / "a")
    half, coarse = begun(data, tmp_path / "b", precision="bfloat16")
    assert bytes(plain._job.key.uint64_words("noise", 0)) != bytes(half._job.key.uint64_words("noise", 0))
    assert len(list(half)) == 3
    assert half._job.performance.precision == "bfloat16"
    assert half.statement.sentence == (list(plain), plain.statement)[1].sentence
    assert not torch.equal(weights(exact), weights(coarse))
    with pytest.raises(SfumatoError, match="precision must be one of"):
        begun(data, tmp_path / "c", precision="float16")


def test_sums_are_recorded_where_that_is_asked_for_and_weights_are_the_same(data, tmp_path, monkeypatch):
    moved = {}
    with recording(monkeypatch) as graphs:
        for capture in (False, True):
            run, model = begun(data, tmp_path / str(capture), capture=capture, micro_batch=8, steps=8)
            assert len(list(run)) == 8
            moved[capture] = weights(model)
            assert bool(graphs) == capture
    assert torch.equal(moved[True], moved[False])


class Own(nn.Linear):
    """A model that computes its loss from labels, as those of transformers do."""

    def forward(self, inputs, labels):
        logits = super().forward(inputs)
        return type("Output", (), {"logits": logits, "loss": functional.cross_entropy(logits, labels)})()


def test_a_models_own_loss_is_taken_where_labels_are_among_its_inputs(data, tmp_path):
    model, plain = Own(6, 3), nn.Linear(6, 3)
    plain.load_state_dict(model.state_dict())
    named = {"inputs": data[0], "labels": data[1]}
    plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=2, noise_multiplier=1e-3, delta=1e-3)
    given = {"plan": plan, "noise_multiplier": None, "batch_size": None, "steps": None}
    for one, records, place in ((model, named, "a"), (plain, data, "b")):
        run, _ = begun(records, tmp_path / place, model=one, **given)
        key = sfumato.RunKey.from_seed(7, "the same participants and noise")
        run._job = replace(run._job, key=key)
        list(run)
    torch.testing.assert_close(weights(model), weights(plain))


def test_of_a_frozen_backbone_nothing_moves_and_nothing_is_paid_for(data, tmp_path):
    model = network()
    model[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run, _ = begun(data, tmp_path / "a", model=model)
    assert list(run._job.gradient.zeros()) == ["2.weight", "2.bias"]
    list(run)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"2.weight", "2.bias"}
    assert Gaussian(noise_multiplier=1.0) == run.plan.mechanism
