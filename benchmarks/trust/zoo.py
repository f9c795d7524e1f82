"""Compare the clipped sums of a small model of every family of timm with the oracle's, in float64.

    python benchmarks/trust/zoo.py [NAME ...]

The models are those of `timm_models.py`; none needed a line of code of its own. For each the largest relative deviation
of a norm, a loss or a parameter's part of the clipped sum is printed, and whether it is below the model's tolerance.
Without names the whole table runs, in a few minutes on one CPU thread, and results/zoo.json holds the outcome and which
kinds of layers the models CHOSEN for the tests lack: none.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

os.environ.setdefault("OMP_NUM_THREADS", "1")

import timm
import timm.layers
import torch
from torch import Tensor, nn

from benchmarks import RESULTS
from benchmarks.shared import timm_models
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import oracle

RESULT = RESULTS / "zoo.json"
MAX_NORM = 0.1


def main(names: list[str]) -> int:
    rows, kinds = {}, {}
    for label in names or timm_models.MODELS:
        began = time.process_time()
        rows[label], kinds[label] = measured(timm_models.MODELS[label])
        outcome = "agrees" if rows[label]["agrees"] else "DIFFERS"
        seconds = time.process_time() - began
        print(f"{label:<36}{rows[label]['deviation']:>9.1e}  {outcome}  {seconds:5.1f} s", flush=True)
    if not names:
        tested = set().union(*(kinds[label] for label in timm_models.CHOSEN))
        every = set().union(*kinds.values())
        found = {
            "versions": {"torch": torch.__version__, "timm": timm.__version__},
            "chosen": list(timm_models.CHOSEN),
            "kinds": len(every),
            "kinds_that_the_chosen_lack": sorted(every - tested),
            "models": rows,
        }
        RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(f"{len(every)} kinds of layers and functions; the chosen lack {sorted(every - tested) or 'none'}")
    return sum(not row["agrees"] for row in rows.values())


def measured(row: timm_models.Row) -> tuple[dict[str, float | bool], set[str]]:
    """How far the sum is from the oracle's, and the model's kinds of layers."""
    torch.manual_seed(0)
    model, images, targets, loss = timm_models.problem(row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient = ClippedGradient(model, loss, max_norm=MAX_NORM)
        total = gradient(images, targets)
    expected, norms, losses = oracle.clipped_sum(model, loss, images, targets, max_norm=MAX_NORM)
    whole = torch.stack([part.norm() for part in expected.values()]).norm()
    parts = [(total.gradients[n] - part).norm() / (part.norm() + 1e-2 * whole) for n, part in expected.items()]
    of_examples = [((total.norms - norms) / norms).abs().max(), ((total.losses - losses) / losses).abs().max()]
    deviation = float(torch.stack([*parts, *of_examples]).max())
    agrees = deviation <= row.tolerance and gradient.unused_parameters == timm_models.unused(row, model)
    return {"deviation": float(f"{deviation:.1e}"), "agrees": agrees}, kinds(model, model(images))


def kinds(model: nn.Module, outputs: Tensor) -> set[str]:
    """The functions of autograd that the outputs come of, and the layers of torch and timm that have parameters."""
    found, seen, ahead = set(), set(), [outputs.grad_fn]
    while ahead:
        function = ahead.pop()
        if function is not None and function not in seen:
            seen.add(function)
            found.add(re.sub(r"Backward\d*$", "", type(function).__name__))
            ahead += [before for before, _ in function.next_functions]
    return found | {_kind(module) for module in model.modules() if _of_a_library(module) and module._parameters}


def _of_a_library(module: nn.Module) -> bool:
    return any(hasattr(library, type(module).__name__) for library in (nn, timm.layers))


def _kind(module: nn.Module) -> str:
    words = [type(module).__name__]
    if isinstance(module, nn.Conv2d):
        groups, channels = module.groups, module.in_channels
        words += [] if groups == 1 else ["depthwise"] if groups == channels else ["grouped"]
        words += [word for word, one in (("strided", module.stride), ("dilated", module.dilation)) if one != (1, 1)]
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
