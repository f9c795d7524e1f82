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

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients.methods.row_forms import Forms, KnownForm, RowForm
from sfumato.gradients.use import Instantiated, RowMap, Use

# Backward steps of views that hold every entry once.
_MOVES = ("T", "Transpose", "Permute", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias")
# Rows shorter than this don't determine the three numbers of their form.
_SHORTEST_ROW = 8
# Lengths of rows outside of this range have squares that float32 cannot hold.
_LENGTHS = (1e-15, 1e15)
# Relative differences, entry by entry, between a function of rows and its closed form.
_PROOF = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(eq=False)
class Operand:
    """A tensor that sites use, and what it is to the parameters.

    Attributes:
        tensor: with its graph.
        names: of the parameters it depends on.
        derived: whether gradients must be pulled back; a parameter itself is not derived.
        moved: derived, but only by moving entries.
        form: of a function of rows, or None.
        proven: () bool, whether the form is right, where a device has not been asked yet.
        uses: how often sites use it.
    """

    tensor: Tensor
    names: tuple[str, ...]
    derived: bool = True
    moved: bool = False
    form: RowForm | None = None
    proven: Tensor | None = None
    uses: int = 0

    def __post_init__(self):
        self._version = self.tensor._version

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
        return None if self.form is None else RowMap(self.tensor.detach(), self.form.scales, self.form.sizes)


class Operands:
    """The operands of one run.

    Args:
        shared: the tensors that stand for the parameters, by name.
        originals: the model's own, which no graph may reach, by name.
        forms: what earlier runs found out.
        asking: whether to look at numbers, for which a device would be waited for; if not, what they would have said
            goes with the operand (`Operand.proven`).
    """

    def __init__(self, shared: dict[str, Tensor], originals: dict[str, Tensor], forms: Forms, *, asking: bool = True):
        self._shared, self._originals, self._forms, self._asking = shared, originals, forms, asking
        self._names = {id(leaf): name for name, leaf in shared.items()}
        self._bypassed = {id(leaf): name for name, leaf in originals.items()}
        self._found: dict[int, Operand] = {}

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
        if tensor.dim() >= 2 and tensor.numel() >= _SHORTEST_ROW * len(tensor):
            operand.form, operand.proven = self._form(tensor, operand.names)
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
        tensor, names, values = operand.tensor, operand.names, values.to(operand.tensor.dtype)
        try:
            found = self.gradients(tensor, names, values, batched=True)
        except RuntimeError:  # an operation whose backward has no batching rule
            rows = [self.gradients(tensor, names, value) for value in values]
            found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return {name: Instantiated(gradient) for name, gradient in found.items()}

    def _form(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[RowForm | None, Tensor | None]:
        """The numbers of a function of rows, or None if it is none; and whether they are right, if nobody looked."""
        key = (names, tuple(tensor.shape), tensor.dtype)
        parts = self._weight_and_gains(tensor, names)
        if key in self._forms.without or parts is None or tensor.dtype not in _PROOF:
            return None, None
        # The same values have the same form, in all micro-batches of a step; they are known again by random dots.
        tensors = [t.detach().reshape(len(tensor), -1) for t in (tensor, *(self._shared[name] for name in names))]
        marks = torch.stack([torch.mv(t, self._forms.probe(t[:1], 2)[0]) for t in tensors])
        known, versions = self._forms.known.get(key), self._versions(names)
        if known is not None and (self._asking or known.versions == versions):
            same = (known.marks == marks).all()  # without a question: but for writes that torch does not count
            if not self._asking:
                return known.form, same if known.proven is None else same & known.proven
            if known.proven is None and bool(same):
                return known.form, None
        form, proven = self._measured(tensor, names, *parts)
        if form is None or proven is None or (self._asking and not bool(proven)):
            self._forms.without.add(key)
            return None, None
        self._forms.known[key] = KnownForm(marks, versions, form, None if self._asking else proven)
        return form, self._forms.known[key].proven

    def _versions(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self._originals[name]._version for name in names if name in self._originals)

    def _weight_and_gains(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[str, list[str]] | None:
        rows = len(tensor)
        weights = [n for n in names if self._shared[n].numel() == tensor.numel() and len(self._shared[n]) == rows]
        gains = [n for n in names if n not in weights]
        if len(weights) != 1 or any(self._shared[n].numel() != rows for n in gains):
            return None
        return weights[0], gains

    def _measured(
        self, tensor: Tensor, names: tuple[str, ...], weight: str, gains: list[str]
    ) -> tuple[RowForm | None, Tensor | None]:
        """One probe ``v = z + 3 e + 3 u``, z across e and u, gives ``J^T v = s v + alpha e + beta u``.

        Returns:
            the numbers, and () bool whether they are right; None where the names alone say that they can't be.
        """
        own = tensor.detach().flatten(1)
        rows, width = own.shape
        lengths, overlap = torch.linalg.vector_norm(own.double(), dim=1), _sums(own) / width**0.5
        usable = (lengths > _LENGTHS[0]) & (lengths < _LENGTHS[1]) & (overlap.abs() < 0.9 * lengths)
        if self._asking and not bool(usable.all()):
            return None, None
        overlap = overlap / lengths
        even, along = torch.full_like(own, width**-0.5), own / lengths.to(own.dtype)[:, None]
        drawn = self._forms.probe(own, 0)
        drawn = drawn - even * (drawn.sum(1, keepdim=True) * width**-0.5)
        across = along - even * overlap.to(own.dtype)[:, None]
        drawn = drawn - across * ((drawn * across).sum(1) / (across * across).sum(1))[:, None]
        probe = drawn + 3 * even + 3 * along
        found = self.gradients(tensor, names, probe.reshape(tensor.shape))
        if set(found) != set(names):
            return None, None
        pulled = found[weight].reshape(rows, width)
        ve, vu = _sums(probe) / width**0.5, _dots(probe, along)
        one = torch.ones_like(ve)
        basis = torch.stack([_dots(probe, probe), ve, vu, ve, one, overlap, vu, overlap, one], -1).reshape(-1, 3, 3)
        right = torch.stack([_dots(pulled, probe), _sums(pulled) / width**0.5, _dots(pulled, along)], -1)
        solution, failed = torch.linalg.solve_ex(basis, right.unsqueeze(-1))
        scales, alpha, beta = solution.squeeze(-1).unbind(-1)
        form = RowForm(
            weight=weight,
            width=width,
            scales=scales,
            ones=-alpha / (scales * ve),
            own=-beta / (scales * vu),
            lengths=lengths,
            overlap=overlap,
            gains={name: found[name].reshape(rows).double() / (vu * lengths) for name in gains},
        )
        numbers = torch.stack([form.scales, form.ones, form.own, lengths, form.overlap, *form.gains.values()])
        good = usable & (failed == 0) & torch.isfinite(numbers).all(dim=0)
        return form, good.all() & self._predicts(tensor, names, form)

    def _predicts(self, tensor: Tensor, names: tuple[str, ...], form: RowForm) -> Tensor:
        """() bool: whether the form gives ``J^T z`` for another random z, entry by entry."""
        probe = self._forms.probe(tensor.detach().flatten(1), 1)
        found = self.gradients(tensor, names, probe.reshape(tensor.shape))
        expected = form.pulled(tensor.detach(), probe.reshape(tensor.shape))
        near, width = _PROOF[tensor.dtype], probe.shape[1]
        sizes = {form.weight: form.scales, **{n: m * form.lengths * width**0.5 for n, m in form.gains.items()}}
        near_enough = []
        for name, value in found.items():
            differences = (expected[name].reshape(value.shape) - value).reshape(len(probe), -1).abs().amax(1)
            near_enough.append((differences <= near * sizes[name].abs()).all())
        return torch.stack(near_enough).all()


def _dots(first: Tensor, second: Tensor) -> Tensor:
    """(rows,) float64: inner products of the rows."""
    return (first * second).sum(dim=1).double()


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=1).double()


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
