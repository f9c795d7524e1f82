"""The formulas of De et al. 2022, arXiv 2204.13650, in NumPy and float64, as printed."""

from __future__ import annotations

import numpy as np


def clip(vector, max_norm):
    """Section 2.2: clip_C(g) = min(1, C / |g|) g."""
    return vector * min(1.0, max_norm / max(np.linalg.norm(vector), 1e-300))


def private_gradient(gradients, max_norm, batch_size):
    """Equation 3 without its noise: (1 / (B C)) sum_i clip_C((1 / K) sum_k g_ik), of gradients (B, K, D)."""
    return sum(clip(views.mean(axis=0), max_norm) for views in gradients) / (batch_size * max_norm)
