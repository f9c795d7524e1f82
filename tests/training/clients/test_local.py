"""A client's local training against a plain loop, what it must not depend on, and the order of its records: what
`tf.data` does with shuffle, repeat, take and batch."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional

from sfumato import SfumatoError
from sfumato.experiment.client_choices import Clients, LocalSGD
from sfumato.models.losses import PAIRED
from sfumato.training.local import BackboneWithHead, LocalTraining, batches, initial_head, shuffled


def records(count: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, 6, generator=generator), torch.tensor([30, 4, 77])[torch.arange(count) % 3]


def by_hand(module: nn.Module, settings: LocalSGD, inputs, labels) -> dict[str, torch.Tensor]:
    """The weights after local training, momentum and all written out."""
    generator, module = np.random.default_rng(5), copy.deepcopy(module)
    order = batches(len(labels), generator, epochs=settings.epochs, batch_size=settings.batch_size)
    generator.integers(1 << 63)
    targets = torch.tensor([sorted(set(labels.tolist())).index(label) for label in labels.tolist()])
    head = initial_head(len(set(labels.tolist())), 4, generator).requires_grad_()
    weights = [*module.parameters(), head]
    rates = [settings.learning_rate] * (len(weights) - 1) + [settings.learning_rate * settings.head_scale]
    velocities: list[torch.Tensor | None] = [None] * len(weights)
    for step, rows in enumerate(order):
        loss = functional.cross_entropy(module(inputs[rows]) @ head.T, targets[rows])
        gradients = torch.autograd.grad(loss, weights)
        for place, (weight, rate, gradient) in enumerate(zip(weights, rates, gradients, strict=True)):
            heads_turn = step < settings.reconstruction_steps
            if settings.reconstruction_steps and heads_turn != (weight is head):
                continue
            before = velocities[place]
            velocity = gradient if before is None else settings.momentum * before + gradient
            velocities[place] = velocity
            with torch.no_grad():
                weight -= rate * velocity
    return {name: value.detach() for name, value in module.named_parameters()}


@pytest.mark.parametrize("change", [{}, {"momentum": 0.0}, {"reconstruction_steps": 3}, {"reconstruction_steps": 99}])
def test_it_is_sgd_on_backbone_and_fresh_head(backbone, settings, change):
    settings = replace(settings, **change)
    found = LocalTraining(backbone, settings).trained_weights(*records(), np.random.default_rng(5))
    expected = by_hand(backbone, settings, *records())
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6), name
    moved = any((value != found[name]).any() for name, value in backbone.named_parameters())
    assert moved == (settings.reconstruction_steps < 99)


def by_hand_from_prototypes(module, settings, inputs, labels) -> dict[str, torch.Tensor]:
    """The weights after local training whose head begins at its classes' mean directions."""
    generator, module = np.random.default_rng(5), copy.deepcopy(module)
    how = {"epochs": settings.epochs, "batch_size": settings.batch_size, "examples": settings.examples}
    order = batches(len(labels), generator, **how)
    seen = sorted({int(row) for rows in order for row in rows})
    present = sorted({int(labels[row]) for row in seen})
    with torch.no_grad():
        units = {row: module(inputs[[row]])[0] / module(inputs[[row]])[0].norm() for row in seen}
        means = [torch.stack([units[row] for row in seen if labels[row] == one]).mean(0) for one in present]
    head = torch.stack([mean / mean.norm() for mean in means]).requires_grad_()
    weights = [*module.parameters(), head]
    rates = [settings.learning_rate] * (len(weights) - 1) + [settings.learning_rate * settings.head_scale]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for rows in order:
        losses = []
        for row in rows:
            embedding = module(inputs[[int(row)]])[0]
            cosines = [embedding @ one / (embedding.norm() * one.norm()) for one in head]
            powers = torch.stack([torch.exp(cosine / settings.temperature) for cosine in cosines])
            losses.append(-torch.log(powers[present.index(int(labels[row]))] / powers.sum()))
        gradients = torch.autograd.grad(torch.stack(losses).mean(), weights)
        for weight, rate, velocity, gradient in zip(weights, rates, velocities, gradients, strict=True):
            velocity.mul_(settings.momentum).add_(gradient)
            with torch.no_grad():
                weight -= rate * velocity
    return {name: value.detach() for name, value in module.named_parameters()}


@pytest.mark.parametrize("change", [{}, {"examples": 7}, {"temperature": 0.5, "head_scale": 1.0}], ids=str)
def test_a_head_of_prototypes_begins_at_each_class_s_mean_direction(backbone, settings, change):
    settings = replace(settings, **{"first_head": "prototype", "temperature": 0.25, **change})
    backbone, (inputs, labels) = backbone.double(), records()
    found = LocalTraining(backbone, settings).trained_weights(inputs.double(), labels, np.random.default_rng(5))
    expected = by_hand_from_prototypes(backbone, settings, inputs.double(), labels)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-12), name
        assert (value != backbone.state_dict()[name]).any()


def test_records_beyond_the_cap_are_in_no_prototype(backbone, settings):
    """Nor is their class in the head, where none of its records is seen."""
    local = LocalTraining(backbone, replace(settings, first_head="prototype", temperature=0.25, epochs=1, examples=5))
    inputs, labels = records()
    seen = np.random.default_rng(5).permutation(len(labels))[:5]
    others = np.setdiff1d(np.arange(len(labels)), seen)
    update = local.update(inputs, labels, np.random.default_rng(5))
    inputs[others], labels[others] = 100.0, 12345
    again = local.update(inputs, labels, np.random.default_rng(5))
    assert all(value.equal(again[name]) for name, value in update.items())


def test_a_record_has_every_choice(settings):
    for local in (settings, replace(settings, first_head="prototype", temperature=0.25)):
        clients = Clients(local=local, count=3)
        assert set(clients.to_dict()["local"]) == {field.name for field in fields(LocalSGD)}
        assert Clients.from_dict(clients.to_dict()) == clients


def test_an_update_is_start_less_end_of_the_backbone_alone(backbone, settings):
    local = LocalTraining(backbone, settings)
    update = local.update(*records(), np.random.default_rng(5))
    end = local.trained_weights(*records(), np.random.default_rng(5))
    assert list(update) == [name for name, _ in backbone.named_parameters()]
    for name, value in backbone.named_parameters():
        assert update[name].equal(value.detach() - end[name])


def test_labels_are_names_and_no_numbers(backbone, settings):
    """Only which records share a class matters, and the order of classes: there is no slot for a class not present."""
    local, (inputs, labels) = LocalTraining(backbone, settings), records()
    found = local.update(inputs, labels, np.random.default_rng(5))
    again = local.update(inputs, labels * 1000 + 5, np.random.default_rng(5))
    assert all(value.equal(again[name]) for name, value in found.items())


@pytest.mark.parametrize(
    "change",
    [*({"loss": loss} for loss in ("softmax", *PAIRED)), {"first_head": "prototype", "temperature": 0.2}],
    ids=lambda change: next(iter(change.values())),
)
def test_nothing_is_carried_from_client_to_client(backbone, settings, change):
    local = LocalTraining(backbone, replace(settings, **change))
    before = copy.deepcopy(backbone.state_dict())
    alone = local.update(*records(), np.random.default_rng(5))
    local.update(*(value[:7] for value in records(9)), np.random.default_rng(6))
    assert all(value.equal(local.update(*records(), np.random.default_rng(5))[name]) for name, value in alone.items())
    assert all(value.equal(before[name]) for name, value in backbone.state_dict().items()), "the module stays as it was"


def test_a_model_that_counts_and_draws_begins_anew_with_each_client(settings):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(6, 4), 0
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, inputs):
            self.calls += 1
            outputs = functional.dropout(self.linear(inputs), 0.5) + self.calls + self.seen
            self.seen += outputs.detach().mean(0)
            return outputs

    local = LocalTraining(Counting(), settings)
    first = local.update(*records(), np.random.default_rng(5))
    torch.rand(1)
    state = torch.get_rng_state()
    again = local.update(*records(), np.random.default_rng(5))
    assert all(value.equal(again[name]) for name, value in first.items())
    assert torch.get_rng_state().equal(state), "what else draws from torch does not notice"


def test_frozen_parameters_are_in_no_update(backbone, settings):
    backbone[0].requires_grad_(False)
    update = LocalTraining(backbone, settings).update(*records(), np.random.default_rng(5))
    assert list(update) == ["2.weight", "2.bias"]
    backbone.requires_grad_(False)
    with pytest.raises(SfumatoError, match="no parameter of the model is trainable"):
        LocalTraining(backbone, settings)


def test_a_global_head_is_part_of_the_update_at_the_backbone_s_rate(backbone, settings):
    model = BackboneWithHead(backbone, classes=80, width=4, generator=np.random.default_rng(0))
    settings = replace(settings, head="global", epochs=1, batch_size=99)
    inputs, labels = records()
    update = LocalTraining(model, settings).update(inputs, labels, np.random.default_rng(5))
    functional.cross_entropy(model(inputs), labels).backward()
    assert update["head.weight"].shape == (80, 4)
    for name, value in model.named_parameters():
        assert value.grad is not None
        assert torch.allclose(update[name], settings.learning_rate * value.grad, atol=1e-6)


def test_batch_norm_is_refused(settings):
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    with pytest.raises(SfumatoError, match="normalises by the private batch"):
        LocalTraining(module, settings)
    module[1].eval()
    local = LocalTraining(module, settings)
    module.train()
    with pytest.raises(SfumatoError, match="normalises by the private batch"):
        local.update(*records(), np.random.default_rng(5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.0}, "client_rate must be positive"),
        ({"loss": "arcface"}, "client_loss must be one of softmax, binary, triplet, triplet-hard"),
        ({"head": "global", "loss": "binary"}, "client_loss must be one of softmax; got 'binary'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, change, words):
    with pytest.raises(SfumatoError, match=words):
        replace(settings, **change)


@given(
    records=st.integers(0, 30),
    epochs=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    examples=st.none() | st.integers(1, 150),
    buffer=st.none() | st.integers(0, 40),
)
def test_batches_are_full_but_the_last_and_see_what_the_cap_allows(records, epochs, batch_size, examples, buffer):
    found = batches(
        records,
        np.random.default_rng(0),
        epochs=epochs,
        batch_size=batch_size,
        examples=examples,
        shuffle_buffer=buffer,
    )
    sizes = [len(batch) for batch in found]
    assert sum(sizes) == min(records * epochs, examples or records * epochs)
    assert all(size == batch_size for size in sizes[:-1])
    assert all(0 < size <= batch_size for size in sizes)
    stream = np.concatenate([*found, np.empty(0, np.int64)])
    for start in range(0, len(stream), max(1, records)):
        epoch = stream[start : start + records]
        assert len(np.unique(epoch)) == len(epoch), "an epoch sees nothing twice"


@given(records=st.integers(1, 30), buffer=st.integers(1, 30))
def test_a_record_leaves_no_earlier_than_the_buffer_lets_it_in(records, buffer):
    order = shuffled(records, np.random.default_rng(0), buffer)
    assert sorted(order) == list(range(records))
    assert (order < np.arange(records) + buffer).all()


def test_a_buffer_gives_every_record_in_it_the_same_chance():
    """With three records and a buffer of two: 0 or 1 first, each with 1/2; then one of the two that are left."""
    generator = np.random.default_rng(0)
    found = [tuple(shuffled(3, generator, 2).tolist()) for _ in range(4000)]
    counts = [found.count(order) for order in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0)]]
    assert sum(counts) == 4000
    assert stats.chisquare(counts).pvalue > 1e-6


def test_epochs_are_shuffled_anew():
    one, two = batches(20, np.random.default_rng(0), epochs=2, batch_size=20)
    assert (one != two).any()
