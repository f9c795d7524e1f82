"""Sites: the places in a forward pass where parameters meet the data, one file per kind.

A *site* is one call of a heavy function: a linear map, a convolution, a norm. Its forward is the ordinary fast kernel
on all examples and views at once; its backward computes the gradient of its input alone, and keeps for each parameter
it used what a clipped sum needs: a `Use`. Another kind of site is another file with a `Site` and a line in `taps`;
another method of computing norms is another `Use` (`uses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from sfumato import _devices
from sfumato.gradients import products
from sfumato.gradients.sites import token_gram
from sfumato.gradients.sites.forms import Held, Kept
from sfumato.gradients.sites.token_gram import TokenGram

if TYPE_CHECKING:
    from sfumato.gradients.methods.derived import Operand
    from sfumato.gradients.tuner import Tuner
    from sfumato.gradients.use import Kernel, Use


class Site:
    """One tapped call in a forward pass.

    A kind of site computes `forward` and `backward`, and calls `add` in the backward for every operand that is trained.

    Attributes:
        examples: B, known from the moment of the tapped call.
        views: the length of the second axis of the inputs: K, or K times what the model folded into it.
        half: whether autocast may run it in half precision.
        method: how the norm of its weight's gradient is computed, in a word or two.
        seconds: spent in its forward and backward (on a GPU, in starting them).
        held: bytes that its uses keep until the sums are formed.
    """

    kind = "site"
    half = False
    method = "direct"

    def __init__(self, **operands: Tensor | None):
        self.operands: dict[str, Tensor] = {role: t for role, t in operands.items() if t is not None}
        self.examples = self.views = self.held = 0
        self.seconds = 0.0
        self.roles: dict[str, Operand] = {}
        self.tuner: Tuner
        self.uses: list[tuple[Operand, Use]] = []

    def trained(self, role: str) -> bool:
        """Whether the operand of this role exists and needs a gradient."""
        return role in self.operands and self.operands[role].requires_grad

    def constant(self, role: str, like: Tensor) -> Tensor | None:
        """The operand of this role without its graph, in the type of another tensor; None where there is none."""
        operand = self.operands.get(role)
        return None if operand is None else operand.detach().to(like.dtype)

    def over_views(self, values: Tensor) -> Tensor:
        """(B, ...): the sums over views of values (B*K, ...)."""
        return values if len(values) == self.examples else values.unflatten(0, (self.examples, -1)).sum(dim=1)

    def add(self, role: str, use: Use) -> None:
        """Notes the per-example gradients of the operand of this role."""
        self.uses.append((self.roles[role], use))
        self.held += use.bytes()

    def add_weight(self, kernel: Kernel, x: Tensor, g: Tensor, y: Tensor | None = None) -> None:
        """Notes the per-example gradients of the operand "weight", in the form that the tuner chose for the site.

        Args:
            kernel: the arithmetic of the map.
            x, g, y: inputs, output gradients and, if at hand, outputs, each (B*K, ...).
        """
        operand, x, g = self.roles["weight"], x.detach(), g.detach()
        if operand.uses > 1 and kernel.joins:
            self.method = "gram, uses joined"
            self.add("weight", Held(kernel, x, g, "gram", later=True))
            return
        self.method = self.tuner.method(f"{self.kind} {self.describe()}", kernel, x, g, derived=operand.derived)
        dtype = products.working(x, g)
        own = _devices.has_own_forms(x.device) and dtype in token_gram.TOLERANCES and not operand.derived
        if self.method == "gram" and kernel.joins and own:
            self.add("weight", TokenGram(kernel, x.to(dtype), g.to(dtype)))
            return
        if self.method.startswith("keep"):
            derived = operand.rows if operand.uses == 1 else None
            self.add("weight", Kept(kernel, x.to(dtype), g.to(dtype), self.method.removeprefix("keep "), derived))
            return
        y, bias = (None if t is None else t.detach() for t in (y, self.operands.get("bias")))
        method = self.method.removeprefix("drop ")
        later = operand.uses > 1 or (operand.derived and operand.rows is None)
        self.add("weight", Held(kernel, x, g, method, derived=operand.rows, y=y, bias=bias, later=later))

    def hand_over(self) -> list[tuple[Operand, Use]]:
        """The uses, which the site then forgets, so that they are freed with whoever takes them."""
        uses, self.uses = self.uses, []
        return uses

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The outputs for folded inputs (B*K, ...), and what the backward wants to see again."""
        raise NotImplementedError

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        """The gradient of the inputs, if it is wanted; every trained operand's use is added."""
        raise NotImplementedError

    def describe(self) -> str:
        """The site's shape in words: what its best method depends on, apart from the number of examples."""
        return " ".join("x".join(map(str, operand.shape)) for operand in self.operands.values())
