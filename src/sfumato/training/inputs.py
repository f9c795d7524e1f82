"""Inputs of a step: the participants' views, or their features under the model's frozen trunk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _devices
from sfumato.data import CachedRecords, Part, Preparation, Source, Tokens, Transform, ViewDraws, Views
from sfumato.data.source import DeviceRecords, fits_on_device
from sfumato.gradients import per_example_outputs, unchanged_outputs
from sfumato.models import Trunk, evaluation_mode
from sfumato.models.losses import class_weights
from sfumato.observers.progress import NoProgress, Progress
from sfumato.randomness import RunKey
from sfumato.training import launch
from sfumato.training.workers import ALONE, Workers

if TYPE_CHECKING:
    from sfumato.training.job import PrivateJob, SourceJob

BATCH = 128
"""Images per batch when computing features: larger batches do not fit into a CPU's caches."""
DEVICE_SHARE = 0.4
"""Largest share of an accelerator's free memory for the features of a cache."""
CPU_KEPT = 1 << 30
"""Largest number of bytes of a cache's features kept in memory: reading single rows from a file is slow."""


def head_on_features(model: nn.Module, head: str) -> nn.Module:
    """The classifier of a model with a frozen trunk: features (N, D) to logits (N, classes).

    Its parameters keep their names in the model.

    Args:
        model: the whole model.
        head: the classifier's name in it, such as `head` or `head.fc`.
    """
    inside = model.get_submodule(head)
    for name in reversed(head.split(".")):
        inside = nn.Sequential(OrderedDict({name: inside}))
    return inside


# The arguments of `ClippedGradient`: inputs, targets, keys, weights.
MicroBatch = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def pad_micro_batch(
    inputs: Tensor, targets: Tensor, keys: Tensor | None, weights: Tensor | None, *, size: int
) -> MicroBatch:
    """Pads a micro-batch of fewer than `size` examples with weight 0 to the next multiple of size / 8.

    So the last micro-batches of all steps have only eight shapes, each of which can be recorded as a CUDA graph.
    """
    present = len(targets)
    each = max(1, size // 8)
    missing = -(-present // each) * each - present
    if present == size or not missing:
        return inputs, targets, keys, weights
    weights = torch.ones(present, dtype=torch.bool, device=targets.device) if weights is None else weights

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])

    return longer(inputs), longer(targets), None if keys is None else longer(keys), longer(weights)


class Inputs:
    """The training records as the model's inputs, in micro-batches.

    A trunk's features are computed once for each image and, where views are mirrored, once for its mirror image. If
    mirroring only permutes the trunk's features (`Trunk.mirror_order`), they are permuted on demand, which halves the
    memory. A cache's features are kept in memory where they are few, or on an accelerator where they fit; otherwise
    they are read from disk, one micro-batch ahead. Images are kept on an accelerator as bytes where they fit
    (`DeviceRecords`), so that a step only transfers row numbers and the views' shifts.

    **Guarantee.** Each record's input is a function of that record, of public constants and of random draws that do not
    depend on the data. Where the plan's participation has a `padded_size`, each step has the same number of
    micro-batches of the same shape, whoever takes part: they are filled up with zeros of weight 0. Padding takes the
    same time as records: as many records are read, drawn for and prepared, and then replaced by zeros. Where class
    shares are declared, a record's weight is a function of its own label and of these shares (`class_weights`), and at
    most 1.
    """

    def __init__(self, job: PrivateJob, progress: Progress | None = None):
        self._job = job
        self._features = self._mirrored = self._class_weights = self._held = None
        prevalence = job.settings.objective.class_prevalence
        if prevalence is not None and not job.source.multilabel:  # with several labels the loss applies the weights
            self._class_weights = torch.tensor(class_weights(prevalence, job.source.classes), device=job.device)
        if job.source.cache is not None and _fits(job):
            self._features = _kept_features(job)
        if job.source.cache is None and job.trunk is None:
            self._held = load_to_device(job, progress)
        if job.trunk is not None:
            progress = progress or NoProgress()
            train = job.source.train
            self._mirrored = job.trunk.mirror_order if job.views.flip else None
            variants = stored_variants(job.views, job.trunk)
            self._features = torch.empty(len(train), len(variants), job.trunk.width, device=job.device)
            for place, mirrored in enumerate(variants):  # into one tensor, to avoid a second copy
                into = self._features[:, place]
                features(job, train, progress, mirrored=mirrored, into=into, workers=launch.current_workers())

    @property
    def units(self) -> int:
        """The number of units that the sampler draws from."""
        return len(self._job.source.train)

    def micro_batches(
        self, key: RunKey, step: int, participants: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[MicroBatch]:
        """Yields the step's micro-batches: inputs (b, ...), or (b, K, ...) with views, targets (b,), dropout keys, and
        weights (b,) if the plan pads its steps or classes are weighted.

        With several workers, yields those dealt to this one. Views are drawn for the whole batch, and dropout keys for
        each record, so neither depends on how the batch is divided. A micro-batch is valid until the next one is
        requested: features read from disk share one buffer.
        """
        job, size, padded = self._job, self._job.performance.micro_batch, self._job.plan.participation.padded_size
        records, present = job.source.images_for(job.views), len(participants)
        draws = job.views.draw(key.generator("views", step), present, size=job.source.size)
        if padded is not None:
            size = min(size, padded)
            generator, missing = key.generator("padding", step), -(-padded // size) * size - present
            # Padding rows are random records, so that reading them takes as long as reading participants.
            participants = np.concatenate([participants, generator.integers(len(records), size=missing)])
            draws = draws.followed_by(job.views.draw(generator, missing, size=job.source.size))
        starts = range(0, len(participants), size)
        dealt = workers.deal(step, participants, [len(participants[at : at + size]) for at in starts])
        starts = [starts[place] for place in dealt]
        pieces = [participants[start : start + size] for start in starts]
        for start, rows, taken in zip(starts, pieces, self._read(records, pieces), strict=False):
            inputs, targets = self._compute(rows, draws[start : start + size], taken)
            # Randomness in the model other than dropout does not follow keys.
            torch.manual_seed(key.seed("model", step, str(start)))
            keys = None
            if job.gradient.uses_keys:
                keys = dropout_keys(key, step, rows)
            weights = None if self._class_weights is None else self._class_weights[targets]
            if padded is None:
                piece = inputs, targets, keys, weights
                yield piece if torch.device(job.device).type == "cpu" else pad_micro_batch(*piece, size=size)
            else:
                taking_part = torch.arange(start, start + size, device=job.device) < present
                held, known = (taking_part.reshape(-1, *[1] * (some.dim() - 1)) for some in (inputs, targets))
                weights = taking_part if weights is None else taking_part * weights
                yield torch.where(held, inputs, 0), torch.where(known, targets, 0), keys, weights

    def halve(self) -> int | None:
        """Halves the micro-batch size. Returns the new size, or None if it was 1."""
        if (size := self._job.performance.micro_batch // 2) < 1:
            return None
        self._job = replace(self._job, performance=replace(self._job.performance, micro_batch=size))
        return size

    def _read(self, records: Part, pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray | None]:
        """Yields the stored content of each micro-batch, read ahead; None where it is in memory."""
        there = self._features is not None or self._held is not None
        return repeat(None, len(pieces)) if there else read_ahead(records, pieces)

    def _compute(self, rows: np.ndarray, draws: ViewDraws, taken: np.ndarray | None) -> tuple[Tensor, Tensor]:
        """Inputs (b, ...), or (b, K, ...) with views, of these records, and their labels (b,) or (b, L).

        Args:
            taken: the records' stored content, from `_read`.
        """
        job = self._job
        if self._held is not None:
            stored, labels = self._held.take(rows)
        else:
            stored = None if taken is None or job.source.cache is not None else _devices.to_device(taken, job.device)
            labels = _devices.to_device(job.source.images_for(job.views).labels[rows], job.device)
        if stored is not None:
            inputs = make_views(stored, draws, job.source, job.views, job.transform)
        else:
            inputs = self._stored_features(rows, draws) if taken is None else _views(job, taken)
        return inputs.squeeze(1) if job.views.count == 1 else inputs, labels

    def _stored_features(self, rows: np.ndarray, draws: ViewDraws) -> Tensor:
        """Views (b, K, D) of the records in these rows, from the features in memory."""
        assert self._features is not None
        device = self._job.device
        one_variant = self._features.shape[1] == self._job.views.count == 1 and self._mirrored is None
        if self._job.trunk is None or one_variant:
            if (np.diff(rows) == 1).all():  # consecutive rows need no copy
                return self._features[rows[0] : rows[0] + len(rows)] if len(rows) else self._features[:0]
            return self._features.index_select(0, _devices.to_device(rows, device))  # twice as fast as indexing
        mirrored, chosen = _devices.to_device(draws.mirrored, device), _devices.to_device(rows, device)
        if self._mirrored is None:
            return self._features[chosen.unsqueeze(1), mirrored.long()]
        straight = self._features[:, 0].index_select(0, chosen)
        turned = straight.index_select(1, self._mirrored.to(device))
        return torch.where(mirrored.unsqueeze(-1), turned.unsqueeze(1), straight.unsqueeze(1))


def load_to_device(job: SourceJob, progress: Progress | None = None) -> DeviceRecords | None:
    """The training records on the job's device; None on the CPU, or if they do not fit."""
    records = job.source.images_for(job.views)
    if not fits_on_device(records, job.device):
        return None
    progress = progress or NoProgress()
    progress.begin("copying the data to the device", len(records))
    return DeviceRecords(records, job.device, progress.advance)


def dropout_keys(key: RunKey, step: int, names: Iterable[Any]) -> Tensor:
    """Dropout keys int64 (b, 4) of a step, one for each of these names: rows, or users."""
    return torch.from_numpy(np.stack([key.uint64_words("dropout", step, str(name)) for name in names]).view(np.int64))


def make_views(images: Tensor, draws: ViewDraws, source: Source, views: Views, transform: Preparation) -> Tensor:
    """Views (n, K, C, H, W) for the model, from images uint8 (n, S, S, C); for texts (n, 1, T)."""
    if isinstance(transform, Tokens):
        return transform(images).unsqueeze(1)
    assert isinstance(transform, Transform)
    return views.apply(replace(transform, size=images.shape[1])(images), draws, size=source.size)


def read_ahead(records: Part, pieces: Sequence[np.ndarray] | Sequence[slice]) -> Iterator[np.ndarray]:
    """Yields the stored content of each piece, reading the next piece meanwhile. Valid until the next one."""
    take = records.buffered_take() if isinstance(records, CachedRecords) else records.take
    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(take, rows) for rows in pieces[:1]]
        for place in range(len(pieces)):
            found = coming.pop()
            coming += [reader.submit(take, rows) for rows in pieces[place + 1 : place + 2]]
            yield found.result()


def _views(job: SourceJob, stored: np.ndarray) -> Tensor:
    """The views (n, K, D) for training, without the centre crops that are used for evaluation."""
    return _devices.to_device(np.ascontiguousarray(stored[:, -job.views.count :]), job.device)


def _kept_features(job: SourceJob) -> Tensor:
    """The views (N, K, D) of all training records of a cache, on the device."""
    records = job.source.train
    blocks = [slice(start, start + BATCH) for start in range(0, len(records), BATCH)]
    kept = torch.empty(len(records), job.views.count, *job.source.shape, device=job.device)
    for block, stored in zip(blocks, read_ahead(records, blocks), strict=True):
        kept[block] = _views(job, stored)
    return kept


def _fits(job: SourceJob) -> bool:
    """Whether all features of a cache fit into the device's memory, leaving enough for a step."""
    assert job.source.cache is not None
    contents = job.source.cache.contents
    needed = 4 * contents.views * contents.width * len(job.source.train)
    return needed <= (CPU_KEPT if job.device.type == "cpu" else DEVICE_SHARE * _devices.free_memory(job.device))


def stored_variants(views: Views, trunk: Trunk) -> tuple[bool, ...]:
    """The versions of an image whose features are kept: False for the image, True for its mirror image."""
    return (False, True) if views.flip and trunk.mirror_order is None else (False,)


def kept_bytes(views: Views, records: int, trunk: Trunk) -> int:
    """Bytes of the float32 features that `Inputs` keeps for so many training records."""
    return 4 * trunk.width * records * len(stored_variants(views, trunk))


def features(
    job: SourceJob,
    records: Part,
    progress: Progress,
    *,
    mirrored: bool = False,
    into: Tensor | None = None,
    workers: Workers = ALONE,
) -> Tensor:
    """The trunk's features (N, D) of the records, float32 on the job's device.

    Args:
        mirrored: mirror the images left to right.
        into: a tensor to write the features to.
        workers: each computes every n-th block, and all of them receive all features.

    **Guarantee.** Each row is a function of its own record (`per_example_outputs`), always computed in a batch of the
    same size: the classifier's per-example gradients are those of the whole model, run on one example at a time.
    """
    if job.trunk is None:
        raise TypeError("the job's model has no fixed trunk")
    count = len(records)
    progress.begin("computing features", count)
    at_once = (job.device.type == "cpu" and job.trunk.preferred_batch_size) or BATCH
    result = torch.empty(count, job.trunk.width, device=job.device) if into is None else into
    with evaluation_mode(job.trunk), unchanged_outputs(job.trunk, torch.zeros(1, *job.source.shape, device=job.device)):
        for start in range(workers.rank * BATCH, count + workers.rank * BATCH, BATCH * workers.count):
            images = _devices.to_device(records.take(slice(start, start + BATCH)), job.device)
            shown = job.transform(images.flip(2) if mirrored else images)
            filled = F.pad(shown, (0, 0) * (shown.dim() - 1) + (0, BATCH - len(shown)))
            found = per_example_outputs(job.trunk, filled, at_once=at_once)
            for at, block in enumerate(workers.gather(found), start=start // BATCH - workers.rank):
                rows = result[at * BATCH : (at + 1) * BATCH]
                rows.copy_(block[: len(rows)])
            progress.advance(min(start + BATCH * workers.count, count))
    return result


def features_alone(trunk: Trunk, images: Tensor) -> Tensor:
    """A trunk's features (N, D) of images (N, C, H, W), one image at a time, in evaluation mode."""
    with evaluation_mode(trunk):
        return per_example_outputs(trunk, images)
