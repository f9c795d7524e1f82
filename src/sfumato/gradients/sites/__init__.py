"""Sites: the places in a forward pass where parameters meet the data, one file per kind.

A *site* is one call of an expensive function: a linear map, a convolution, a norm. Its forward is the ordinary fast
kernel on all examples and views at once. Its backward computes only the gradient of its input, and keeps for each
parameter what a clipped sum needs: a `Use`. To support another kind of function, add a file with a `Site`, and a line
in `taps`; to compute norms in another way, add a `Use` (`use`, `forms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from sfumato import _devices
from sfumato.gradients import products
from sfumato.gradients.sites import token_gram
from sfumato.gradients.sites.forms import Factored, Tiled
from sfumato.gradients.sites.token_gram import TokenGram

if TYPE_CHECKING:
    from sfumato.gradients.methods.derived import Operand
    from sfumato.gradients.tuner import Tuner
    from sfumato.gradients.use import Kernel, Use


class Site:
    """One tapped call in a forward pass.

    A kind of site implements `forward` and `backward`; its backward calls `add` for every operand that is trained.

    Attributes:
        examples: B, set when the call is tapped.
        views: the length of the second axis of the inputs: K, or K times what the model folded into it.
        half: whether autocast may run it in half precision.
        method: how the norm of its weight's gradient is computed, in a word or two.
        seconds: time spent in its forward and backward (on a GPU, in launching them).
        held: bytes that its uses hold until the sums are formed.
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

    def needs_gradient(self, role: str) -> bool:
        """Whether the operand of this role exists and needs a gradient."""
        return role in self.operands and self.operands[role].requires_grad

    def constant(self, role: str, like: Tensor) -> Tensor | None:
        """The operand of this role without its graph, in the type of another tensor; None if there is none."""
        operand = self.operands.get(role)
        return None if operand is None else operand.detach().to(like.dtype)

    def sum_views(self, values: Tensor) -> Tensor:
        """Sums values (B*K, ...) over views: (B, ...)."""
        return values if len(values) == self.examples else values.unflatten(0, (self.examples, -1)).sum(dim=1)

    def add(self, role: str, use: Use) -> None:
        """Records the per-example gradients of the operand of this role."""
        self.uses.append((self.roles[role], use))
        self.held += use.bytes()

    def add_weight(self, kernel: Kernel, x: Tensor, g: Tensor, y: Tensor | None = None) -> None:
        """Records the per-example gradients of the operand "weight", in the form that the tuner chose for the site.

        Args:
            kernel: the arithmetic of the map.
            x, g, y: inputs, output gradients and, if available, outputs, each (B*K, ...).
        """
        operand, x, g = self.roles["weight"], x.detach(), g.detach()
        if operand.uses > 1 and kernel.joins:
            self.method = "gram, uses joined"
            self.add("weight", Factored(kernel, x, g, "gram", later=True))
            return
        self.method = self.tuner.method(f"{self.kind} {self.describe()}", kernel, x, g, derived=operand.derived)
        dtype = products.working_dtype(x, g)
        on_device = _devices.has_device_forms(x.device) and dtype in token_gram.TOLERANCES and not operand.derived
        if self.method == "gram" and kernel.joins and on_device:
            self.add("weight", TokenGram(kernel, x.to(dtype), g.to(dtype)))
            return
        if self.method.startswith("keep"):
            derived = operand.rows if operand.uses == 1 else None
            self.add("weight", Tiled(kernel, x.to(dtype), g.to(dtype), self.method.removeprefix("keep "), derived))
            return
        y, bias = (None if t is None else t.detach() for t in (y, self.operands.get("bias")))
        method = self.method.removeprefix("drop ")
        later = operand.uses > 1 or (operand.derived and operand.rows is None)
        self.add("weight", Factored(kernel, x, g, method, derived=operand.rows, y=y, bias=bias, later=later))

    def take_uses(self) -> list[tuple[Operand, Use]]:
        """Returns the uses and drops the site's references to them, so that the caller can free their memory."""
        uses, self.uses = self.uses, []
        return uses

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the outputs for folded inputs (B*K, ...), and the tensors to save for the backward."""
        raise NotImplementedError

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        """Returns the gradient of the inputs if it is wanted, and adds a use for every trained operand."""
        raise NotImplementedError

    def describe(self) -> str:
        """Describes the site's shape: everything that its best method depends on, except the number of examples."""
        return " ".join("x".join(map(str, operand.shape)) for operand in self.operands.values())
