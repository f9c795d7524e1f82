"""Models and data of existing jobs, in the rounds of a federation."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import sfumato
from sfumato import SfumatoError
from sfumato.models import replace_norms


def loader(*shape):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60, *shape, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(60) % 3), batch_size=20, shuffle=True)


def rounds_of(model, data, directory, **choices):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    choices = {"rounds": 2, "steps": 2, "batch_size": 10, "epsilon": 3.0, "threads": 1, **choices}
    return sfumato.private_rounds(model, optimizer, data, directory=directory, **choices)


def trained(run, weights):
    """The names of what goes out after all rounds; each has moved."""
    after = weights
    for _ in range(run.rounds):
        after = run.train(after)
    assert run.statement.epsilon <= 3
    return [name for name, value in after.items() if not torch.equal(value, weights[name])]


def test_a_lightning_module_and_the_data_set_of_its_loader(tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

        def forward(self, images):
            return self.layers(images)

        def training_step(self, batch, index):
            images, labels = batch
            return functional.cross_entropy(self(images), labels)

        def train_dataloader(self):
            return loader(1, 4, 4)

    model = Classifier()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    assert trained(rounds_of(model, model.train_dataloader().dataset, tmp_path / "run"), weights) == [*weights]


def test_a_network_with_batch_norm_trains_with_group_norm_in_its_place(tmp_path):
    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))

    data = loader(1, 4, 4).dataset
    with pytest.raises(SfumatoError, match=r"is batch norm .*replace_norms\(model, 'group'\)"):
        rounds_of(network(), data, tmp_path / "run")
    server, site = replace_norms(network(), "group"), replace_norms(network(), "group")
    weights = server.state_dict()
    assert trained(rounds_of(site, data, tmp_path / "run"), weights) == [*weights]


def test_a_loader_is_refused_for_its_data_set(tmp_path):
    with pytest.raises(SfumatoError, match=r"got DataLoader; give its \.dataset"):
        rounds_of(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), loader(1, 4, 4), tmp_path / "run")
