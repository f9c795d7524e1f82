"""De et al. 2022: what the package runs, beside `formulas/de2022.py`."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sfumato.gradients import ClippedGradient

from .formula import Formula
from .formulas import de2022 as printed

PAPER = "De et al. 2022, arXiv 2204.13650"


def examples_of_a_linear_layer(rng):
    """B examples with K views of width p for a layer of d outputs, and their gradients by hand: g = output - target."""
    examples, views, width, outputs = rng.integers(1, 6), rng.integers(1, 4), rng.integers(1, 9), rng.integers(1, 5)
    return {
        "inputs": rng.normal(size=(examples, views, width)) * np.exp(rng.normal(size=(examples, 1, 1))),
        "targets": rng.normal(size=(examples, outputs)),
        "weight": rng.normal(size=(outputs, width)),
        "max_norm": float(np.exp(rng.normal())),
    }


def gradients_by_hand(case):
    """(B, K, d p) gradients of half the squared distance of a linear layer from its targets."""
    errors = case["inputs"] @ case["weight"].T - case["targets"][:, None]
    return np.einsum("bkd,bkp->bkdp", errors, case["inputs"]).reshape(*errors.shape[:2], -1)


def clipped_sum(case):
    model = nn.Linear(case["weight"].shape[1], case["weight"].shape[0], bias=False, dtype=torch.float64)
    model.weight.data.copy_(torch.from_numpy(case["weight"]))

    def loss(outputs, targets):
        return (outputs - targets).square().sum(-1).mean() / 2

    gradient = ClippedGradient(model, loss, max_norm=case["max_norm"])
    total = gradient(torch.from_numpy(case["inputs"]), torch.from_numpy(case["targets"])).gradients["weight"]
    return total / (len(case["inputs"]) * case["max_norm"])


FORMULAS = [
    Formula(
        where="equation 3, with the views of section 3.2",
        says="(1 / (B C)) sum_i clip_C((1 / K) sum_k g_ik)",
        code="gradients/clipped.py: ClippedGradient",
        draw=examples_of_a_linear_layer,
        runs=clipped_sum,
        formula=lambda case: printed.private_gradient(gradients_by_hand(case), case["max_norm"], len(case["inputs"])),
        mistakes={
            "views are clipped one by one": lambda case: printed.private_gradient(
                gradients_by_hand(case).reshape(-1, 1, case["weight"].size),
                case["max_norm"],
                case["inputs"].shape[0] * case["inputs"].shape[1],
            ),
            "not divided by C": lambda case: (
                case["max_norm"]
                * printed.private_gradient(gradients_by_hand(case), case["max_norm"], len(case["inputs"]))
            ),
            "clipped after the sum": lambda case: (
                printed.clip(gradients_by_hand(case).mean(axis=1).sum(axis=0), case["max_norm"])
                / (len(case["inputs"]) * case["max_norm"])
            ),
        },
    ),
]
