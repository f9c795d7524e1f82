"""Memory of one more example, estimated on synthetic examples."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients.checks.discovery import preserved_random_state
from sfumato.gradients.checks.synthetic import repeat_first
from sfumato.gradients.examples import tree_tensors
from sfumato.gradients.methods.vectorised import Objective, RunPath, run
from sfumato.gradients.sites.dropout import WORDS

# Short-lived tensors of a layer's size: its output gradient, its input gradient, a kernel's workspace.
_TEMPORARIES = 3
# Allocators round up and keep freed blocks: processes on CPU were found to grow by 1.3 to 1.9 times the counted bytes.
_SLACK = 2
# On a CPU, batches are split into pieces of about this size, but not of fewer images. Larger ones were hardly faster.
NEAR, LEAST_IMAGES = 384 << 20, 8


def bytes_per_example(objective: Objective, path: RunPath) -> int:
    """Bytes per example: activations that autograd saves, per-example gradients, and a few short-lived tensors.

    Half of the difference between four copies of the path's synthetic example and two.
    """
    input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tree_tensors(path.synthetic[0]))
    if not path.fast:
        return input_bytes

    def cost(examples: int) -> int:
        saved: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        synthetic, keys = repeat_first(path.synthetic, examples), torch.zeros(examples, WORDS, dtype=torch.int64)
        with preserved_random_state(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = run(objective, *synthetic, path=path, keys=keys, own_copies=True)
        sizes = [tensor.untyped_storage().nbytes() for tensor in saved.values()]
        saved.clear()  # the graph keeps the hook alive, and the hook all saved tensors: a reference cycle
        return sum(sizes) + _TEMPORARIES * max(sizes, default=0) + sum(part.bytes() for part in result.parts)

    return input_bytes + max(1, round(_SLACK * (cost(4) - cost(2)) / 2))
