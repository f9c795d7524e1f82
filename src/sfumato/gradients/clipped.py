"""`ClippedGradient`: the sum over examples of the clipped gradient, and the bound that the noise must be scaled by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.gradients.batches import Batches
from sfumato.gradients.checks import isolation, losses, memory, mixing, selfcheck, unseen, wrapped
from sfumato.gradients.checks.discovery import undisturbed_random
from sfumato.gradients.checks.isolation import nothing_kept
from sfumato.gradients.checks.synthetic import Examples, checked, repeated
from sfumato.gradients.examples import Tree, batch_size, checked_weights, each, tensors
from sfumato.gradients.explain import Explanation, explain
from sfumato.gradients.methods.expanded import trainable_parameters, zero_gradients
from sfumato.gradients.methods.vectorised import Objective
from sfumato.gradients.sites.dropout import WORDS
from sfumato.gradients.sums import ClippedSum
from sfumato.gradients.tuner import Tuner

# By how many bounds C the clipped sum moves in L2 when one example changes.
_LEAST_NORM = 1e-12
_BOUNDS = {"add-or-remove": 1, "zero-out": 1, "replace-one": 2}


class Bounded:
    """What a sum of clipped gradients is bounded by."""

    methods: Any

    def __init__(self, max_norm: float, views: int):
        self._max_norm, self._views = max_norm, views

    @property
    def max_norm(self) -> float:
        """The bound ``C``."""
        return self._max_norm

    @property
    def views(self) -> int:
        """K, the views of each example or record."""
        return self._views

    def sensitivity(self, adjacency: str) -> float:
        """How far the sum can move in L2 norm between adjacent data sets.

        Args:
            adjacency: "add-or-remove" or "zero-out" one example (a user, with all of their records): ``C``;
                "replace-one": ``2 C``.
        """
        return _BOUNDS[one_of("adjacency", adjacency, _BOUNDS)] * self._max_norm


class ClippedGradient(Bounded):
    """``sum_b clip_C( (1/K) sum_k gradient of loss(model(x_bk), y_b) )``, exactly, for any model.

    The model is run on one example at a time in meaning (a batch of its K views) and vectorised over examples in fact,
    so layers need no special support. The model comes back as it was: no hooks, no ``.grad``, nothing changed.
    Dropout follows the examples' keys; other randomness inside the model comes from torch's global generator, anew for
    each example and view.

    Args:
        model: gives logits (N, classes), or anything else that the loss takes, from a batch (N, ...). Parameters with
            ``requires_grad=False`` are left out. One that went through ``torch.compile`` is taken by what it wraps; of
            one of transformers or peft, which gives an object, torch's own losses get the ``logits``, and other losses
            get all of it: of one that is given labels, ``lambda outputs, targets: outputs.loss`` is its own loss.
        loss: called as ``loss(outputs, targets)`` with one example's outputs (K, ...) and its target once per view
            (K, ...); returns a scalar mean over views, like ``torch.nn.functional.cross_entropy``.
        max_norm: the bound ``C`` on the L2 norm of one example's gradient over all parameters together.
        views: K, the augmented copies of one example whose mean gradient is clipped.
        methods: another object's `methods`, so that nothing is measured anew.
        template: (inputs, targets) as in a call, of made-up or public examples, never of private ones: how the model is
            run is found out on these. Needed where it fails on random numbers, and on whole numbers that are all 0 and
            all 1: for sequence lengths, special tokens, masks of a certain kind. Axes may have other lengths than in
            the call. `self_check` gives one too.
        capture: on a CUDA device, record the fourth call of a kind as a CUDA graph and launch that from then on, which
            saves the host's time. Until the object is thrown away, model and loss must compute the same function of
            weights, inputs and targets: a number in an attribute of theirs, or a branch of Python, may not change.
            A model with dropout is not recorded.

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
        methods: Mapping[str, str] | None = None,
        template: Examples | None = None,
        capture: bool = False,
    ):
        if not isinstance(model, nn.Module):
            raise SfumatoError(f"model must be a torch.nn.Module, got {type(model).__name__}", "wrap it in a module")
        if not callable(loss):
            raise SfumatoError(f"loss must be a function, got {loss!r}", "give torch.nn.functional.cross_entropy")
        isolation.refuse_trainable_loss(loss)
        losses.refuse_divided_weights(loss)
        model = wrapped.unwrapped(model)
        loss = wrapped.of_logits(model, loss)
        self._model = model
        super().__init__(positive("max_norm", max_norm), positive_integer("views", views))
        if self._max_norm < _LEAST_NORM:
            raise SfumatoError(
                f"max_norm must be at least {_LEAST_NORM}, got {max_norm}: float32 does not hold smaller sums exactly",
                "multiply the loss, and the bound, by the same number",
            )
        tuner = Tuner(methods)
        self._objective = Objective(model=model, loss=loss, views=self.views, tuner=tuner)
        made_up = None if template is None else checked(template, self.views)
        self._batches = Batches(self._objective, self._max_norm, made_up, capture=capture)
        unseen.refuse_scripted(model, loss)
        trainable_parameters(model)
        isolation.refuse_mixing_layers(model)
        unseen.refuse_backward_hooks(model, loss)

    @property
    def sums_over(self) -> Literal["examples"]:
        """Examples: each one's gradient is clipped."""
        return "examples"

    @property
    def methods(self) -> dict[str, str]:
        """By site, how its weight's gradient norms are computed: choices made so far, by measurement. They change how
        sums round, so whoever wants the same bits again, on any machine, gives them back as `methods`."""
        return dict(self._objective.tuner.methods)

    @property
    def unused_parameters(self) -> tuple[str, ...]:
        """Trainable parameters that the loss does not depend on; their gradients are zero.

        Known after the first call with examples, or after `self_check`; found on made-up examples alone.
        """
        if (latest := self._batches.latest) is None:
            raise SfumatoError("unused_parameters are not known yet", "call self_check first")
        return tuple(name for name in trainable_parameters(self._model) if name not in latest.used)

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no examples: zeros by parameter name, float32 at least, to add up several calls' sums in."""
        return zero_gradients(self._model)

    @property
    def draws(self) -> bool:
        """Whether the model has dropout that follows `keys`; known after the first call, or after `self_check`."""
        return any(path.draws for path in self._batches.paths.values())

    def __call__(
        self, inputs: Tree, targets: Tree, keys: Tensor | None = None, weights: Tensor | None = None
    ) -> ClippedSum:
        """The clipped sum of a batch.

        Args:
            inputs: (B, ...) if views is 1, (B, K, ...) otherwise; or a tuple of such tensors (the model's positional
                arguments), or a dict (its keyword arguments). B may be zero.
            targets: (B, ...), or a tuple or dict of such.
            keys: (B, 4) int64, 256 bits for each example from which its dropout masks are made, apart from all other
                examples; by default they are drawn from torch's global generator.
            weights: (B,) of real numbers from 0 to 1, or of booleans, that clipped gradients are multiplied by. With 0
                an example is padding, whose inputs and target may be anything that the model runs on; by default all
                have 1.

        **Guarantee.** A weight follows clipping and is at most 1, so an example's term has an L2 norm of at most its
        weight times ``C``, and the sensitivity is what it is without weights, where each one is a function of its own
        example and of public facts. Padding contributes exactly zero to `ClippedSum.gradients`, whatever it holds (nan
        too), so the sum is that of the other examples, and its sensitivity theirs. Finite padding goes through the same
        operations as all else, however much of it there is, if the model does not branch on its example.
        """
        examples = batch_size(inputs, targets, self.views)
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
        if weights is not None:
            weights = checked_weights(weights, examples).to(tensors(inputs)[0].device)
        with torch.enable_grad():
            batch, runs = each(_plain, (inputs, targets)), self._batches
            key, path = runs.path(batch)
            total = runs.in_pieces(batch, key, keys, weights) if path.fast else runs.one_at_a_time(batch, weights)
        return total if weights is None else total.of_weights(weights)

    def explain(self, inputs: Tree, targets: Tree | None = None) -> Explanation:
        """Where the time and the memory of a call go, site by site; print it to see a table.

        Args:
            inputs: as in a call. Only shapes and types are looked at: made-up numbers are run.
            targets: as in a call; by default class 0 for all.
        """
        examples = len(tensors(inputs)[0])
        if targets is None:
            classes = torch.zeros(examples, dtype=torch.int64, device=tensors(inputs)[0].device)
            targets = classes if self._batches.template is None else repeated(self._batches.template[1], examples)
        batch_size(inputs, targets, self.views)
        with torch.enable_grad():
            _, path = self._batches.path(each(torch.detach, (inputs, targets)))
            if not path.fast:
                raise SfumatoError(
                    "the model runs one example at a time, the slow way, so there are no sites to explain",
                    "see the warning of the first call for what stands in the way",
                )
            return explain(self._objective, examples, path)

    def self_check(self, example_shape: Any = None, *, targets: Tree | None = None) -> None:
        """Compares this object's sums with the slow truth on made-up examples, and refuses if they differ.

        Ordinary examples and adversarial ones (a large offset, tiny and huge scales) are tried. Nothing private is
        looked at, so whether it refuses tells nothing about the data. Dropout and the like are switched off meanwhile.

        Args:
            example_shape: the shape of one view of one example, such as ``(3, 32, 32)``; for several inputs a tuple or
                dict of shapes; in place of a shape, a made-up tensor of one example where numbers of any size won't do.
                By default it is the template's, and whole numbers are taken from there.
            targets: (M, ...) made-up targets, used in turn; by default the template's if `example_shape` is, or else
                the classes of the model's output.
        """
        synthetic, loss = self._synthetic(example_shape, targets, examples=6), self._objective.loss
        path = self._batches.path(synthetic)[1]

        def build(model: nn.Module, examples: Examples) -> ClippedGradient:
            same = {"max_norm": self._max_norm, "views": self.views, "methods": self.methods}
            found = ClippedGradient(model, loss, **same, template=examples)
            found._batches.know(examples, path)
            return found

        with undisturbed_random(), nothing_kept(self._model, loss):
            losses.refuse_constant(self._model, loss, *synthetic, self.views)
            losses.refuse_sum(self._model, loss, *synthetic, self.views)
            if path.fast and not path.conditional:
                mixing.refuse_mixing(self._model, synthetic[0], self.views)
        with self._batches.uncaptured():
            selfcheck.check(self, build, self._model, loss, synthetic, max_norm=self._max_norm, views=self.views)

    def bytes_per_example(self, example_shape: Any = None, *, targets: Tree | None = None) -> int:
        """An estimate of the memory, in bytes, that one more example in a batch costs, views included.

        Args:
            example_shape: as in `self_check`.
            targets: as in `self_check`.
        """
        with torch.enable_grad():
            path = self._batches.path(self._synthetic(example_shape, targets, examples=1))[1]
            return memory.bytes_per_example(self._objective, path)

    def _synthetic(self, example_shape: Any, targets: Tree | None, *, examples: int) -> Examples:
        found = selfcheck.synthetic(
            self._model, example_shape, targets, self.views, examples=examples, template=self._batches.template
        )
        if not self._batches.given:
            self._batches.template = found
        return found


def _plain(tensor: Tensor) -> Tensor:
    """Without a graph, and with a count of what is written to it."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
