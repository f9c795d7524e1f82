"""Models of which only the classifier is trained. The part before it is fixed and computed only once."""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor, nn

from sfumato._devices import fork_rng
from sfumato.models.weights.pretrained import classifier_names


class Trunk(nn.Module):
    """The part of a model before its classifier: images (N, C, H, W) to features (N, D).

    Args:
        model: the complete model. It is not copied.
        head: name of the classifier in the model.
    """

    def __init__(self, model: nn.Module, head: str):
        super().__init__()
        self.model, self.head = model, head

    @property
    def width(self) -> int:
        """D, the number of inputs of the classifier."""
        head = self.model.get_submodule(self.head)
        assert isinstance(head, nn.Linear)
        return head.in_features

    @property
    def preferred_batch_size(self) -> int | None:
        """Preferred number of images per forward pass; None if the model does not state one."""
        return getattr(self.model, "images_at_once", None)

    @functools.cached_property
    def mirror_order(self) -> Tensor | None:
        """For each feature of the mirror image, the equal feature of the image, int64 (D,); None if unknown."""
        own_order = getattr(self.model, "mirror_order", None)
        return None if own_order is None else own_order()

    def forward(self, images: Tensor) -> Tensor:
        """The input of the classifier. `LookupError` unless the classifier is called once, with one tensor."""
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
    """The model's trunk if only its classifier is trained and the model is classifier(trunk(images)), else None.

    This is tested with synthetic classifiers and images, small and large, in the model's own modes and in evaluation
    mode. The features must not depend on the classifier, and nothing may follow the classifier or be random.

    Args:
        model: any module for images of `shape` (C, H, W).
    """
    names = classifier_names(model)
    if len(names) != 1 or not isinstance(model.get_submodule(names[0]), nn.Linear):
        return None
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained or not all(name.startswith(f"{names[0]}.") for name in trained):
        return None
    trials = (_is_trunk(model, names[0], shape, mode=mode, scale=scale) for mode in (True, False) for scale in _SCALES)
    return Trunk(model, names[0]) if all(trials) else None


_SCALES = (1.0, 1e3)


def _is_trunk(model: nn.Module, name: str, shape: tuple[int, int, int], *, mode: bool, scale: float) -> bool:
    """Whether a copy is classifier(trunk(images)), with two classifiers and images of this scale.

    Args:
        mode: whether modules keep their modes; otherwise all are in evaluation mode.
    """
    copied = copy.deepcopy(model)
    tried = Trunk(copied if mode else copied.eval(), name)
    head = tried.model.get_submodule(name)
    device = next(head.parameters()).device
    images = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2], device=device).mul(scale).reshape(2, *shape)
    seen: list[Tensor] = []
    with torch.no_grad(), fork_rng(device):
        for pace in (1.0, 2.5):
            for parameter in head.parameters():
                waves = torch.linspace(pace, pace * parameter.numel(), parameter.numel(), device=device)
                parameter.copy_(waves.sin().mul(scale).reshape(parameter.shape))
            try:
                features = tried(images)
                logits = tried.model(images)
            except LookupError:
                return False
            if features.shape != (2, tried.width) or not torch.equal(head(features), logits):
                return False
            seen.append(features)
    return torch.equal(*seen)
