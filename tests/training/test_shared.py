"""A model that uses a layer more than once is trained like any other: from the data to what `verify` says."""

import torch
from torch import nn

from sfumato import train, verify


class Layers(nn.Module):
    """A transformer over the rows of a picture whose layers are one (ALBERT)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 10)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, images):
        rows = self.first(images[:, 0])
        for _ in range(3):
            rows = self.layer(rows)
        return self.last(rows.mean(1))


def test_a_model_that_shares_a_layer_is_trained_and_verified(tmp_path):
    torch.manual_seed(0)
    model = Layers()
    run = train(model, "digits", epsilon=3.0, batch_size=128, steps=3, views=1, directory=tmp_path / "run")
    released = dict(run.load(Layers()).module.named_parameters())
    for name, value in model.named_parameters():
        assert not torch.equal(released[name], value), name
    assert verify(tmp_path / "run").holds
