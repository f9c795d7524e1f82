"""Exact clipped sums of per-example gradients for any ``nn.Module``, with a known sensitivity.

`ClippedGradient` is the entry point for the rest of the package. Semantically it runs the model on one example at a
time; the implementation vectorises over examples (`vectorised`), so no example can reach another one's gradient. Models
that break this are refused (`isolation`). Before any private example is used, `ClippedGradient.self_check` compares the
sums with a slow and simple reference (`oracle`) on synthetic inputs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
