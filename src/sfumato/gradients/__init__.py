"""Sensitivity: exact clipped sums of per-example gradients, for any ``nn.Module``.

`ClippedGradient` is the one thing that the rest of the package uses. It runs the model on one example at a time in
meaning, and on all of them at once in fact (`vectorised`), so that no example can reach another one's gradient. What
cannot keep that promise is refused (`isolation`), and `ClippedGradient.self_check` compares the sums with a slow and
plain computation (`oracle`) on made-up inputs before any private example is touched.
"""

from sfumato.gradients.alone import keeps_apart, outputs_alone, outputs_together, same_throughout
from sfumato.gradients.clipped import ClippedGradient
from sfumato.gradients.explain import Explanation
from sfumato.gradients.sums import ClippedSum

__all__ = [
    "ClippedGradient",
    "ClippedSum",
    "Explanation",
    "keeps_apart",
    "outputs_alone",
    "outputs_together",
    "same_throughout",
]
