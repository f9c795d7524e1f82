"""Models whose classifier alone is trained: the part before it is a fixed function, and need be computed only once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.models.pretrained import classifier_names


@dataclass(frozen=True, kw_only=True, eq=False)
class Trunk:
    """What a model computes of an image before its classifier: images (N, C, H, W) to features (N, D).

    **Guarantee.** Where nothing but the classifier is trained, an image's features are a function of that image and of
    public constants alone: the model is in evaluation mode meanwhile, so nothing passes between images. The per-example
    gradients of the classifier are then those of the whole model.

    Args:
        model: the whole model, which stays where it is.
        head: the classifier's name in it.
        width: D.
    """

    model: nn.Module
    head: str
    width: int

    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, D) without gradient."""
        taken: list[Tensor] = []
        modes = [(module, module.training) for module in self.model.modules()]

        def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            taken.append(inputs[0])

        hook = self.model.get_submodule(self.head).register_forward_pre_hook(take)
        try:
            with torch.no_grad():
                self.model.eval()(images)
        finally:
            hook.remove()
            for module, training in modes:
                module.training = training
        return taken[0]


def trunk_of(model: nn.Module, shape: tuple[int, int, int]) -> Trunk | None:
    """The model's trunk where only its classifier is trained and the model is classifier(trunk(images)), else None.

    Args:
        model: any module for images of `shape` (C, H, W).
    """
    names = classifier_names(model)
    if len(names) != 1:
        return None
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    head = model.get_submodule(names[0])
    if not trained or not all(name.startswith(f"{names[0]}.") for name in trained) or not isinstance(head, nn.Linear):
        return None
    trunk = Trunk(model=model, head=names[0], width=head.in_features)
    device = head.weight.device
    images = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2], device=device).reshape(2, *shape)
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            features, logits = trunk(images), model.eval()(images)
            same = features.shape == (2, trunk.width) and torch.equal(head(features), logits)
    finally:
        for module, training in modes:
            module.training = training
    return trunk if same else None
