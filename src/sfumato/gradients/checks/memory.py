"""What one more example costs in memory, estimated on made-up examples."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients.checks.discovery import undisturbed_random
from sfumato.gradients.checks.synthetic import repeated
from sfumato.gradients.examples import tensors
from sfumato.gradients.methods.vectorised import Objective, RunPath, run
from sfumato.gradients.sites.dropout import WORDS

# Tensors of a layer's size that live for a moment: its output gradient, its input gradient, a kernel's workspace.
_TEMPORARIES = 3
# Allocators round up and keep freed pieces: processes on CPU were seen to grow by 1.3 to 1.9 times what is counted.
_SLACK = 2
# On a CPU a batch is cut into pieces of about this size, but not of fewer images. Larger ones were not much faster.
NEAR, LEAST_IMAGES = 384 << 20, 8


def bytes_per_example(objective: Objective, path: RunPath) -> int:
    """Bytes per example: activations that autograd saves, per-example gradients, and a few tensors of passing use.

    The difference between four copies of the path's made-up example and two is what two examples cost.
    """
    own = sum(tensor.numel() * tensor.element_size() for tensor in tensors(path.synthetic[0]))
    if not path.fast:
        return own

    def cost(examples: int) -> int:
        saved: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        synthetic, keys = repeated(path.synthetic, examples), torch.zeros(examples, WORDS, dtype=torch.int64)
        with undisturbed_random(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = run(objective, *synthetic, path=path, keys=keys, own_copies=True)
        sizes = [tensor.untyped_storage().nbytes() for tensor in saved.values()]
        saved.clear()  # a graph holds the hook, and thus all that is saved, as long as it lives: for ever
        return sum(sizes) + _TEMPORARIES * max(sizes, default=0) + sum(part.bytes() for part in found.parts)

    return own + max(1, round(_SLACK * (cost(4) - cost(2)) / 2))
