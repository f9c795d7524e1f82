"""How the tensors used by sites depend on the model's parameters, and how gradients are pulled back to these.

A site's operand may be a parameter (the usual case), a parameter with its entries in another order (``W.t()``), or any
other function of parameters, such as a standardised weight, a normalised weight or a merged adapter. By the chain rule,
the per-example gradient of W is ``J^T G_b``, where G_b is that of ``V = h(W)``. The sum over examples is linear and
needs this product only once. The norm needs it for each example; for one family of functions it has a closed form.

**Functions of rows.** Let each row of V depend on the same row of W, with ``J_i^T = s_i (I - a_i e e^T - c_i u_i
u_i^T)``, where e is the unit vector of equal entries and u_i the direction of row i of V. Weight standardisation (Qiao
et al. 2019), with any epsilon, and weight normalisation (Salimans and Kingma 2016) have this form, with or without a
learned gain for each row. Then

    |J_i^T d|^2 = s_i^2 ( |d|^2 + (a_i^2 - 2 a_i) (d.e)^2 + (c_i^2 - 2 c_i) (d.u)^2 + 2 a_i c_i (d.e) (d.u) (u.e) )

and the gradient of a gain is a multiple of d.u. Whether a function has this form is found numerically: one backward
pass of a probe gives the numbers s, a, c, and the form must predict the backward pass of another, random probe entry by
entry; this is repeated whenever the values have changed. The clipped sum uses the form too, so its bound does not
depend on this proof.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.gradients.methods.layout import group_shapes
from sfumato.gradients.methods.row_forms import PROOF, Candidate, Forms, KnownForms, RowForm, fit_row_forms
from sfumato.gradients.use import Instantiated, RowMap, Use

# Names of autograd nodes of views that hold every entry once.
_MOVES = ("T", "Transpose", "Permute", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias")
# Shorter rows do not determine the three numbers of their form.
_SHORTEST_ROW = 8


@dataclass(eq=False)
class Operand:
    """A tensor used by sites, and how it depends on the parameters.

    Attributes:
        tensor: the tensor, with its graph.
        names: the parameters on which it depends.
        derived: whether gradients must be pulled back; False for a parameter itself.
        moved: whether it is derived only by moving entries.
        uses: how many times sites use it.
        find_form: finds its form, together with those of all other pending operands; None if that is done, or if the
            tensor cannot have a form.
    """

    tensor: Tensor
    names: tuple[str, ...]
    derived: bool = True
    moved: bool = False
    uses: int = 0
    find_form: Callable[[], None] | None = None

    def __post_init__(self):
        self._version = self.tensor._version
        self._form: tuple[RowForm | None, Tensor | None] = None, None

    def set_form(self, form: RowForm | None, proven: Tensor | None) -> None:
        """Sets the form, or None."""
        self.find_form, self._form = None, (form, proven)

    @property
    def key(self) -> tuple:
        """The key under which its form is remembered."""
        return self.names, tuple(self.tensor.shape), self.tensor.dtype

    @property
    def may_have_form(self) -> bool:
        """Whether it has a form, or this is not yet known."""
        return self.find_form is not None or self._form[0] is not None

    @property
    def form(self) -> RowForm | None:
        """The form of a function of rows, or None. The first access finds the forms of all pending operands."""
        if self.find_form is not None:
            self.find_form()
        return self._form[0]

    @property
    def proven(self) -> Tensor | None:
        """() bool, whether the form is right; None if that is known without waiting for a device."""
        return None if self.form is None else self._form[1]

    def refuse_changed(self) -> None:
        """Refuses a model that writes to a weight after using it: the recorded use would refer to other values."""
        if self.tensor._version != self._version:
            raise SfumatoError(
                f"the forward pass changes a weight in place after using it (made of {', '.join(self.names)})",
                "compute the changed weight as a new tensor",
            )

    @property
    def rows(self) -> RowMap | None:
        """The function of rows as a use needs to know it; None if the operand is not one."""
        if (form := self.form) is None:
            return None
        numbers, rows = form.numbers, form.rows
        return RowMap(self.tensor.detach(), numbers.scales[rows], numbers.sizes[rows], numbers.squared[rows])


class Operands:
    """The operands of one run.

    Args:
        shared: the tensors that replace the parameters, by name.
        originals: the model's own parameters, by name, which no graph may reach.
        forms: the forms found in earlier runs.
        model: the model. While none of its parameters and buffers is written to, forms are found once.
        synchronize: whether to wait for the device and check the forms now; otherwise the result of the check remains
            with the operand (`Operand.proven`).
    """

    def __init__(
        self,
        shared: dict[str, Tensor],
        originals: dict[str, Tensor],
        forms: Forms,
        *,
        model: nn.Module | None = None,
        synchronize: bool = True,
    ):
        self._shared, self._originals, self._forms, self._synchronize = shared, originals, forms, synchronize
        self._model = model
        self._names = {id(leaf): name for name, leaf in shared.items()}
        self._original_names = {id(leaf): name for name, leaf in originals.items()}
        self._operands: dict[int, Operand] = {}
        self._pending: list[tuple[Operand, str, tuple[str, ...]]] = []

    def operand_of(self, tensor: Tensor) -> Operand:
        """The operand of a tensor; the same one for the same tensor."""
        if id(tensor) not in self._operands:
            self._operands[id(tensor)] = self._create(tensor)
        operand = self._operands[id(tensor)]
        operand.refuse_changed()
        return operand

    def _create(self, tensor: Tensor) -> Operand:
        if id(tensor) in self._names:
            return Operand(tensor, (self._names[id(tensor)],), derived=False)
        leaf = _moved_leaf(tensor)
        if leaf is not None and id(leaf) in self._names:
            return Operand(tensor, (self._names[id(leaf)],), moved=True)
        operand = Operand(tensor, self._parameters(tensor))
        parts = self._weight_and_gains(tensor, operand.names)
        if operand.key not in self._forms.without and parts is not None:
            operand.find_form = self._find_forms
            self._pending.append((operand, *parts))
        return operand

    def shape(self, name: str) -> torch.Size:
        """The shape of a parameter."""
        return self._shared[name].shape

    def _parameters(self, tensor: Tensor) -> tuple[str, ...]:
        """Names of the parameters at the leaves of the tensor's graph."""
        leaves, seen, nodes = set(), set(), [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaves |= {id(node.variable)} if hasattr(node, "variable") else set()  # type: ignore[attr-defined]
            nodes += [following for following, _ in node.next_functions]
        for leaf in leaves & self._original_names.keys():
            refuse_bypassed(self._original_names[leaf])
        return tuple(name for name, leaf in self._shared.items() if id(leaf) in leaves)

    def gradients(
        self, tensor: Tensor, names: tuple[str, ...], output: Tensor, *, batched: bool = False
    ) -> dict[str, Tensor]:
        """``J^T output`` for the named parameters; with `batched`, for each of the outputs."""
        wanted = [self._shared[name] for name in names]
        gradients = torch.autograd.grad(
            tensor, wanted, output, is_grads_batched=batched, allow_unused=True, retain_graph=True
        )
        return {name: value for name, value in zip(names, gradients, strict=True) if value is not None}

    def pull_back(self, operand: Operand, values: Tensor) -> dict[str, Use]:
        """Converts per-example gradients (B, *shape) of an operand to those of its parameters."""
        pulled = self._per_example(operand.tensor, operand.names, values.to(operand.tensor.dtype))
        return {name: Instantiated(gradient) for name, gradient in pulled.items()}

    def _per_example(self, tensor: Tensor, names: tuple[str, ...], values: Tensor) -> dict[str, Tensor]:
        """``J^T`` of each of the values (n, *shape), by parameter name."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*performance drop.*")
                return self.gradients(tensor, names, values, batched=True)
        except RuntimeError:  # an operation whose backward has no batching rule
            rows = [self.gradients(tensor, names, value) for value in values]
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _find_forms(self) -> None:
        """Finds the forms of all pending operands."""
        pending, self._pending = self._pending, []
        for operand, *_ in pending:
            operand.refuse_changed()
        by_kind: dict[tuple, list[tuple[Operand, Candidate]]] = {}
        for operand, weight, gains in pending:
            pull = partial(self._per_example, operand.tensor, operand.names)
            pair = operand, Candidate(operand.tensor, weight, gains, pull)
            by_kind.setdefault((operand.tensor.dtype, operand.tensor.device), []).append(pair)
        for (_, device), pairs in by_kind.items():
            shapes = [(len(operand.tensor), operand.tensor[0].numel()) for operand, _ in pairs]
            for group in group_shapes(shapes, padded=_devices.has_device_forms(device)):
                self._find_forms_of_group([pairs[place] for place in group])

    def _find_forms_of_group(self, group: list[tuple[Operand, Candidate]]) -> None:
        """Finds the forms of operands whose numbers are computed by the same kernels."""
        operands, candidates = [operand for operand, _ in group], [candidate for _, candidate in group]
        key = tuple(operand.key for operand in operands)
        # All micro-batches of a step have the same values, and so the same forms; random dot products recognise them.
        # A form may also depend on a buffer or a frozen parameter that leaves the values as they are for now.
        marks, versions, known = self._marks(candidates), self._versions(), self._forms.known.get(key)
        if known is not None and known.versions == versions:
            same = (known.marks == marks).all()  # catches writes that torch's version counters miss
            if not self._synchronize or (known.proven is None and bool(same)):
                proven = None if self._synchronize else same if known.proven is None else same & known.proven
                for operand, form in zip(operands, known.forms, strict=True):
                    operand.set_form(form, proven)
                return
        forms, right = fit_row_forms(candidates, self._forms)
        if self._synchronize:
            forms = [form if fine else None for form, fine in zip(forms, right.tolist(), strict=True)]
        proven = None if self._synchronize else right.all()
        for operand, form in zip(operands, forms, strict=True):
            operand.set_form(form, None if form is None else proven)
            if form is None:
                self._forms.without.add(operand.key)
        good = [form for form in forms if form is not None]
        if len(good) == len(forms):
            self._forms.known[key] = KnownForms(marks, versions, good, proven)

    def _marks(self, candidates: list[Candidate]) -> Tensor:
        """Random dot products of the rows of the tensors and of their weights, and the gains themselves."""
        layout = self._forms.layout([candidate.tensor for candidate in candidates])
        tensors = [candidate.tensor.detach().flatten(1) for candidate in candidates]
        weights = [
            self._shared[one.weight].detach().reshape(like.shape) for one, like in zip(candidates, tensors, strict=True)
        ]
        dots = [torch.mv(rows, self._forms.probe(rows[:1], 2)[0]) for rows in map(layout.join, (tensors, weights))]
        gains = [self._shared[name].detach().flatten() for candidate in candidates for name in candidate.gains]
        return torch.cat([*dots, *gains])

    def _versions(self) -> tuple[int, ...]:
        """The version counters of all parameters and buffers of the model."""
        if self._model is None:
            return ()
        held = (*self._model.parameters(), *self._model.buffers())
        return tuple(-1 if tensor.is_inference() else tensor._version for tensor in held)

    def _weight_and_gains(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """The names of weight and gains, told apart by shape; None if the tensor cannot be a function of rows."""
        if tensor.dim() < 2 or tensor.numel() < _SHORTEST_ROW * len(tensor) or tensor.dtype not in PROOF:
            return None
        rows = len(tensor)
        weights = [n for n in names if self._shared[n].numel() == tensor.numel() and len(self._shared[n]) == rows]
        gains = tuple(n for n in names if n not in weights)
        if len(weights) != 1 or any(self._shared[n].numel() != rows for n in gains):
            return None
        return weights[0], gains


def _moved_leaf(tensor: Tensor) -> Tensor | None:
    """The leaf of which this tensor is a view with every entry exactly once; None if it is not such a view."""
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
    """Refuses a model in which a gradient reaches an original parameter and bypasses its substitute."""
    raise SfumatoError(
        f"parameter {name!r} is used by the loss, or through a reference outside its module, "
        "so its gradient would be lost",
        "use it in the model's forward pass as an attribute of its module; for weight decay, use the optimizer's",
    )
