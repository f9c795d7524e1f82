"""What a step's gradient is taken of where users are drawn: all that each of them has, in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato.data import by_user
from sfumato.observers.progress import Progress
from sfumato.randomness import RunKey
from sfumato.training.inputs import Inputs, dropout_keys
from sfumato.training.job import PrivateJob
from sfumato.training.workers import ALONE, Workers

# The arguments of `UserGradient`: inputs, targets, shares, keys.
UserBatch = tuple[Tensor, Tensor, Tensor, Tensor | None]


class UserInputs(Inputs):
    """The training records of users as the model's inputs, in micro-batches of whole users.

    Users with about as many records go together: rooms for 1 to 8, 10, 12, 14, 16, 20, ... records are filled up with
    padding of share 0, so at most a fifth of what is computed is padding.

    **Guarantee.** A user's records are in one micro-batch, each once, with shares that sum to 1; each record's input is
    a function of that record, of public constants and of draws that know no data.
    """

    def __init__(self, job: PrivateJob, progress: Progress | None = None):
        super().__init__(job, progress)
        users, names = by_user(job.source.train)
        self._order = np.argsort(users, kind="stable")
        self._ends = np.searchsorted(users[self._order], np.arange(len(names) + 1))

    @property
    def units(self) -> int:
        """How many users there are."""
        return len(self._ends) - 1

    def micro_batches(  # type: ignore[override]
        self, key: RunKey, step: int, participants: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[UserBatch]:
        """The step's users (ascending numbers) in pieces: inputs (b, R, ...) or (b, R, K, ...), targets and shares
        (b, R), and the keys of dropout (b, 4)."""
        job = self._job
        pieces = list(self._pieces(participants))
        generator = key.generator("views", step)
        records = job.source.images_for(job.views)
        drawn = [job.views.draw(generator, rows.size, size=job.source.size) for _, rows, _ in pieces]
        dealt = workers.deal(step, participants, [rows.size for _, rows, _ in pieces])
        pieces = [pieces[place] for place in dealt]
        stored = self._read(records, [rows.reshape(-1) for _, rows, _ in pieces])
        for (users, rows, own), place, taken in zip(pieces, dealt, stored, strict=True):
            draws = drawn[place]
            found = self._of(rows.reshape(-1), draws, taken)
            inputs, labels = (flat.unflatten(0, rows.shape) for flat in found)
            mask = _devices.sent(own, job.device)
            inputs = torch.where(mask.reshape(*rows.shape, *[1] * (inputs.dim() - 2)), inputs, 0)
            targets = torch.where(mask.reshape(*rows.shape, *[1] * (labels.dim() - 2)), labels, 0)
            torch.manual_seed(key.seed("model", step, f"user {users[0]}"))
            keys = None
            if job.gradient.draws:
                keys = dropout_keys(key, step, (f"user {user}" for user in users))
            yield inputs, targets, mask / mask.sum(1, keepdim=True), keys

    def _pieces(self, participants: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Users (b,), their records (b, R), and which of these are their own, (b, R)."""
        counts = self._ends[participants + 1] - self._ends[participants]
        rooms = np.array([room(int(count)) for count in counts], dtype=np.int64)
        for width in np.unique(rooms):
            alike, size = participants[rooms == width], max(1, self._job.performance.micro_batch // int(width))
            for start in range(0, len(alike), size):
                users = alike[start : start + size]
                places = self._ends[users, None] + np.arange(width)
                own = places < self._ends[users + 1, None]
                yield users, self._order[np.where(own, places, self._ends[users, None])], own


def room(records: int) -> int:
    """The least of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ... that holds so many records.

    >>> [room(records) for records in (1, 7, 9, 17, 100)]
    [1, 7, 10, 20, 112]
    """
    step = 1 << max(0, (records - 1).bit_length() - 3)
    return -(-records // step) * step
