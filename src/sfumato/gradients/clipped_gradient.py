"""`ClippedGradient`: the sum over examples of clipped gradients, and the sensitivity that the noise is scaled by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.gradients.batch_runner import BatchRunner
from sfumato.gradients.checks import external_models, hooks, isolation, losses, memory, mixing, selfcheck
from sfumato.gradients.checks.discovery import preserved_random_state
from sfumato.gradients.checks.isolation import unchanged_state
from sfumato.gradients.checks.synthetic import Examples, check_template, repeat_first
from sfumato.gradients.examples import Tree, batch_size, checked_weights, tree_map, tree_tensors
from sfumato.gradients.explain import Explanation, explain
from sfumato.gradients.methods.leaves import trainable_parameters, zero_gradients
from sfumato.gradients.methods.vectorised import Objective
from sfumato.gradients.sites.dropout import WORDS
from sfumato.gradients.sums import ClippedSum
from sfumato.gradients.tuner import Tuner

_LEAST_NORM = 1e-12
# L2 sensitivity of the clipped sum in units of C, by adjacency.
_SENSITIVITY = {"add-or-remove": 1, "zero-out": 1, "replace-one": 2}


class BoundedSum:
    """A sum of clipped gradients with its clipping norm and sensitivity."""

    methods: Any

    def __init__(self, max_norm: float, views: int):
        self._max_norm, self._views = max_norm, views

    @property
    def max_norm(self) -> float:
        """The clipping norm ``C``."""
        return self._max_norm

    @property
    def views(self) -> int:
        """K, the number of views of each example or record."""
        return self._views

    def sensitivity(self, adjacency: str) -> float:
        """The L2 distance by which the sum can differ between adjacent data sets.

        Args:
            adjacency: "add-or-remove" or "zero-out" for one example (or one user with all of their records): ``C``;
                "replace-one": ``2 C``.
        """
        return _SENSITIVITY[one_of(_SENSITIVITY, adjacency=adjacency)] * self._max_norm


class ClippedGradient(BoundedSum):
    """``sum_b clip_C( (1/K) sum_k gradient of loss(model(x_bk), y_b) )``, exactly, for any model.

    Semantically the model runs on one example (a batch of its K views) at a time; the implementation vectorises over
    examples. Layers need no special support. The model is left unchanged: no hooks, no ``.grad``, no other trace.
    Dropout masks follow the examples' keys; other randomness inside the model comes from torch's global generator, with
    separate numbers for each example and view.

    Args:
        model: maps a batch (N, ...) to logits (N, classes), or to anything else that the loss accepts. Parameters with
            ``requires_grad=False`` are left out. A model compiled with ``torch.compile`` is unwrapped first. Models of
            transformers and peft return an object: torch's own losses receive its ``logits``, other losses receive the
            whole object. If such a model is given labels, ``lambda outputs, targets: outputs.loss`` uses its own loss.
        loss: called as ``loss(outputs, targets)`` with one example's outputs (K, ...) and its target repeated for each
            view (K, ...); returns a scalar mean over views, like ``torch.nn.functional.cross_entropy``.
        max_norm: the clipping norm ``C``: the bound on the L2 norm of one example's gradient over all parameters.
        views: K, the augmented copies of one example whose mean gradient is clipped.
        methods: the `methods` of an earlier object. Skips the timing runs.
        template: (inputs, targets) as in a call, made of synthetic or public examples, never of private ones. The
            engine uses them to find out how the model can run. Needed if the model fails on random numbers and on
            integers that are all 0 or all 1, for example because it expects sequence lengths, special tokens or a
            particular kind of mask. Axes may differ in length from those of the call. `self_check` also sets one.
        capture: on a CUDA device, record the fourth call of a kind as a CUDA graph and launch that graph from then on,
            which saves host time. As long as the object is used, model and loss must compute the same function of
            weights, inputs and targets: a number stored in an attribute, or a branch in Python, must not change. Models
            with dropout are not recorded.

    **Guarantee.** Adding, removing or zeroing out one example moves `ClippedSum.gradients` by at most `max_norm` in L2
    norm over all parameters together; replacing one example by another moves it by at most twice that (`sensitivity`).
    Adding the sums of several calls preserves this. Each example's term obeys the bound as computed in floating point
    (`clipping.clip_factors`); the rounding of the sum over examples, of the order of float32's, is not covered.
    Assumption: the model has no channel from one example to another that `isolation` cannot see, such as a global
    variable. Source: Abadi et al. 2016 (arXiv 1607.00133), algorithm 1; views: De et al. 2022 (arXiv 2204.13650),
    section 3.

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
        model = external_models.unwrap(model)
        loss = external_models.loss_on_logits(model, loss)
        self._model = model
        super().__init__(positive(max_norm=max_norm), positive_integer(views=views))
        if self._max_norm < _LEAST_NORM:
            raise SfumatoError(
                f"max_norm must be at least {_LEAST_NORM}, got {max_norm}: float32 cannot hold smaller sums exactly",
                "multiply the loss and max_norm by the same factor",
            )
        tuner = Tuner(methods)
        self._objective = Objective(model=model, loss=loss, views=self.views, tuner=tuner)
        synthetic = None if template is None else check_template(template, self.views)
        self._batches = BatchRunner(self._objective, self._max_norm, synthetic, capture=capture)
        hooks.refuse_scripted(model, loss)
        trainable_parameters(model)
        isolation.refuse_mixing_layers(model)
        hooks.refuse_backward_hooks(model, loss)

    @property
    def sums_over(self) -> Literal["examples"]:
        """The unit of the sum: each example's gradient is clipped."""
        return "examples"

    @property
    def methods(self) -> dict[str, str]:
        """For each site, how its gradient norms are computed, as chosen so far by timing.

        The choices affect rounding. To reproduce the same bits on any machine, pass them as `methods`.
        """
        return dict(self._objective.tuner.methods)

    @property
    def unused_parameters(self) -> tuple[str, ...]:
        """Trainable parameters that the loss does not depend on; their gradients are zero.

        Known after the first call with examples or after `self_check`; determined on synthetic examples only.
        """
        if (latest := self._batches.latest) is None:
            raise SfumatoError("unused_parameters are not known yet", "call self_check first")
        return tuple(name for name in trainable_parameters(self._model) if name not in latest.used)

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no examples: zeros by parameter name, float32 at least. Start from it to add several sums."""
        return zero_gradients(self._model)

    @property
    def uses_keys(self) -> bool:
        """Whether the model has dropout that follows `keys`. Known after the first call or after `self_check`."""
        return any(path.draws for path in self._batches.paths.values())

    def __call__(
        self, inputs: Tree, targets: Tree, keys: Tensor | None = None, weights: Tensor | None = None
    ) -> ClippedSum:
        """Computes the clipped sum of a batch.

        Args:
            inputs: (B, ...) if views is 1, (B, K, ...) otherwise; or a tuple of such tensors (the model's positional
                arguments), or a dict (its keyword arguments). B may be zero.
            targets: (B, ...), or a tuple or dict of such.
            keys: (B, 4) int64, 256 bits per example. An example's dropout masks depend on its own key only. By default
                the keys are drawn from torch's global generator.
            weights: (B,) floating-point numbers from 0 to 1, or booleans, by which the clipped gradients are
                multiplied. An example with weight 0 is padding; its inputs and target may be anything that the model
                can run on. By default every weight is 1.

        **Guarantee.** Weights are applied after clipping and are at most 1, so an example's term has an L2 norm of at
        most its weight times ``C``. The sensitivity is the same as without weights, provided that each weight is a
        function of its own example and of public facts. Padding contributes exactly zero to `ClippedSum.gradients`,
        whatever it holds (nan too), so the sum is that of the other examples and has their sensitivity. Finite padding
        goes through the same operations as every other example, however much of it there is, if the model does not
        branch on its example.
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
            device = tree_tensors(inputs)[0].device
            nothing = torch.zeros(0, dtype=torch.float64, device=device)
            return ClippedSum(gradients=zero_gradients(self._model), norms=nothing, losses=nothing.float())
        if weights is not None:
            weights = checked_weights(weights, examples).to(tree_tensors(inputs)[0].device)
        with torch.enable_grad():
            batch, runs = tree_map(_plain, (inputs, targets)), self._batches
            key, path = runs.path(batch)
            total = runs.sum_in_pieces(batch, key, keys, weights) if path.fast else runs.sum_one_by_one(batch, weights)
        return total if weights is None else total.hide_padding(weights)

    def explain(self, inputs: Tree, targets: Tree | None = None) -> Explanation:
        """Reports the time and memory of a call, site by site; print the result to see a table.

        Args:
            inputs: as in a call. Only shapes and types are read; the run itself uses synthetic numbers.
            targets: as in a call; by default class 0 for every example.
        """
        examples = len(tree_tensors(inputs)[0])
        if targets is None:
            classes = torch.zeros(examples, dtype=torch.int64, device=tree_tensors(inputs)[0].device)
            targets = classes if self._batches.template is None else repeat_first(self._batches.template[1], examples)
        batch_size(inputs, targets, self.views)
        with torch.enable_grad():
            _, path = self._batches.path(tree_map(torch.detach, (inputs, targets)))
            if not path.fast:
                raise SfumatoError(
                    "the model runs on the slow path, one example at a time, so there are no sites to explain",
                    "see the warning of the first call for the reason",
                )
            return explain(self._objective, examples, path)

    def self_check(
        self, example_shape: Any = None, *, targets: Tree | None = None, gradient: selfcheck.Gradient | None = None
    ) -> None:
        """Compares this object's sums with a slow reference on synthetic examples and raises an error if they differ.

        Ordinary and adversarial examples (a large offset, tiny and huge scales) are tried. No private data are read, so
        the outcome reveals nothing about them. Dropout and the like are switched off during the check.

        Args:
            example_shape: the shape of one view of one example, such as ``(3, 32, 32)``; for several inputs, a tuple or
                dict of shapes. If the model does not accept arbitrary numbers, give a synthetic tensor of one example
                in place of a shape. By default the template's shape, with integers taken from the template.
            targets: (M, ...) synthetic targets, used in turn. By default the template's, if `example_shape` is the
                template's too, or else the classes of the model's output.
            gradient: computes the same sums from this one, and is checked in its place.
        """
        synthetic, loss = self._synthetic(example_shape, targets, examples=6), self._objective.loss
        path = self._batches.path(synthetic)[1]

        def build(model: nn.Module, examples: Examples) -> ClippedGradient:
            settings = {"max_norm": self._max_norm, "views": self.views, "methods": self.methods}
            gradient = ClippedGradient(model, loss, **settings, template=examples)
            gradient._batches.reuse_path(examples, path)
            return gradient

        with preserved_random_state(), unchanged_state(self._model, loss):
            losses.refuse_constant(self._model, loss, *synthetic, self.views)
            losses.refuse_sum(self._model, loss, *synthetic, self.views)
            if path.fast and not path.conditional:
                mixing.refuse_mixing(self._model, synthetic[0], self.views)
        with self._batches.uncaptured():
            selfcheck.check(
                gradient or self, build, self._model, loss, synthetic, max_norm=self._max_norm, views=self.views
            )

    def bytes_per_example(self, example_shape: Any = None, *, targets: Tree | None = None) -> int:
        """Estimates the memory, in bytes, of one more example in a batch, views included.

        Args:
            example_shape: as in `self_check`.
            targets: as in `self_check`.
        """
        with torch.enable_grad():
            path = self._batches.path(self._synthetic(example_shape, targets, examples=1))[1]
            return memory.bytes_per_example(self._objective, path)

    def _synthetic(self, example_shape: Any, targets: Tree | None, *, examples: int) -> Examples:
        synthetic = selfcheck.synthetic(
            self._model, example_shape, targets, self.views, examples=examples, template=self._batches.template
        )
        if not self._batches.user_template:
            self._batches.template = synthetic
        return synthetic


def _plain(tensor: Tensor) -> Tensor:
    """The tensor without its autograd graph; inference tensors are cloned because they have no version counter."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
