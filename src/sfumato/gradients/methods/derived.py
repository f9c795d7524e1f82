"""What the tensors that sites use are to the model's parameters, and how gradients are pulled back to these.

A site's operand may be a parameter (the usual case), a parameter with its entries in another order (``W.t()``), or
any other function of parameters: a standardised weight, a normalised one, a merged adapter. Per-example gradients of
``V = h(W)`` belong to W by the chain rule, ``J^T G_b``. The sum over examples needs that only once, since it is linear.
The norm needs it for each example, and there one family of functions has a closed form.

**Functions of rows.** Let each row of V depend on the same row of W, ``J_i^T = s_i (I - a_i e e^T - c_i u_i u_i^T)``, e
the unit vector of equal entries and u_i the direction of V's own row. Weight standardisation (Qiao et al. 2019), with
whatever epsilon, and weight normalisation (Salimans and Kingma 2016) are of this kind, with a learned gain of each row
or without. Then

    |J_i^T d|^2 = s_i^2 ( |d|^2 + (a_i^2 - 2 a_i) (d.e)^2 + (c_i^2 - 2 c_i) (d.u)^2 + 2 a_i c_i (d.e) (d.u) (u.e) )

and a gain's gradient is a multiple of d.u. Whether a function is of this kind is not looked up but found: the numbers
s, a, c come from one backward of a probe, and the form must predict another, random one, entry by entry, whenever the
values have changed. The clipped sum then goes through the form too, so that its bound does not rest on that proof.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.gradients.methods.layout import arranged
from sfumato.gradients.methods.row_forms import PROOF, Candidate, Forms, KnownForms, RowForm, measured
from sfumato.gradients.use import Instantiated, RowMap, Use

# Backward steps of views that hold every entry once.
_MOVES = ("T", "Transpose", "Permute", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias")
# Rows shorter than this don't determine the three numbers of their form.
_SHORTEST_ROW = 8


@dataclass(eq=False)
class Operand:
    """A tensor that sites use, and what it is to the parameters.

    Attributes:
        tensor: with its graph.
        names: of the parameters it depends on.
        derived: whether gradients must be pulled back; a parameter itself is not derived.
        moved: derived, but only by moving entries.
        uses: how often sites use it.
        ask: finds its form, with those of all others that were met; None where that is done, or where there is none.
    """

    tensor: Tensor
    names: tuple[str, ...]
    derived: bool = True
    moved: bool = False
    uses: int = 0
    ask: Callable[[], None] | None = None

    def __post_init__(self):
        self._version = self.tensor._version
        self._form: tuple[RowForm | None, Tensor | None] = None, None

    def found(self, form: RowForm | None, proven: Tensor | None) -> None:
        """Notes what it is."""
        self.ask, self._form = None, (form, proven)

    @property
    def key(self) -> tuple:
        """What its form is remembered by."""
        return self.names, tuple(self.tensor.shape), self.tensor.dtype

    @property
    def may_have_form(self) -> bool:
        """Whether it has one, or nobody has looked yet."""
        return self.ask is not None or self._form[0] is not None

    @property
    def form(self) -> RowForm | None:
        """Of a function of rows, or None; when it is first asked for, those of all operands are found."""
        if self.ask is not None:
            self.ask()
        return self._form[0]

    @property
    def proven(self) -> Tensor | None:
        """() bool, whether the form is right, where a device has not been asked yet."""
        return None if self.form is None else self._form[1]

    def refuse_changed(self) -> None:
        """Refuses a model that writes to a weight after it was used: what was noted would belong to other numbers."""
        if self.tensor._version != self._version:
            raise SfumatoError(
                f"the forward pass changes in place a weight that it has used, made of {', '.join(self.names)}",
                "compute the other weight as a new tensor",
            )

    @property
    def rows(self) -> RowMap | None:
        """What a use must know of a function of rows."""
        if (form := self.form) is None:
            return None
        numbers, own = form.numbers, form.rows
        return RowMap(self.tensor.detach(), numbers.scales[own], numbers.sizes[own], numbers.squared[own])


class Operands:
    """The operands of one run.

    Args:
        shared: the tensors that stand for the parameters, by name.
        originals: the model's own, which no graph may reach, by name.
        forms: what earlier runs found out.
        synchronize: whether to look at numbers, for which a device would be waited for; if not, what they would have said
            goes with the operand (`Operand.proven`).
    """

    def __init__(
        self, shared: dict[str, Tensor], originals: dict[str, Tensor], forms: Forms, *, synchronize: bool = True
    ):
        self._shared, self._originals, self._forms, self._synchronize = shared, originals, forms, synchronize
        self._names = {id(leaf): name for name, leaf in shared.items()}
        self._bypassed = {id(leaf): name for name, leaf in originals.items()}
        self._found: dict[int, Operand] = {}
        self._waiting: list[tuple[Operand, str, tuple[str, ...]]] = []

    def of(self, tensor: Tensor) -> Operand:
        """What this tensor is; the same answer for the same tensor."""
        if id(tensor) not in self._found:
            self._found[id(tensor)] = self._met(tensor)
        found = self._found[id(tensor)]
        found.refuse_changed()
        return found

    def _met(self, tensor: Tensor) -> Operand:
        if id(tensor) in self._names:
            return Operand(tensor, (self._names[id(tensor)],), derived=False)
        leaf = _moved_leaf(tensor)
        if leaf is not None and id(leaf) in self._names:
            return Operand(tensor, (self._names[id(leaf)],), moved=True)
        operand = Operand(tensor, self._parameters(tensor))
        parts = self._weight_and_gains(tensor, operand.names)
        if operand.key not in self._forms.without and parts is not None:
            operand.ask = self._settle
            self._waiting.append((operand, *parts))
        return operand

    def shape(self, name: str) -> torch.Size:
        """Of a parameter."""
        return self._shared[name].shape

    def _parameters(self, tensor: Tensor) -> tuple[str, ...]:
        """Names of the parameters at the ends of the tensor's graph."""
        leaves, seen, nodes = set(), set(), [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaves |= {id(node.variable)} if hasattr(node, "variable") else set()  # type: ignore[attr-defined]
            nodes += [following for following, _ in node.next_functions]
        for leaf in leaves & self._bypassed.keys():
            refuse_bypassed(self._bypassed[leaf])
        return tuple(name for name, leaf in self._shared.items() if id(leaf) in leaves)

    def gradients(
        self, tensor: Tensor, names: tuple[str, ...], output: Tensor, *, batched: bool = False
    ) -> dict[str, Tensor]:
        """``J^T output`` for the parameters named; with `batched`, for each of the outputs."""
        wanted = [self._shared[name] for name in names]
        found = torch.autograd.grad(
            tensor, wanted, output, is_grads_batched=batched, allow_unused=True, retain_graph=True
        )
        return {name: value for name, value in zip(names, found, strict=True) if value is not None}

    def pull_back(self, operand: Operand, values: Tensor) -> dict[str, Use]:
        """From per-example gradients (B, *shape) of an operand to those of its parameters."""
        found = self._each(operand.tensor, operand.names, values.to(operand.tensor.dtype))
        return {name: Instantiated(gradient) for name, gradient in found.items()}

    def _each(self, tensor: Tensor, names: tuple[str, ...], values: Tensor) -> dict[str, Tensor]:
        """``J^T`` of each of the values (n, *shape), by parameter name."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*performance drop.*")
                return self.gradients(tensor, names, values, batched=True)
        except RuntimeError:  # an operation whose backward has no batching rule
            rows = [self.gradients(tensor, names, value) for value in values]
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _settle(self) -> None:
        """Finds the forms of all operands that have been met and may have one."""
        waiting, self._waiting = self._waiting, []
        for operand, *_ in waiting:
            operand.refuse_changed()
        by_kind: dict[tuple, list[tuple[Operand, Candidate]]] = {}
        for operand, weight, gains in waiting:
            pull = partial(self._each, operand.tensor, operand.names)
            own = operand, Candidate(operand.tensor, weight, gains, pull)
            by_kind.setdefault((operand.tensor.dtype, operand.tensor.device), []).append(own)
        for (_, device), own in by_kind.items():
            shapes = [(len(operand.tensor), operand.tensor[0].numel()) for operand, _ in own]
            for group in arranged(shapes, padded=_devices.has_own_forms(device)):
                self._settle_group([own[place] for place in group])

    def _settle_group(self, group: list[tuple[Operand, Candidate]]) -> None:
        """The same of operands whose numbers come from the same kernels."""
        operands, candidates = [operand for operand, _ in group], [candidate for _, candidate in group]
        key, names = tuple(operand.key for operand in operands), [n for operand in operands for n in operand.names]
        # The same values have the same form, in all micro-batches of a step; they are known again by random dots.
        marks, versions, known = self._marks(candidates), self._versions(names), self._forms.known.get(key)
        if known is not None and (self._synchronize or known.versions == versions):
            same = (known.marks == marks).all()  # without a question: but for writes that torch does not count
            if not self._synchronize or (known.proven is None and bool(same)):
                proven = None if self._synchronize else same if known.proven is None else same & known.proven
                for operand, form in zip(operands, known.forms, strict=True):
                    operand.found(form, proven)
                return
        forms, right = measured(candidates, self._forms)
        if self._synchronize:
            forms = [form if fine else None for form, fine in zip(forms, right.tolist(), strict=True)]
        proven = None if self._synchronize else right.all()
        for operand, form in zip(operands, forms, strict=True):
            operand.found(form, None if form is None else proven)
            if form is None:
                self._forms.without.add(operand.key)
        good = [form for form in forms if form is not None]
        if len(good) == len(forms):
            self._forms.known[key] = KnownForms(marks, versions, good, proven)

    def _marks(self, candidates: list[Candidate]) -> Tensor:
        """Random dots of the rows of tensors and of their weights, and the gains as they are."""
        layout = self._forms.layout([candidate.tensor for candidate in candidates])
        like = [candidate.tensor.detach().flatten(1) for candidate in candidates]
        weights = [
            self._shared[one.weight].detach().reshape(own.shape) for one, own in zip(candidates, like, strict=True)
        ]
        dots = [torch.mv(rows, self._forms.probe(rows[:1], 2)[0]) for rows in map(layout.joined, (like, weights))]
        gains = [self._shared[name].detach().flatten() for candidate in candidates for name in candidate.gains]
        return torch.cat([*dots, *gains])

    def _versions(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._originals[name]._version for name in names if name in self._originals)

    def _weight_and_gains(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """By their shapes; None where the tensor can't be a function of rows."""
        if tensor.dim() < 2 or tensor.numel() < _SHORTEST_ROW * len(tensor) or tensor.dtype not in PROOF:
            return None
        rows = len(tensor)
        weights = [n for n in names if self._shared[n].numel() == tensor.numel() and len(self._shared[n]) == rows]
        gains = tuple(n for n in names if n not in weights)
        if len(weights) != 1 or any(self._shared[n].numel() != rows for n in gains):
            return None
        return weights[0], gains


def _moved_leaf(tensor: Tensor) -> Tensor | None:
    """The leaf of which this tensor is a view that holds every entry once."""
    node = tensor.grad_fn
    while node is not None:
        if hasattr(node, "variable"):
            leaf = node.variable  # type: ignore[attr-defined]
            same = leaf.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            whole = leaf.numel() == tensor.numel() and leaf.is_contiguous()
            return leaf if same and whole and tensor.storage_offset() == leaf.storage_offset() else None
        kind = node.name().removesuffix("Backward0").removesuffix("Backward1")
        if kind not in _MOVES or len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def refuse_bypassed(name: str) -> NoReturn:
    """Refuses a model of which a gradient reaches one of its own parameters, past the tensor that stands for it."""
    raise SfumatoError(
        f"parameter {name!r} is used by the loss, or through a reference outside its module, "
        "so its gradient would be lost",
        "use it inside the model's forward pass as an attribute of its module; for weight decay take the optimizer's",
    )
