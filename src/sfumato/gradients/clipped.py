"""`ClippedGradient`: the sum over examples of the clipped gradient, and the bound that the noise must be scaled by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.gradients import clipping, isolation, memory, selfcheck, sequential
from sfumato.gradients.derived import Forms
from sfumato.gradients.discovery import Road, discover, run_expanding
from sfumato.gradients.examples import Tree, batch_size, each, signature, synthetic, tensors
from sfumato.gradients.expanded import trainable_parameters, zero_gradients
from sfumato.gradients.explain import Explanation, explain
from sfumato.gradients.sites.dropout import WORDS
from sfumato.gradients.tuner import Tuner
from sfumato.gradients.vectorised import Memory, Run

# By how many bounds C the clipped sum moves in L2 when one example changes.
_LEAST_NORM = 1e-12
_BOUNDS = {"add-or-remove": 1, "zero-out": 1, "replace-one": 2}


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedSum:
    """The clipped sum of a batch. `norms` and `losses` are private: no noise protects them, so never log them.

    Attributes:
        gradients: by parameter name, of the parameter's shape, float32 at least: the sum over examples (not the mean).
        norms: (B,) float64, the norm of each example's gradient before clipping; nan or inf where it was not finite,
            and that example contributed zero.
        losses: (B,), each example's mean loss over its views.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor


class ClippedGradient:
    """``sum_b clip_C( (1/K) sum_k gradient of loss(model(x_bk), y_b) )``, exactly, for any model.

    The model is run on one example at a time in meaning (a batch of its K views) and vectorised over examples in fact,
    so layers need no special support. The model comes back as it was: no hooks, no ``.grad``, nothing changed.
    Dropout follows the examples' keys; other randomness inside the model comes from torch's global generator, anew for
    each example and view.

    Args:
        model: gives logits (N, classes), or anything else that the loss takes, from a batch (N, ...). Parameters with
            ``requires_grad=False`` are left out.
        loss: called as ``loss(outputs, targets)`` with one example's outputs (K, ...) and its target once per view
            (K, ...); returns a scalar mean over views, like ``torch.nn.functional.cross_entropy``.
        max_norm: the bound ``C`` on the L2 norm of one example's gradient over all parameters together.
        views: K, the augmented copies of one example whose mean gradient is clipped.
        ways: another object's `ways`, so that nothing is measured anew.

    **Guarantee.** With one example added, removed or zeroed out, `ClippedSum.gradients` moves by at most `max_norm` in
    L2 norm over all parameters together; with one replaced by another, by at most twice that (`sensitivity`). Adding
    up several calls' sums keeps this. Each example's term obeys the bound as computed (`clipping.clip_factors`); the
    rounding of the sum over examples, of the order of float32's, is not covered. Assumed: the model has no channel from
    one example to another that `isolation` cannot see, such as a global variable. Source: Abadi et al. 2016 (arXiv
    1607.00133), algorithm 1; views: De et al. 2022 (arXiv 2204.13650), section 3.

    >>> import torch, torch.nn.functional as F
    >>> model = torch.nn.Linear(4, 3)
    >>> gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    >>> total = gradient(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    >>> total.gradients["weight"].shape, total.norms.shape
    (torch.Size([3, 4]), torch.Size([8]))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        *,
        max_norm: float = 1.0,
        views: int = 1,
        ways: Mapping[str, str] | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise SfumatoError(f"model must be a torch.nn.Module, got {type(model).__name__}", "wrap it in a module")
        if not callable(loss):
            raise SfumatoError(f"loss must be a function, got {loss!r}", "give torch.nn.functional.cross_entropy")
        self._model, self._loss = model, loss
        self._max_norm = positive("max_norm", max_norm)
        if self._max_norm < _LEAST_NORM:
            raise SfumatoError(
                f"max_norm must be at least {_LEAST_NORM}, got {max_norm}: float32 does not hold smaller sums exactly",
                "multiply the loss, and the bound, by the same number",
            )
        self._views = positive_integer("views", views)
        self._memory = Memory(tuner=Tuner(ways), forms=Forms())
        self._roads: dict[tuple, Road] = {}
        self._pieces: dict[tuple, int] = {}
        self._latest: Road | None = None
        trainable_parameters(model)
        isolation.refuse_mixing_layers(model)
        isolation.refuse_trainable_loss(loss)

    @property
    def max_norm(self) -> float:
        """The bound ``C``."""
        return self._max_norm

    @property
    def views(self) -> int:
        """K, the views of each example."""
        return self._views

    @property
    def ways(self) -> dict[str, str]:
        """By site, how its weight's gradient norms are computed: choices made so far, by measurement. They change how
        sums round, so whoever wants the same bits again, on any machine, gives them back as `ways`."""
        return dict(self._memory.tuner.ways)

    @property
    def unused_parameters(self) -> tuple[str, ...]:
        """Trainable parameters that the loss does not depend on; their gradients are zero.

        Known after the first call with examples, or after `self_check`; found on made-up examples alone.
        """
        if self._latest is None:
            raise SfumatoError("unused_parameters are not known yet", "call self_check first")
        return tuple(name for name in trainable_parameters(self._model) if name not in self._latest.used)

    def sensitivity(self, adjacency: str) -> float:
        """How far the sum can move in L2 norm between adjacent data sets.

        Args:
            adjacency: "add-or-remove" or "zero-out" one example: ``C``; "replace-one": ``2 C``.
        """
        return _BOUNDS[one_of("adjacency", adjacency, _BOUNDS)] * self._max_norm

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no examples: zeros by parameter name, float32 at least, to add up several calls' sums in."""
        return zero_gradients(self._model)

    @property
    def draws(self) -> bool:
        """Whether the model has dropout that follows `keys`; known after the first call, or after `self_check`."""
        return any(road.draws for road in self._roads.values())

    def __call__(self, inputs: Tree, targets: Tree, keys: Tensor | None = None) -> ClippedSum:
        """The clipped sum of a batch.

        Args:
            inputs: (B, ...) if views is 1, (B, K, ...) otherwise; or a tuple of such tensors (the model's positional
                arguments), or a dict (its keyword arguments). B may be zero.
            targets: (B, ...), or a tuple or dict of such.
            keys: (B, 4) int64, 256 bits for each example from which its dropout masks are made, apart from all other
                examples; by default they are drawn from torch's global generator.
        """
        examples = batch_size(inputs, targets, self._views)
        if keys is not None and (
            not isinstance(keys, Tensor) or keys.shape != (examples, WORDS) or keys.dtype != torch.int64
        ):
            got = f"{keys.dtype} of shape {tuple(keys.shape)}" if isinstance(keys, Tensor) else type(keys).__name__
            raise SfumatoError(
                f"keys must be a tensor of int64 of shape ({examples}, {WORDS}), got {got}",
                "give 256 bits for each example",
            )
        if examples == 0:
            device = tensors(inputs)[0].device
            nothing = torch.zeros(0, dtype=torch.float64, device=device)
            return ClippedSum(gradients=zero_gradients(self._model), norms=nothing, losses=nothing.float())
        with torch.enable_grad():
            inputs, targets = each(Tensor.detach, inputs), each(Tensor.detach, targets)
            key, road = self._road(inputs, targets)
            if road.fast:
                return self._in_pieces(inputs, targets, key, keys)
            gradients, norms, losses, _ = sequential.clipped_sum(
                self._model, self._loss, inputs, targets, max_norm=self._max_norm, views=self._views
            )
        return ClippedSum(gradients=gradients, norms=norms, losses=losses)

    def _road(self, inputs: Tree, targets: Tree) -> tuple[tuple, Road]:
        isolation.refuse_mixing_layers(self._model)
        modes = tuple(module.training for module in self._model.modules())
        trained = tuple(parameter.requires_grad for parameter in self._model.parameters())
        key = (signature(inputs), signature(targets), modes, trained)
        if key not in self._roads:
            self._roads[key] = discover(
                self._model, self._loss, inputs, targets, views=self._views, memory=self._memory
            )
        self._latest = self._roads[key]
        return key, self._latest

    def _in_pieces(self, inputs: Tree, targets: Tree, key: tuple, keys: Tensor | None) -> ClippedSum:
        """The batch in pieces that stay near the processor, as large as makes no difference to the time."""
        examples = tensors(inputs)[0].shape[0]
        size = self._piece(inputs, targets, key, examples)
        count = -(-examples // size)
        bounds = [round(index * examples / count) for index in range(count + 1)]
        found: list[ClippedSum] = []
        for start, stop in pairwise(bounds):
            piece, wanted = (each(lambda tensor, a=start, b=stop: tensor[a:b], tree) for tree in (inputs, targets))
            own = None if keys is None else keys[start:stop]
            found.append(self._fast(piece, wanted, key, self._roads[key], own))
            if len(found) == 2:
                found = [_added(*found)]
        return found[0]

    def _piece(self, inputs: Tree, targets: Tree, key: tuple, examples: int) -> int:
        """The most examples at once: on a CPU, by what one of them needs in memory."""
        least = -(-memory.LEAST_IMAGES // self._views)
        if examples <= least or tensors(inputs)[0].device.type != "cpu":
            return examples
        if key not in self._pieces:
            generator = torch.Generator().manual_seed(0)
            made_up, wanted = (synthetic(tree, 4, generator) for tree in (inputs, targets))
            self._pieces[key] = max(least, memory.NEAR // self._bytes_each(made_up, wanted, self._roads[key]))
        return self._pieces[key]

    def _fast(self, inputs: Tree, targets: Tree, key: tuple, road: Road, keys: Tensor | None) -> ClippedSum:
        found, expanded = run_expanding(
            self._model,
            self._loss,
            inputs,
            targets,
            views=self._views,
            expanded=road.expanded,
            memory=self._memory,
            keys=keys,
        )
        used = road.used | found.used
        self._roads[key] = self._latest = Road(fast=True, expanded=expanded, used=used, draws=road.draws or found.draws)
        # Norms and sums are never taken in half precision, whatever the model runs in.
        with torch.no_grad(), torch.autocast(found.losses.device.type, enabled=False):
            return self._clipped(found)

    def _clipped(self, found: Run) -> ClippedSum:
        trainable = trainable_parameters(self._model)
        dtypes = {name: clipping.accumulation_dtype(parameter.dtype) for name, parameter in trainable.items()}
        squares = found.squared_norms()
        coarsest = max(dtypes.values(), key=lambda dtype: torch.finfo(dtype).eps)
        factors = clipping.clip_factors(squares, found.losses, max_norm=self._max_norm, dtype=coarsest)
        sums: dict[str, Tensor] = {}
        while found.parts:  # one at a time, so that what a part holds is freed with it
            sums |= found.parts.pop().weighted_sums(factors)
        gradients = {
            name: sums[name].detach().to(dtypes[name])
            if name in sums
            else torch.zeros_like(parameter.detach(), dtype=dtypes[name])
            for name, parameter in trainable.items()
        }
        return ClippedSum(gradients=gradients, norms=squares.sqrt(), losses=found.losses)

    def explain(self, inputs: Tree, targets: Tree | None = None) -> Explanation:
        """Where the time and the memory of a call go, site by site; print it to see a table.

        Args:
            inputs: as in a call. Only shapes and types are looked at: made-up numbers are run.
            targets: as in a call; by default class 0 for all.
        """
        if targets is None:
            examples = tensors(inputs)[0].shape[0]
            targets = torch.zeros(examples, dtype=torch.int64, device=tensors(inputs)[0].device)
        batch_size(inputs, targets, self._views)
        with torch.enable_grad():
            _, road = self._road(inputs, targets)
            if not road.fast:
                raise SfumatoError(
                    "the model runs one example at a time, the slow way, so there are no sites to explain",
                    "see the warning of the first call for what stands in the way",
                )
            return explain(self._model, self._loss, inputs, targets, views=self._views, road=road, memory=self._memory)

    def self_check(self, example_shape: Any, *, targets: Tree | None = None) -> None:
        """Compares this object's sums with the slow truth on made-up examples, and refuses if they differ.

        Ordinary examples and adversarial ones (a large offset, tiny and huge scales) are tried. Nothing private is
        looked at, so whether it refuses tells nothing about the data. Dropout and the like are switched off meanwhile.

        Args:
            example_shape: the shape of one view of one example, such as ``(3, 32, 32)``; for several inputs a tuple or
                dict of shapes; in place of a shape, a made-up tensor of one example where numbers of any size won't do.
            targets: (M, ...) made-up targets, used in turn; by default the classes of the model's output.
        """
        inputs, targets = selfcheck.made_up(self._model, example_shape, targets, self._views, examples=6)
        self._road(inputs, targets)

        def build(model: nn.Module) -> ClippedGradient:
            return ClippedGradient(
                model, self._loss, max_norm=self._max_norm, views=self._views, ways=self._memory.tuner.ways
            )

        selfcheck.check(
            self, build, self._model, self._loss, inputs, targets, max_norm=self._max_norm, views=self._views
        )

    def bytes_per_example(self, example_shape: Any, *, targets: Tree | None = None) -> int:
        """An estimate of the memory, in bytes, that one more example in a batch costs, views included.

        Args:
            example_shape, targets: as in `self_check`.
        """
        inputs, targets = selfcheck.made_up(self._model, example_shape, targets, self._views, examples=4)
        with torch.enable_grad():
            _, road = self._road(inputs, targets)
            return self._bytes_each(inputs, targets, road)

    def _bytes_each(self, inputs: Tree, targets: Tree, road: Road) -> int:
        return memory.bytes_per_example(
            self._model, self._loss, inputs, targets, views=self._views, road=road, memory=self._memory
        )


def _added(first: ClippedSum, second: ClippedSum) -> ClippedSum:
    for name, value in first.gradients.items():
        value += second.gradients[name]
    return ClippedSum(
        gradients=first.gradients,
        norms=torch.cat([first.norms, second.norms]),
        losses=torch.cat([first.losses, second.losses]),
    )
