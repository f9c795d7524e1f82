"""Models whose classifier alone is trained: the part before it is a fixed function, and need be computed only once."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from sfumato.models.pretrained import classifier_names


class Trunk(nn.Module):
    """What a model computes of an image before its classifier: images (N, C, H, W) to features (N, D).

    Args:
        model: the whole model, which stays where it is.
        head: the classifier's name in it.
    """

    def __init__(self, model: nn.Module, head: str):
        super().__init__()
        self.model, self.head = model, head

    @property
    def width(self) -> int:
        """D, the classifier's inputs."""
        head = self.model.get_submodule(self.head)
        assert isinstance(head, nn.Linear)
        return head.in_features

    def forward(self, images: Tensor) -> Tensor:
        """What the classifier is given; `LookupError` unless it is called once, with one tensor."""
        taken: list[Tensor] = []

        def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            taken.extend(inputs)

        hook = self.model.get_submodule(self.head).register_forward_pre_hook(take)
        try:
            self.model(images)
        finally:
            hook.remove()
        if len(taken) != 1:
            raise LookupError(f"{self.head} got {len(taken)} tensors")
        return taken[0]


def trunk_of(model: nn.Module, shape: tuple[int, int, int]) -> Trunk | None:
    """The model's trunk where only its classifier is trained and the model is classifier(trunk(images)), else None.

    Found by trying, with two made-up classifiers: what comes before must not feel them, and nothing may come after.

    Args:
        model: any module for images of `shape` (C, H, W).
    """
    names = classifier_names(model)
    if len(names) != 1 or not isinstance(model.get_submodule(names[0]), nn.Linear):
        return None
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained or not all(name.startswith(f"{names[0]}.") for name in trained):
        return None
    tried = Trunk(copy.deepcopy(model).eval(), names[0])
    head = tried.model.get_submodule(names[0])
    images = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2], device=next(head.parameters()).device)
    images = images.reshape(2, *shape)
    seen: list[Tensor] = []
    with torch.no_grad():
        for pace in (1.0, 2.5):
            for parameter in head.parameters():
                waves = torch.linspace(pace, pace * parameter.numel(), parameter.numel(), device=parameter.device)
                parameter.copy_(waves.sin().reshape(parameter.shape))
            try:
                features = tried(images)
                logits = tried.model(images)
            except LookupError:
                return None
            if features.shape != (2, tried.width) or not torch.equal(head(features), logits):
                return None
            seen.append(features)
    return Trunk(model, names[0]) if torch.equal(*seen) else None
