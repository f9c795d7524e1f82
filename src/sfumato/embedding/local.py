"""The local training of one virtual client: what it makes of the weights, from its own records alone.

DP-FedEmb (Xu et al. 2022, arXiv 2211.10844, algorithm 2): a fresh random head over the classes present goes on the
backbone, both are trained by SGD with momentum, the head faster, and what the client hands on is the backbone's change.
A head may begin at its classes' prototypes instead (`prototypes`).

As in prototypical networks (Snell et al. 2017, arXiv 1703.05175, equation 1), with cosines in place of distances. A
head that begins at random pulls each class to a place of its own in each client, so that much of a client's update is
of that place. At its prototypes a head says from the first step on what separates the classes that are there.

A client sees its records shuffled, repeated, cut off, in batches, in the same order of operations as the authors of
DP-FedEmb (google-research/federated, `tff_input.py`): so batches run on from one epoch into the next, the cap counts
what is seen and not what there is, and the last batch may be smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, not_negative, one_of, positive, positive_integer
from sfumato._devices import own_randomness
from sfumato.gradients.checks.isolation import refuse_mixing_layers
from sfumato.models.losses import PAIRED
from sfumato.training.descent import trained_parameters


def batches(
    records: int,
    generator: np.random.Generator,
    *,
    epochs: int,
    batch_size: int,
    examples: int | None = None,
    shuffle_buffer: int | None = None,
) -> list[np.ndarray]:
    """The batches of a client's local training, as positions among its records.

    Args:
        records: how many the client has.
        generator: the client's own.
        epochs: how often each record is seen where nothing is cut off.
        batch_size: of all batches but the last.
        examples: how many are seen at most over all epochs; None for all.
        shuffle_buffer: as in `shuffled`.

    >>> [len(batch) for batch in batches(5, np.random.default_rng(0), epochs=2, batch_size=4)]
    [4, 4, 2]
    """
    wanted = records * epochs if examples is None else min(examples, records * epochs)
    seen = [shuffled(records, generator, shuffle_buffer) for _ in range(-(-wanted // max(1, records)))]
    stream = np.concatenate([*seen, np.empty(0, np.int64)])[:wanted]
    return [stream[start : start + batch_size] for start in range(0, wanted, batch_size)]


def shuffled(records: int, generator: np.random.Generator, buffer: int | None) -> np.ndarray:
    """The positions 0 to `records` - 1, int64, in an order as `tf.data.Dataset.shuffle` gives it.

    Args:
        buffer: so many wait at a time, and each next one is any of them with equal probability; the next in line takes
            its place. None, or at least `records`, for a uniform order; 0 or 1 for none.

    >>> shuffled(4, np.random.default_rng(0), 0).tolist()
    [0, 1, 2, 3]
    """
    if buffer is None or buffer >= records:
        return generator.permutation(records)
    size = max(1, buffer)
    waiting, order = np.arange(size), np.empty(records, np.int64)
    for place, slot in enumerate(generator.integers(size, size=records - size)):
        order[place] = waiting[slot]
        waiting[slot] = place + size
    order[records - size :] = generator.permutation(waiting)
    return order


def prototypes(embeddings: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The mean direction of each class: of its embeddings, each brought to length 1, and itself of length 1.

    Args:
        embeddings: (N, D).
        targets: (N,) int64 from 0 to `classes` - 1.
        classes: how many there are.

    Returns:
        (classes, D); zeros for a class without records.

    >>> import torch
    >>> prototypes(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    unit = functional.normalize(embeddings)
    return functional.normalize(unit.new_zeros(classes, unit.shape[1]).index_add(0, targets, unit))


def cosine_logits(embeddings: Tensor, head: Tensor, temperature: float) -> Tensor:
    """The cosines of embeddings (N, D) and a head's rows (K, D), over the temperature: (N, K).

    >>> import torch
    >>> cosine_logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 0.5).tolist()
    [[2.0, 0.0]]
    """
    return functional.normalize(embeddings) @ functional.normalize(head).T / temperature


LOSSES = ("softmax", *PAIRED)
HEADS = ("local", "global")
FIRST_HEADS = ("random", "prototype")
TEMPERATURE = 0.125
"""Of cosines, for a head of prototypes: of 1/32, 1/16, 1/8 and 1/4 on Omniglot (benchmarks/accuracy/omniglot.py)."""


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """How a virtual client trains.

    Args:
        learning_rate: of the backbone.
        momentum: of backbone and head.
        head_scale: the local head's learning rate, in units of the backbone's.
        epochs: how often each record is seen, where no cap cuts that off.
        batch_size: records of a step; the last one may have fewer.
        examples: how many records a client sees at most, over all epochs together; None for all.
        shuffle_buffer: records that wait to be drawn from, as in `shuffled`; None for a uniform order.
        loss: "softmax"; or of the batch's embeddings by themselves, without a head: "binary" (pairs), "triplet" (all of
            a batch) or "triplet-hard".
        head: "local" for a fresh one in each client, over the classes present, which stays there (DP-FedEmb); "global"
            for one over declared classes that belongs to the model, and so to what is summed (DP-FedAvg).
        reconstruction_steps: so many steps first train the local head alone, and the rest the backbone alone. 0: all
            steps train both.
        first_head: what a local head begins at: "random" (`fresh_head`), or the "prototype" of each class that the
            client sees, by the weights that it begins with.
        temperature: logits are cosines over it; None for logits as they are, products of embedding and head.
    """

    learning_rate: float
    momentum: float = 0.9
    head_scale: float = 100.0
    epochs: int = 1
    batch_size: int = 32
    examples: int | None = None
    shuffle_buffer: int | None = None
    loss: str = "softmax"
    head: str = "local"
    reconstruction_steps: int = 0
    first_head: str = "random"
    temperature: float | None = None

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        positive("head_scale", self.head_scale)
        if not_negative("momentum", self.momentum) >= 1:
            raise SfumatoError(f"momentum must lie below 1, got {self.momentum}", "give 0.9, or 0 for none")
        positive_integer("epochs", self.epochs)
        positive_integer("batch_size", self.batch_size)
        if self.examples is not None:
            positive_integer("examples", self.examples)
        if self.shuffle_buffer is not None:
            not_negative("shuffle_buffer", self.shuffle_buffer)
        one_of("loss", self.loss, LOSSES)
        one_of("head", self.head, HEADS)
        not_negative("reconstruction_steps", self.reconstruction_steps)
        if self.head == "global" and self.loss != "softmax":
            raise SfumatoError(
                f"client_loss {self.loss!r} has no head, and head is 'global'", "take the loss softmax, or a local head"
            )
        if self.reconstruction_steps and not self.has_local_head:
            raise SfumatoError(
                f"reconstruction_steps is {self.reconstruction_steps}, and there is no local head to train first",
                "give 0, or take a local head with the loss softmax",
            )
        one_of("first_head", self.first_head, FIRST_HEADS)
        if self.temperature is not None:
            positive("temperature", self.temperature)
        self._check_first_head()

    def _check_first_head(self) -> None:
        """Refuse prototypes without cosines, and either where a client has no head of its own."""
        asked = {
            "first_head": None if self.first_head == "random" else self.first_head,
            "temperature": self.temperature,
        }
        for name, value in asked.items():
            if value is not None and not self.has_local_head:
                raise SfumatoError(
                    f"{name} is {value!r}, and clients have no head of their own",
                    f"leave {name} out, or take a local head with the loss softmax",
                )
        if self.first_head == "prototype" and self.temperature is None:
            raise SfumatoError(
                "first_head is 'prototype', whose rows are directions, and there is no temperature",
                f"give a temperature such as {TEMPERATURE:g}",
            )

    @property
    def has_local_head(self) -> bool:
        """Whether each client has a head of its own."""
        return self.head == "local" and self.loss == "softmax"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class LocalTraining:
    """Local training from a module's present weights, of which a client's update is the outcome.

    Clients train one after the other. Several at once, by `torch.func.vmap`, are no faster on a CPU: 1.0 to 1.4 times
    as long for 4 or 8 clients of LeNet with batches of 32, whose convolutions become grouped
    (benchmarks/speed/fedemb.py).

    Args:
        module: gives embeddings (N, D) from inputs (N, ...), or logits where the head is global. Nothing here
            changes it; its weights may change between calls. Parameters with ``requires_grad=False`` stay as they are
            and are no part of an update.
        settings: how.

    **Guarantee.** An update is a function of the module's weights and buffers, the client's own records, and the
    client's own generator. Nothing is carried from one client to the next: each trains a copy of the module, and
    momentum, head and the model's own draws begin anew. Of the local head nothing is in an update. Layers that
    normalise by a batch are refused. Assumed: the module keeps nothing outside of itself.
    """

    def __init__(self, module: nn.Module, settings: LocalSGD):
        refuse_mixing_layers(module)
        self.module, self.settings = module, settings
        if not self.start():
            raise SfumatoError("no parameter of the model is trained", "set requires_grad of some")

    def start(self) -> dict[str, Tensor]:
        """The weights that training begins with: of the parameters that are trained, by name."""
        return trained_parameters(self.module)

    def update(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """By how much the client wants the weights to fall: those at the start less those at the end.

        That is the sign of a gradient, along which an optimizer descends.

        Args:
            inputs: (n, ...) as the module takes them, all records of the client.
            labels: (n,) int64; with a global head positions of its classes, otherwise any numbers.
            generator: for this client in this round alone.

        Returns:
            {name: tensor} over the trained parameters; not finite where training has diverged.
        """
        end = self.trained(inputs, labels, generator)
        return {name: value - end[name] for name, value in self.start().items()}

    def trained(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """The weights after local training; arguments as for `update`."""
        refuse_mixing_layers(self.module)
        settings = self.settings
        order = batches(
            len(labels),
            generator,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            examples=settings.examples,
            shuffle_buffer=settings.shuffle_buffer,
        )
        own = copy.deepcopy(self.module)
        with own_randomness(inputs.device), torch.enable_grad():
            torch.manual_seed(int(generator.integers(1 << 63)))
            if settings.has_local_head:
                self._with_local_head(own, inputs, labels, order, generator)
            else:
                self._without(own, inputs, labels, order)
        return trained_parameters(own)

    def _with_local_head(
        self, own: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray], generator: np.random.Generator
    ) -> None:
        settings = self.settings
        targets, head = self._first_head(own, inputs, labels, order, generator)
        of_backbone = self._optimizer(own.parameters())
        of_head = self._optimizer([head], settings.head_scale)
        later = [of_backbone] if settings.reconstruction_steps else [of_backbone, of_head]
        for step, rows in enumerate(map(torch.from_numpy, order)):
            head_alone = step < settings.reconstruction_steps
            with torch.set_grad_enabled(not head_alone):
                embeddings = own(inputs[rows])
            plain, temperature = embeddings @ head.T, settings.temperature
            logits = plain if temperature is None else cosine_logits(embeddings, head, temperature)
            functional.cross_entropy(logits, targets[rows]).backward()
            for optimizer in [of_head] if head_alone else later:
                optimizer.step()
            of_backbone.zero_grad()
            of_head.zero_grad()

    def _first_head(
        self, own: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray], generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Each record's row of the client's head (n,), and the head (K, D) that training begins with."""
        if self.settings.first_head == "random":
            classes, targets = labels.unique(return_inverse=True)
            with torch.no_grad():
                some = own(inputs[:1])
            return targets, fresh_head(len(classes), some.shape[1], generator).to(some).requires_grad_()
        seen = torch.from_numpy(np.unique(np.concatenate(order)))  # of what the cap leaves out nothing is in a head
        classes, rows = labels[seen].unique(return_inverse=True)
        with torch.no_grad():
            found = torch.cat([own(inputs[some]) for some in seen.split(self.settings.batch_size)])
        targets = torch.full_like(labels, -1)
        targets[seen] = rows
        return targets, prototypes(found, rows, len(classes)).requires_grad_()

    def _without(self, own: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray]) -> None:
        optimizer = self._optimizer(own.parameters())
        loss = functional.cross_entropy if self.settings.head == "global" else PAIRED[self.settings.loss]
        for rows in map(torch.from_numpy, order):
            loss(own(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()

    def _optimizer(self, parameters: Iterable[Tensor], scale: float = 1.0) -> torch.optim.SGD:
        trained = [value for value in parameters if value.requires_grad]
        return torch.optim.SGD(trained, lr=scale * self.settings.learning_rate, momentum=self.settings.momentum)


def fresh_head(classes: int, width: int, generator: np.random.Generator) -> Tensor:
    """A head's first weights (classes, D) float32, without a bias: uniform by Glorot and Bengio 2010, as in Keras."""
    bound = (6 / (classes + width)) ** 0.5
    return torch.from_numpy(generator.uniform(-bound, bound, (classes, width)).astype(np.float32))
