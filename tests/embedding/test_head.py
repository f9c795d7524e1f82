"""Central training is SGD over all records with the model's own head."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from sfumato.embedding import LocalTraining, WithHead
from sfumato.embedding.local import batches


def test_it_is_plain_sgd(backbone, settings):
    model = WithHead(backbone, classes=3, width=4, generator=np.random.default_rng(0))
    inputs, labels = torch.randn(20, 6, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3
    local = LocalTraining(model, replace(settings, head="global"))
    found = local.trained(inputs, labels, np.random.default_rng(2))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    for rows in batches(20, np.random.default_rng(2), epochs=settings.epochs, batch_size=settings.batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(plain(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    assert list(found) == [name for name, _ in model.named_parameters()]
    for name, value in plain.named_parameters():
        assert found[name].equal(value.detach())
        assert (found[name] != model.get_parameter(name)).any()
