"""The local training of one virtual client, which depends on its own records alone.

DP-FedEmb (Xu et al. 2022, arXiv 2211.10844, algorithm 2): the backbone gets a fresh random head over the classes
present, both are trained by SGD with momentum, the head at a larger rate, and the client's update is the change of the
backbone. Alternatively the head starts at its classes' prototypes (`prototypes`), as in prototypical networks (Snell et
al. 2017, arXiv 1703.05175, equation 1), with cosines in place of distances. A random head pulls each class to a
different direction in each client, and much of a client's update is spent on that. A head of prototypes separates the
classes present from the first step on.

A client's records are shuffled, repeated, truncated and batched in the same order as in the code of the authors of
DP-FedEmb (google-research/federated, `tff_input.py`): batches run across epochs, the cap counts repeated records, and
the last batch may be smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, positive_integer
from sfumato._devices import fork_rng
from sfumato.experiment.client_choices import LocalSGD
from sfumato.gradients.checks.isolation import refuse_mixing_layers
from sfumato.models.losses import PAIRED
from sfumato.training.weights import trained_parameters


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
        records: the number of the client's records.
        generator: the client's own generator.
        epochs: how often each record is seen if `examples` does not end training earlier.
        batch_size: the size of all batches but the last.
        examples: the most records seen over all epochs; None for no limit.
        shuffle_buffer: as in `shuffled`.

    >>> [len(batch) for batch in batches(5, np.random.default_rng(0), epochs=2, batch_size=4)]
    [4, 4, 2]
    """
    wanted = records * epochs if examples is None else min(examples, records * epochs)
    seen = [shuffled(records, generator, shuffle_buffer) for _ in range(-(-wanted // max(1, records)))]
    stream = np.concatenate([*seen, np.empty(0, np.int64)])[:wanted]
    return [stream[start : start + batch_size] for start in range(0, wanted, batch_size)]


def shuffled(records: int, generator: np.random.Generator, buffer: int | None) -> np.ndarray:
    """The positions 0 to `records` - 1, int64, shuffled as by `tf.data.Dataset.shuffle`.

    Args:
        buffer: the size of the buffer. Each next position is drawn uniformly from the buffer, and replaced in it by the
            next one in line. None, or at least `records`: a uniform order. 0 or 1: no shuffling.

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
    """The mean direction of each class: the mean of its normalised embeddings, normalised to length 1.

    Args:
        embeddings: (N, D).
        targets: (N,) int64 from 0 to `classes` - 1.
        classes: the number of classes.

    Returns:
        (classes, D); zeros for a class without records.

    >>> import torch
    >>> prototypes(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    unit = functional.normalize(embeddings)
    return functional.normalize(unit.new_zeros(classes, unit.shape[1]).index_add(0, targets, unit))


def cosine_logits(embeddings: Tensor, head: Tensor, temperature: float) -> Tensor:
    """The cosines of embeddings (N, D) and a head's rows (K, D), divided by the temperature: (N, K).

    >>> import torch
    >>> cosine_logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 0.5).tolist()
    [[2.0, 0.0]]
    """
    return functional.normalize(embeddings) @ functional.normalize(head).T / temperature


class LocalTraining:
    """Local training from a module's current weights. Its result is a client's update.

    Clients train one after the other. Training several at once with `torch.func.vmap` is not faster on a CPU: it takes
    1.0 to 1.4 times as long for 4 or 8 clients of LeNet with batches of 32, because convolutions become grouped
    (benchmarks/speed/fedemb.py).

    Args:
        module: maps inputs (N, ...) to embeddings (N, D), or to logits if the head is global. It is not changed here;
            its weights may change between calls. Parameters with ``requires_grad=False`` are not trained and not part
            of an update.
        settings: the settings of the training.

    **Guarantee.** An update is a function of the module's weights and buffers, the client's own records, and the
    client's own generator. No state is carried from one client to the next: each trains a copy of the module, with
    fresh momentum, a fresh head, and fresh random numbers for the model. The local head is not part of an update.
    Layers that normalise over a batch are refused. Assumption: the module keeps no state outside of itself.
    """

    def __init__(self, module: nn.Module, settings: LocalSGD):
        refuse_mixing_layers(module)
        self.module, self.settings = module, settings
        if not self.start():
            raise SfumatoError("no parameter of the model is trainable", "set requires_grad=True for some")

    def start(self) -> dict[str, Tensor]:
        """The initial weights of the trained parameters, by name."""
        return trained_parameters(self.module)

    def update(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """The client's update: the weights at the start minus those at the end.

        It has the sign of a gradient, so that an optimizer descends along it.

        Args:
            inputs: (n, ...), the module's inputs for all records of the client.
            labels: (n,) int64. With a global head, the indices of its classes; otherwise any numbers.
            generator: a generator for this client in this round alone.

        Returns:
            {name: tensor} over the trained parameters; not finite if training has diverged.
        """
        end = self.trained_weights(inputs, labels, generator)
        return {name: value - end[name] for name, value in self.start().items()}

    def trained_weights(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> dict[str, Tensor]:
        """The weights after local training. The arguments are those of `update`."""
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
        model = copy.deepcopy(self.module)
        with fork_rng(inputs.device), torch.enable_grad():
            torch.manual_seed(int(generator.integers(1 << 63)))
            if settings.has_local_head:
                self._with_local_head(model, inputs, labels, order, generator)
            else:
                self._train_plain(model, inputs, labels, order)
        return trained_parameters(model)

    def _with_local_head(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray], generator: np.random.Generator
    ) -> None:
        settings = self.settings
        targets, head = self._first_head(model, inputs, labels, order, generator)
        backbone_optimizer = self._optimizer(model.parameters())
        head_optimizer = self._optimizer([head], settings.head_scale)
        later = [backbone_optimizer] if settings.reconstruction_steps else [backbone_optimizer, head_optimizer]
        for step, rows in enumerate(map(torch.from_numpy, order)):
            head_alone = step < settings.reconstruction_steps
            with torch.set_grad_enabled(not head_alone):
                embeddings = model(inputs[rows])
            plain, temperature = embeddings @ head.T, settings.temperature
            logits = plain if temperature is None else cosine_logits(embeddings, head, temperature)
            functional.cross_entropy(logits, targets[rows]).backward()
            for optimizer in [head_optimizer] if head_alone else later:
                optimizer.step()
            backbone_optimizer.zero_grad()
            head_optimizer.zero_grad()

    def _first_head(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray], generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """The row of the client's head for each record, (n,), and the initial head (K, D)."""
        if self.settings.first_head == "random":
            classes, targets = labels.unique(return_inverse=True)
            with torch.no_grad():
                first = model(inputs[:1])
            return targets, initial_head(len(classes), first.shape[1], generator).to(first).requires_grad_()
        seen = torch.from_numpy(np.unique(np.concatenate(order)))  # records beyond the cap must not enter the head
        classes, rows = labels[seen].unique(return_inverse=True)
        with torch.no_grad():
            embeddings = torch.cat([model(inputs[batch]) for batch in seen.split(self.settings.batch_size)])
        targets = torch.full_like(labels, -1)
        targets[seen] = rows
        return targets, prototypes(embeddings, rows, len(classes)).requires_grad_()

    def _train_plain(self, model: nn.Module, inputs: Tensor, labels: Tensor, order: list[np.ndarray]) -> None:
        optimizer = self._optimizer(model.parameters())
        loss = functional.cross_entropy if self.settings.head == "global" else PAIRED[self.settings.loss]
        for rows in map(torch.from_numpy, order):
            loss(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()

    def _optimizer(self, parameters: Iterable[Tensor], scale: float = 1.0) -> torch.optim.SGD:
        trained = [value for value in parameters if value.requires_grad]
        return torch.optim.SGD(trained, lr=scale * self.settings.learning_rate, momentum=self.settings.momentum)


def initial_head(classes: int, width: int, generator: np.random.Generator) -> Tensor:
    """A head's initial weights (classes, D) float32, without bias: Glorot uniform (2010), as in Keras."""
    bound = (6 / (classes + width)) ** 0.5
    return torch.from_numpy(generator.uniform(-bound, bound, (classes, width)).astype(np.float32))


class BackboneWithHead(nn.Module):
    """A backbone with one head over all classes: inputs (N, ...) to logits (N, classes).

    Args:
        backbone: maps inputs to embeddings (N, D).
        classes: the declared number of classes, whether or not they have records.
        width: D.
        generator: draws the head's initial weights, which are public.
    """

    def __init__(self, backbone: nn.Module, *, classes: int, width: int, generator: np.random.Generator):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(positive_integer(width=width), positive_integer(classes=classes), bias=False)
        with torch.no_grad():
            self.head.weight.copy_(initial_head(classes, width, generator))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs to logits."""
        return self.head(self.backbone(inputs))
