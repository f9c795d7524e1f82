"""Wrapped models, and models that return objects: refused by name, or unwrapped."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError
from sfumato.gradients.checks.external_models import loss_of_model

INPUTS, TARGETS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


def wrapper(name: str, library: str) -> nn.Module:
    kind = type(name, (nn.Sequential,), {"__module__": library})
    return kind(nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.DataParallel(nn.Linear(4, 3)), r"the model is wrapped in DataParallel.*give model\.module"),
        (
            wrapper("DistributedDataParallel", "torch.nn.parallel.distributed"),
            r"in DistributedDataParallel.*model\.mod",
        ),
        (wrapper("FSDPModule", "torch.distributed.fsdp"), "before it was sharded"),
        (wrapper("GradSampleModule", "opacus.grad_sample"), r"Opacus's wrapper: give model\.to_standard_module"),
        (nn.Sequential(nn.DataParallel(nn.Linear(4, 3))), "module '0' of the model is wrapped in DataParallel"),
    ],
)
def test_wrappers_are_named_with_how_to_take_them_off(model, words):
    with pytest.raises(SfumatoError, match=words):
        ClippedGradient(model, functional.cross_entropy)


def test_a_class_of_ones_own_may_have_such_a_name():
    ClippedGradient(wrapper("DataParallel", "mine"), functional.cross_entropy)


@dataclass
class Output:
    """An output object like those of transformers."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Classifier(nn.Linear):
    """A model that computes its own loss if it is given labels."""

    over_the_batch = False

    def forward(self, inputs, labels=None):
        logits = super().forward(inputs)
        if labels is None:
            return Output(logits)
        loss = (logits - logits.mean(0)).square().mean() if self.over_the_batch else None
        return Output(logits, functional.cross_entropy(logits, labels) if loss is None else loss)


Classifier.__module__ = "transformers.models.none"


class Around(nn.Module):
    """A model wrapped like those of peft."""

    def __init__(self):
        super().__init__()
        self.inside = Classifier(4, 3)

    def forward(self, *inputs, **named):
        return self.inside(*inputs, **named)


@pytest.mark.parametrize("kind", [lambda: Classifier(4, 3), Around])
def test_logits_and_losses_of_each_kind_give_the_plain_gradients(kind):
    model, plain = kind(), nn.Linear(4, 3)
    plain.load_state_dict({name[-len(name.rpartition(".")[2]) :]: value for name, value in model.state_dict().items()})
    expected = ClippedGradient(plain, functional.cross_entropy)(INPUTS, TARGETS)
    of_logits = ClippedGradient(model, functional.cross_entropy)
    of_logits.self_check((4,))
    named = {"inputs": INPUTS, "labels": TARGETS}
    own = ClippedGradient(model, loss_of_model, template=(named, TARGETS))
    own.self_check()
    others = (
        nn.CrossEntropyLoss(),
        partial(functional.cross_entropy, label_smoothing=0.0),
        lambda outputs, targets: functional.cross_entropy(outputs.logits, targets),  # which gets all of the output
    )
    of_others = [ClippedGradient(model, loss)(INPUTS, TARGETS) for loss in others]
    for found in (of_logits(INPUTS, TARGETS), own(named, TARGETS), *of_others):
        torch.testing.assert_close(found.norms, expected.norms)
        for one, other in zip(found.gradients.values(), expected.gradients.values(), strict=True):
            torch.testing.assert_close(one, other)


def test_a_models_own_loss_over_the_batch_is_constant_on_one_example():
    model = Classifier(4, 3)
    model.over_the_batch = True
    named = {"inputs": INPUTS, "labels": TARGETS}
    with pytest.raises(SfumatoError, match="constant on one example"):
        ClippedGradient(model, loss_of_model, template=(named, TARGETS)).self_check()


def test_an_output_without_a_loss_is_refused():
    with pytest.raises(SfumatoError, match="its output, of type Output, has no loss"):
        ClippedGradient(Classifier(4, 3), loss_of_model).self_check((4,))


def test_class_weights_are_refused_for_such_models_too():
    with pytest.raises(SfumatoError, match="divides out again"):
        ClippedGradient(Classifier(4, 3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 50.0])))
