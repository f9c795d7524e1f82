"""`UserGradient`: the sum over users of the clipped gradient of all that each of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.clipped import Bounded, ClippedGradient
from sfumato.gradients.sums import ClippedSum, sum_of_one

AT_ONCE = 64
"""Views of one user that are vectorised together; of more a user's gradient is added up in pieces."""
_UNCLIPPED = 1e30


class UserGradient(Bounded):
    """``sum_u clip_C( sum_r share_ur (1/K) sum_k gradient of loss(model(x_urk), y_ur) )``, exactly, for any model.

    A user's records, each with its own label, count together as one example of `ClippedGradient` does with its views:
    shares of 1/n, for n records, make it the gradient of their mean loss. Users with fewer than R records are padded
    with shares of zero.

    Args:
        model, loss, max_norm, methods: as for `ClippedGradient`; the loss is a mean over a batch.
        views: K, the views of each record.
        at_once: how many views of one user are computed together.

    **Guarantee.** With one user added, removed or zeroed out, with all of their records, the sum moves by at most
    `max_norm` in L2 norm (`sensitivity`), however many records they have: the records are added up before the norm is
    taken, also where they are computed in pieces. A user of whose gradient anything is not finite contributes zero.
    Records of two users meet in no term. Rounding is as for `ClippedGradient`. Source: McMahan et al. 2018
    (arXiv 1710.06963), algorithm 1, with one gradient as the user's update.

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
        self._at_once, self._given = max(1, at_once // views), methods
        self._by_records: dict[tuple[int, bool], ClippedGradient] = {}
        self._of(1)  # refuses here whatever it refuses

    @property
    def sums_over(self) -> Literal["users"]:
        """Users: all that each has is clipped together."""
        return "users"

    @property
    def methods(self) -> dict[str, str]:
        """As of `ClippedGradient`: measured on one record, and then the same for any number of them."""
        return self._of(1).methods

    @property
    def draws(self) -> bool:
        """Whether the model has dropout that follows `keys`; known after `self_check`."""
        return any(gradient.draws for gradient in self._by_records.values())

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no users."""
        return self._of(1).zeros()

    def __call__(self, inputs: Tensor, targets: Tensor, shares: Tensor, keys: Tensor | None = None) -> ClippedSum:
        """The clipped sum over the users of a micro-batch, whole users all of them.

        Args:
            inputs: (B, R, ...) if views is 1, (B, R, K, ...) otherwise: of each of B users R records.
            targets: (B, R, ...).
            shares: (B, R), by what each record's loss counts; 0 for padding.
            keys: (B, 4) int64, of which each user's dropout masks are made.
        """
        users, records = targets.shape[:2]
        if inputs.shape[:2] != targets.shape[:2] or shares.shape != targets.shape[:2]:
            raise SfumatoError(
                f"inputs, targets and shares begin with {tuple(inputs.shape[:2])}, {tuple(targets.shape[:2])} and "
                f"{tuple(shares.shape)}",
                "give (users, records) in all three",
            )
        if users == 0:
            return self._of(1)(inputs.new_zeros(0, *inputs.shape[2:]), (targets[:, :1], shares[:, :1]))
        if records <= self._at_once:
            return self._sum(inputs, targets, shares, keys)
        own = [slice(user, user + 1) for user in range(users)]
        alone = [self._in_pieces(inputs[u], targets[u], shares[u], None if keys is None else keys[u]) for u in own]
        return reduce(ClippedSum.followed_by, alone)

    def _sum(
        self, inputs: Tensor, targets: Tensor, shares: Tensor, keys: Tensor | None, *, clipped: bool = True
    ) -> ClippedSum:
        users, records = targets.shape[:2]
        views = records * self._views
        shape = inputs.shape[2 if self._views == 1 else 3 :]
        examples = inputs.reshape(users, *([views] if views > 1 else []), *shape)
        return self._of(records, clipped=clipped)(examples, (targets, shares.to(torch.float32)), keys)

    def _in_pieces(self, inputs: Tensor, targets: Tensor, shares: Tensor, keys: Tensor | None) -> ClippedSum:
        """The same of one user (1, R, ...), whose gradient is added up in float64 before it is clipped."""
        gradients = {name: value.double() for name, value in self.zeros().items()}
        losses = torch.zeros(1, device=inputs.device)
        for start in range(0, targets.shape[1], self._at_once):
            piece = slice(start, start + self._at_once)
            own = None if keys is None else keys + start  # other masks for other records
            found = self._sum(inputs[:, piece], targets[:, piece], shares[:, piece], own, clipped=False)
            for name, value in found.gradients.items():
                gradients[name] += value + 0 * found.norms[0]  # nan where a piece was left out
            losses = losses + found.losses
        return sum_of_one(gradients, losses, self.zeros(), self._max_norm)

    def self_check(self, example_shape: tuple[int, ...] | Tensor, *, targets: Tensor | None = None) -> None:
        """Compares the sums over made-up users with the slow truth, and refuses if they differ: see `ClippedGradient`.

        Args:
            example_shape: of one view of one record; in its place a made-up one where it holds whole numbers.
            targets: (M, ...) made-up targets of records, used in turn; by default the classes of the model's output.
        """
        for records in (1, 2):
            self._of(records).self_check(example_shape, targets=self._synthetic(example_shape, records, targets))

    def bytes_per_example(self, example_shape: tuple[int, ...] | Tensor, *, targets: Tensor | None = None) -> int:
        """An estimate of the memory, in bytes, that one more record costs, views included."""
        return self._of(1).bytes_per_example(example_shape, targets=self._synthetic(example_shape, 1, targets))

    def _of(self, records: int, *, clipped: bool = True) -> ClippedGradient:
        """The clipped gradient where a user's `records` K views are the views of one example."""
        if (records, clipped) not in self._by_records:
            first = self._by_records.get((1, True))
            self._by_records[records, clipped] = ClippedGradient(
                self._model,
                partial(_of_records, self._loss, records),
                max_norm=self._max_norm if clipped else _UNCLIPPED,
                views=records * self._views,
                methods=self._given if first is None else first.methods,
            )
        return self._by_records[records, clipped]

    def _synthetic(
        self, shape: tuple[int, ...] | Tensor, records: int, targets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Targets (M, R, ...) and shares (M, R) for made-up users."""
        parameter = next(self._model.parameters())
        if isinstance(shape, Tensor):
            inputs = shape.to(parameter.device).expand(2, *shape.shape)
        else:
            inputs = parameter.new_zeros(2, *shape)
        with torch.no_grad():
            was = self._model.training
            outputs = self._model.eval()(inputs)
            self._model.train(was)
        places = torch.arange(2 * outputs.shape[1] * records, device=parameter.device)
        shares = torch.where(places.reshape(-1, records) % 3 == 2, 0.0, 1 / records)
        shares[:, 0] = 1 / records
        if targets is None:
            targets = torch.arange(outputs.shape[1], device=parameter.device)
        return targets[places % len(targets)].unflatten(0, (-1, records)), shares


def _of_records(
    loss: Callable[[Any, Any], Tensor], records: int, outputs: Tensor, targets: tuple[Tensor, Tensor]
) -> Tensor:
    """A user's loss from that of each of their records.

    Args:
        outputs: (R K, classes).
        targets: for each of the outputs, targets (R, ...) and shares (R,).
    """
    labels, shares = targets[0][0], targets[1][0]
    each = outputs.unflatten(0, (records, -1))
    own = [labels[r].expand(each.shape[1], *labels.shape[1:]) for r in range(records)]
    losses = [loss(each[r], own[r]) for r in range(records)]
    return sum(torch.where(shares[r] > 0, shares[r] * one, 0.0) for r, one in enumerate(losses))  # type: ignore
