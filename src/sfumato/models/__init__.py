"""Models by name: float images (N, C, H, W) in, logits (N, classes) out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
