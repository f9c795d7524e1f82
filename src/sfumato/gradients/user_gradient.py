"""`UserGradient`: the sum over users of the clipped gradient of all of a user's records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import starmap
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.checks import selfcheck
from sfumato.gradients.clipped_gradient import BoundedSum, ClippedGradient
from sfumato.gradients.sums import ClippedSum, sum_of_one

AT_ONCE = 64
"""Views of one user that are vectorised together. For more views, a user's gradient is added up in pieces."""
_UNCLIPPED = 1e30
_SYNTHETIC = 6


class UserGradient(BoundedSum):
    """``sum_u clip_C( sum_r share_ur (1/K) sum_k gradient of loss(model(x_urk), y_ur) )``, exactly, for any model.

    A user's records, each with its own label, are treated like the views of one example of `ClippedGradient`. Shares of
    1/n, for n records, give the gradient of their mean loss. Users with fewer than R records are padded with records of
    share 0.

    Args:
        model, loss, max_norm, methods: as for `ClippedGradient`; the loss is a mean over a batch.
        views: K, the views of each record.
        at_once: the number of views of one user that are computed together.

    **Guarantee.** Adding, removing or zeroing out one user with all of their records moves the sum by at most
    `max_norm` in L2 norm (`sensitivity`), however many records they have: the records' gradients are added before the
    norm is taken, even if they are computed in pieces. A user whose gradient contains a value that is not finite
    contributes zero, also if it is in one piece only. No term mixes records of two users: whatever a caller pads a user
    with is replaced by copies of a record of their own. Assumption: R is a function of each user's own records and of
    public facts (`round_up_records`), since models may see the number of copies. Rounding is as for `ClippedGradient`.
    Source: McMahan et al. 2018 (arXiv 1710.06963), algorithm 1, with one gradient as the user's update.

    >>> import torch.nn.functional as F
    >>> gradient = UserGradient(nn.Linear(4, 3), F.cross_entropy, max_norm=0.1)
    >>> shares = torch.tensor([[0.5, 0.5], [1.0, 0.0]])  # two records of the first user, one of the second
    >>> total = gradient(torch.ones(2, 2, 4), torch.zeros(2, 2, dtype=torch.int64), shares)
    >>> total.gradients["weight"].shape, total.norms.shape
    (torch.Size([3, 4]), torch.Size([2]))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        *,
        max_norm: float = 1.0,
        views: int = 1,
        methods: Mapping[str, str] | None = None,
        at_once: int = AT_ONCE,
    ):
        super().__init__(float(max_norm), views)
        self._model, self._loss = model, loss
        self._at_once, self._methods = max(1, at_once // views), methods
        self._by_records: dict[tuple[int, bool], ClippedGradient] = {}
        self._for_records(1)  # raises the errors of `ClippedGradient` now

    @property
    def sums_over(self) -> Literal["users"]:
        """The unit of the sum: all of a user's records are clipped together."""
        return "users"

    @property
    def methods(self) -> dict[str, str]:
        """See `ClippedGradient.methods`. Timed on one record, and then used for any number of them."""
        return self._for_records(1).methods

    @property
    def uses_keys(self) -> bool:
        """Whether the model has dropout that follows `keys`. Known after `self_check`."""
        return any(gradient.uses_keys for gradient in self._by_records.values())

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no users."""
        return self._for_records(1).zeros()

    def __call__(self, inputs: Tensor, targets: Tensor, shares: Tensor, keys: Tensor | None = None) -> ClippedSum:
        """Computes the clipped sum over the users of a micro-batch, each with all of their records.

        Args:
            inputs: R records for each of B users: (B, R, ...) if views is 1, (B, R, K, ...) otherwise.
            targets: (B, R, ...).
            shares: (B, R), the weight of each record's loss; 0 for padding, which may hold anything. A user whose
                shares are all 0 is padding and contributes exactly zero.
            keys: (B, 4) int64, from which each user's dropout masks are made.
        """
        users, records = targets.shape[:2]
        if inputs.shape[:2] != targets.shape[:2] or shares.shape != targets.shape[:2]:
            raise SfumatoError(
                f"the first two axes of inputs, targets and shares are {tuple(inputs.shape[:2])}, "
                f"{tuple(targets.shape[:2])} and {tuple(shares.shape[:2])}",
                "give (users, records) in all three",
            )
        if users == 0:
            return self._for_records(1)(inputs.new_zeros(0, *inputs.shape[2:]), (targets[:, :1], shares[:, :1]))
        own = shares > 0
        present, shares = own.any(1), torch.where(own, shares, 0.0).float()
        inputs, targets = _with_own_padding(own, inputs, targets)
        if records <= self._at_once:
            return self._sum(inputs, targets, shares, keys, present)
        own_keys = [None] * users if keys is None else keys.split(1)
        by_user = zip(*(one.split(1) for one in (inputs, targets, shares)), own_keys, present.split(1), strict=True)
        return reduce(ClippedSum.merge, starmap(self._sum_in_pieces, by_user)).hide_padding(present)

    def _sum(
        self, inputs: Tensor, targets: Tensor, shares: Tensor, *keys_present: Tensor | None, clipped: bool = True
    ) -> ClippedSum:
        users, records = targets.shape[:2]
        views = records * self._views
        shape = inputs.shape[2 if self._views == 1 else 3 :]
        examples = inputs.reshape(users, *([views] if views > 1 else []), *shape)
        return self._for_records(records, clipped=clipped)(examples, (targets, shares), *keys_present)

    def _sum_in_pieces(
        self, inputs: Tensor, targets: Tensor, shares: Tensor, keys: Tensor | None, present: Tensor
    ) -> ClippedSum:
        """The clipped sum of one user (1, R, ...), whose gradient is added up in float64 before it is clipped."""
        gradients = {name: value.double() for name, value in self.zeros().items()}
        losses = torch.zeros(1, device=inputs.device)
        for start in range(0, targets.shape[1], self._at_once):
            piece = slice(start, start + self._at_once)
            piece_keys = None if keys is None else keys + start  # other masks for other records
            part = self._sum(inputs[:, piece], targets[:, piece], shares[:, piece], piece_keys, clipped=False)
            for name, value in part.gradients.items():
                gradients[name] += value + 0 * part.norms[0]  # nan if a piece was left out
            losses = losses + part.losses
        return sum_of_one(gradients, losses, self.zeros(), self._max_norm, present)

    def self_check(self, example_shape: tuple[int, ...] | Tensor, *, targets: Tensor | None = None) -> None:
        """Compares the sums over synthetic users with a slow reference: see `ClippedGradient.self_check`.

        Args:
            example_shape: the shape of one view of one record; for integers, a synthetic tensor in its place.
            targets: (M, ...) synthetic targets of records, used in turn; by default the classes of the model's output.
        """
        for records in (1, 2):
            users = self._synthetic(example_shape, records, targets)
            self._for_records(records).self_check(example_shape, targets=users, gradient=self._sum_of_synthetic)

    def bytes_per_example(self, example_shape: tuple[int, ...] | Tensor, *, targets: Tensor | None = None) -> int:
        """Estimates the memory, in bytes, of one more record, views included."""
        return self._for_records(1).bytes_per_example(example_shape, targets=self._synthetic(example_shape, 1, targets))

    def _for_records(self, records: int, *, clipped: bool = True) -> ClippedGradient:
        """The `ClippedGradient` that treats `records` K views of a user as the views of one example."""
        if (records, clipped) not in self._by_records:
            first = self._by_records.get((1, True))
            self._by_records[records, clipped] = ClippedGradient(
                self._model,
                partial(_user_loss, self._loss, records),
                max_norm=self._max_norm if clipped else _UNCLIPPED,
                views=records * self._views,
                methods=self._methods if first is None else first.methods,
            )
        return self._by_records[records, clipped]

    def _sum_of_synthetic(self, inputs: Tensor, targets: tuple[Tensor, Tensor]) -> ClippedSum:
        """The sum over synthetic users, from all views of each user (B, R K, ...) and their targets and shares."""
        users, records = targets[1].shape
        shape = inputs.shape[1 if records * self._views == 1 else 2 :]
        return self(inputs.reshape(users, records, *([self._views] if self._views > 1 else []), *shape), *targets)

    def _synthetic(
        self, shape: tuple[int, ...] | Tensor, records: int, targets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Targets (M, R, ...) and shares (M, R) of synthetic users; the last record of some is padding."""
        parameter = next(self._model.parameters())
        if targets is None:
            inputs = shape.to(parameter.device)[None] if isinstance(shape, Tensor) else parameter.new_zeros(1, *shape)
            targets = torch.arange(selfcheck.count_classes(self._model, inputs, 1), device=parameter.device)
        places = torch.arange(_SYNTHETIC * records, device=parameter.device).unflatten(0, (-1, records))
        shares = torch.where((places % 3 == 1) & (places % records > 0), 0.0, 1 / records)
        return targets[places % len(targets)], shares


def _with_own_padding(own: Tensor, *values: Tensor) -> list[Tensor]:
    """The values (B, R, ...), with padding replaced by copies of the first record of the same user.

    Args:
        own: (B, R) bool, False for padding. The records of a user without any stay as they are.
    """
    places = torch.arange(own.numel(), device=own.device).view(own.shape)
    first = own.byte().argmax(1, keepdim=True)
    rows = torch.where(own, places, places.gather(1, first)).flatten()
    return [one.flatten(0, 1).index_select(0, rows).view(one.shape) for one in values]


def _user_loss(
    loss: Callable[[Any, Any], Tensor], records: int, outputs: Tensor, targets: tuple[Tensor, Tensor]
) -> Tensor:
    """Returns a user's loss from the losses of their records.

    Args:
        outputs: (R K, classes).
        targets: targets (R, ...) and shares (R,), repeated for each of the outputs.
    """
    labels, shares = targets[0][0], targets[1][0]
    each = outputs.unflatten(0, (records, -1))
    labels_by_record = [labels[r].expand(each.shape[1], *labels.shape[1:]) for r in range(records)]
    return sum(shares[r] * loss(each[r], labels_by_record[r]) for r in range(records))  # type: ignore[return-value]
